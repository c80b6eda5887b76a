"""Copies are whole, made once a node, and go with their last user."""

from __future__ import annotations

import logging
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner
from in_store import put_folder
from packed_folder import Made
from pixel_folder import write_pixel_folder

from shardmill.cli.main import cli
from shardmill.errors import ConfigError
from shardmill.shards.ledger import open_manifest
from shardmill.shards.samples import open_samples
from shardmill.storage import cache, objects
from shardmill.train import staging
from shardmill.train.dataset import PackedDataset
from shardmill.train.documents import TokenReader, TrainPack
from shardmill.train.loader import StepLoader
from shardmill.train.staging import Staging
from shardmill.train.stream import SampleStream


def test_copies_are_the_same_and_go_with_their_last_user(made: Made, tmp_path: Path) -> None:
    near = tmp_path / "near"
    first, second = Staging(made.tokens, near), Staging(made.tokens, near)
    assert first.wait(60)
    for entry in open_manifest(made.tokens).shards:
        for file in entry.files.values():
            assert (near / file.path).read_bytes() == (made.tokens / file.path).read_bytes()
    first.remove()
    first.remove()
    assert near.exists()
    with second:
        assert second.folder == near
    assert not near.exists()


def test_processes_of_a_node_copy_each_file_once(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "RETRY_S", 0.05)
    copied: list[Path] = []
    copy = staging._copy
    monkeypatch.setattr(staging, "_copy", lambda s, d, stop: copied.append(s) or copy(s, d, stop))
    with ThreadPoolExecutor(6) as pool:
        used = list(pool.map(lambda _: Staging(made.tokens, tmp_path / "near"), range(6)))
    assert all(one.wait(60) for one in used)
    assert len(copied) == len(set(copied)) == 3 * 8
    for one in used:
        one.remove()
    assert not (tmp_path / "near").exists()


def test_only_a_folder_can_be_staged(made: Made, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give the folder"):
        reader = TokenReader.open(made.tokens)
        PackedDataset(made.plan_path, reader, staged_dir=tmp_path / "near")
    assert not (tmp_path / "near").exists()


def test_a_folder_of_other_files_is_neither_used_nor_deleted(made: Made, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()
    with pytest.raises(ConfigError, match="folder of their own"):
        Staging(made.tokens, tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").exists()
    with pytest.raises(ConfigError, match="is no folder"):
        Staging(made.tokens, tmp_path / "mine" / "thesis.txt")


def test_a_folder_that_others_write_to_is_not_believed(made: Made, tmp_path: Path) -> None:
    near = tmp_path / "near"
    near.mkdir()
    near.chmod(0o777)
    (near / ".users").touch()
    with pytest.raises(ConfigError, match="near is not ours alone"):
        Staging(made.tokens, near)
    near.chmod(0o700)
    with Staging(made.tokens, near):
        assert near.stat().st_mode & 0o077 == 0


def test_users_that_come_and_go_never_keep_a_deleted_folder(made: Made, tmp_path: Path) -> None:
    def use(_: int) -> None:
        with Staging(made.tokens, tmp_path / "near", max_bytes=0) as copies:
            assert (copies.folder / staging.USERS).exists()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(use, range(60)))
    assert not (tmp_path / "near").exists()


@pytest.fixture(autouse=True)
def _look_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(staging, "SPARE_BYTES", 0)


def ids_of(batch: list[TrainPack]) -> list[list[int]]:
    return [pack.pack.input_ids.tolist() for pack in batch]


def test_training_begins_far_and_goes_on_near(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, copy = threading.Event(), staging._copy
    monkeypatch.setattr(staging, "_copy", lambda *words: copy(*words) if go.wait(60) else None)
    far, near = tmp_path / "far", tmp_path / "near"
    shutil.copytree(made.tokens, far)
    whole = PackedDataset(made.plan_path, made.tokens)
    expected = list(StepLoader(whole, whole.sampler(batch_size=4), collate_fn=ids_of))
    packs = PackedDataset(made.plan_path, far, staged_dir=near)
    batches = iter(StepLoader(packs, packs.sampler(batch_size=4), collate_fn=ids_of))
    found = [next(batches) for _ in range(3)]
    assert packs.staging is not None
    with packs.staging as copies:
        go.set()
        assert copies.wait(60)
        shutil.rmtree(far / "shards")  # what is read now is the copy
        found += list(batches)
        assert found == expected
        assert not packs.faults()
    assert not near.exists()


def test_samples_and_their_views_outlive_the_change(tmp_path: Path) -> None:
    far, near = write_pixel_folder(tmp_path / "far"), tmp_path / "near"
    near.mkdir()
    plain = {s.key: dict(s.members) for batch in SampleStream(far, copy=True) for s in batch}
    for threads in (0, 2):
        stream = SampleStream(open_samples(far, staged_dir=near), batch_size=4, threads=threads)
        batches = iter(stream)
        first = next(batches)
        with Staging(far, near) as copies:
            assert copies.wait(60)
            rest = list(batches)
        seen = {
            s.key: {e: bytes(v) for e, v in s.members.items()} for b in [first, *rest] for s in b
        }
        assert seen == plain
        near.mkdir()


def test_only_what_has_room_is_copied(
    made: Made, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shards = open_manifest(made.tokens).shards
    limit = sum(shard.num_bytes for shard in shards[:3]) + 10
    caplog.set_level(logging.INFO)
    with Staging(made.tokens, tmp_path / "near", max_bytes=limit) as copies:
        assert copies.wait(60)
        files = [p for p in (copies.folder / "shards").iterdir() if not p.name.startswith(".")]
        assert sum(path.stat().st_size for path in files) <= limit
        assert (copies.folder / cache.LOG_NAME).read_text().split() == [
            shard.name for shard in shards[:3]
        ]
        assert "5 shards found no room" in caplog.text
        packs = PackedDataset(made.plan_path, made.tokens, staged_dir=copies.folder)
        assert all(len(packs[n].pack.samples) for n in range(len(packs)))
        assert not packs.faults()


def test_a_broken_original_is_told_and_training_goes_on(
    made: Made, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    far = tmp_path / "far"
    shutil.copytree(made.tokens, far)
    path = far / "shards" / "00002.bin"
    path.write_bytes(bytes(path.stat().st_size))
    with Staging(far, tmp_path / "near") as copies:
        assert copies.wait(60)
        assert "checksum" in caplog.text
        assert not (copies.folder / "shards" / "00002.bin").exists()
        assert (copies.folder / "shards" / "00001.bin").exists()


def _stage_until_killed(folder: Path, near: Path) -> None:
    copy = staging._copy

    def slow(source: Path, draft: Path, stop: object) -> str | None:
        (near / "one").touch()
        time.sleep(0.3)
        return copy(source, draft, threading.Event())

    staging._copy = slow  # type: ignore[assignment]
    Staging(folder, near)
    time.sleep(600)


def test_another_process_takes_over_from_one_that_was_killed(made: Made, tmp_path: Path) -> None:
    near = tmp_path / "near"
    child = multiprocessing.get_context("fork").Process(
        target=_stage_until_killed, args=(made.tokens, near)
    )
    child.start()
    while not (near / "one").exists():
        time.sleep(0.02)
    with Staging(made.tokens, near) as copies:
        assert not copies.wait(0.5)  # the other one is at it
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        assert copies.wait(60)
        for shard in open_manifest(made.tokens).shards:
            for file in shard.files.values():
                original = (made.tokens / file.path).read_bytes()
                assert (near / file.path).read_bytes() == original
    assert not near.exists()


def test_the_end_of_the_process_removes_the_copies(made: Made, tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from shardmill.train.staging import Staging\n"
        "assert Staging(sys.argv[1], sys.argv[2]).wait(60)\n"
        "assert open(sys.argv[2] + '/arrived').read()\n"
    )
    words = [sys.executable, "-c", code, str(made.tokens), str(tmp_path / "near")]
    subprocess.run(words, check=True)
    assert not (tmp_path / "near").exists()


def test_giving_up_stops_the_copying(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "CHUNK", 16)
    copies = Staging(made.tokens, tmp_path / "near")
    copies.remove()
    assert not (tmp_path / "near").exists()
    assert copies.wait(0)


def test_shards_come_near_from_a_store(made: Made, tmp_path: Path, store_url: str) -> None:
    url = put_folder(made.tokens, store_url)
    whole = PackedDataset(made.plan_path, made.tokens)
    packs = PackedDataset(made.plan_path, url, staged_dir=tmp_path / "near")
    assert packs.staging is not None
    with packs.staging as copies:
        first = packs[0].pack.input_ids.tolist()
        assert copies.wait(60)
        objects.delete(
            [f"{url}/{file.path}" for s in packs.reader.shards for file in s.files.values()]
        )
        found = [packs[n].pack.input_ids.tolist() for n in range(1, len(packs))]
        assert [first, *found] == [whole[n].pack.input_ids.tolist() for n in range(len(whole))]
        assert not packs.faults()


def test_foreign_tars_come_near_from_a_store(tmp_path: Path, store_url: str) -> None:
    made = write_pixel_folder(tmp_path / "made", count=12, per_shard=4)
    for path in (made / "shards").glob("*.tar"):
        objects.put_file(f"{store_url}/{path.name}", path)
    words = [
        "index",
        f"{store_url}/{{000000..000002}}.tar",
        str(tmp_path / "index"),
        "--workers",
        "0",
    ]
    told = CliRunner().invoke(cli, words)
    assert told.exit_code == 0, told.output
    expected = [dict(s.members) for b in SampleStream(made, batch_size=4, copy=True) for s in b]
    with Staging(tmp_path / "index", tmp_path / "near") as copies:
        assert copies.wait(60)
        objects.delete([f"{store_url}/{n:06d}.tar" for n in range(3)])
        stream = SampleStream(
            open_samples(tmp_path / "index", staged_dir=copies.folder), batch_size=4, copy=True
        )
        assert [dict(s.members) for b in stream for s in b] == expected
