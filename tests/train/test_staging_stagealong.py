"""Shards come near while training goes on; nothing is lost if they do not."""

from __future__ import annotations

import logging
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from in_store import put_folder
from packed_folder import Made
from pixel_folder import write_pixel_folder

from shardmill.cli.main import cli
from shardmill.shards.ledger import open_manifest
from shardmill.shards.samples import open_samples
from shardmill.storage import cache, objects
from shardmill.train import staging
from shardmill.train import staging as stagealong
from shardmill.train.dataset import PackedDataset, TrainPack
from shardmill.train.loader import StepLoader
from shardmill.train.samples import SampleStream
from shardmill.train.staging import stage_along


@pytest.fixture(autouse=True)
def _look_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(stagealong, "SPARE_BYTES", 0)


def ids_of(batch: list[TrainPack]) -> list[list[int]]:
    return [pack.pack.input_ids.tolist() for pack in batch]


def test_training_begins_far_and_goes_on_near(made: Made, tmp_path: Path) -> None:
    far, near = tmp_path / "far", tmp_path / "near"
    shutil.copytree(made.tokens, far)
    whole = PackedDataset.from_tokens(made.plan_path, made.tokens)
    expected = list(StepLoader(whole, whole.sampler(micro_batch=4), collate_fn=ids_of))
    near.mkdir()
    packs = PackedDataset.from_tokens(made.plan_path, far, near=near)
    batches = iter(StepLoader(packs, packs.sampler(micro_batch=4), collate_fn=ids_of))
    found = [next(batches) for _ in range(3)]
    with stage_along(far, near) as copies:
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
        with stage_along(far, near) as copies:
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
    with stage_along(made.tokens, tmp_path / "near", max_bytes=limit) as copies:
        assert copies.wait(60)
        files = [p for p in (copies.folder / "shards").iterdir() if not p.name.startswith(".")]
        assert sum(path.stat().st_size for path in files) <= limit
        assert (copies.folder / cache.LOG_NAME).read_text().split() == [
            shard.name for shard in shards[:3]
        ]
        assert "5 shards found no room" in caplog.text
        packs = PackedDataset.from_tokens(made.plan_path, made.tokens, near=copies.folder)
        assert all(len(packs[n].pack.samples) for n in range(len(packs)))
        assert not packs.faults()


def test_a_broken_original_is_told_and_training_goes_on(
    made: Made, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    far = tmp_path / "far"
    shutil.copytree(made.tokens, far)
    path = far / "shards" / "00002.bin"
    path.write_bytes(bytes(path.stat().st_size))
    with stage_along(far, tmp_path / "near") as copies:
        assert copies.wait(60)
        assert "checksum" in caplog.text
        assert not (copies.folder / "shards" / "00002.bin").exists()
        assert (copies.folder / "shards" / "00001.bin").exists()


def _stage_until_killed(folder: Path, near: Path) -> None:
    copy = staging._copy

    def slow(source: Path, draft: Path, stop: object) -> str | None:
        (near / "one").touch()
        time.sleep(0.3)
        return copy(source, draft)

    staging._copy = slow  # type: ignore[assignment]
    stage_along(folder, near)
    time.sleep(600)


def test_another_process_takes_over_from_one_that_was_killed(made: Made, tmp_path: Path) -> None:
    near = tmp_path / "near"
    child = multiprocessing.get_context("fork").Process(
        target=_stage_until_killed, args=(made.tokens, near)
    )
    child.start()
    while not (near / "one").exists():
        time.sleep(0.02)
    with stage_along(made.tokens, near) as copies:
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
        "from shardmill.train.staging import stage_along\n"
        "assert stage_along(sys.argv[1], sys.argv[2]).wait(60)\n"
        "assert open(sys.argv[2] + '/arrived').read()\n"
    )
    words = [sys.executable, "-c", code, str(made.tokens), str(tmp_path / "near")]
    subprocess.run(words, check=True)
    assert not (tmp_path / "near").exists()


def test_giving_up_stops_the_copying(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "CHUNK", 16)
    copies = stage_along(made.tokens, tmp_path / "near")
    copies.remove()
    assert not (tmp_path / "near").exists()
    assert copies.wait(0)


def test_shards_come_near_from_a_store(made: Made, tmp_path: Path, store_url: str) -> None:
    url = put_folder(made.tokens, store_url)
    whole = PackedDataset.from_tokens(made.plan_path, made.tokens)
    with stage_along(url, tmp_path / "near") as copies:
        packs = PackedDataset.from_tokens(made.plan_path, url, near=copies.folder)
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
    with stage_along(tmp_path / "index", tmp_path / "near") as copies:
        assert copies.wait(60)
        objects.delete([f"{store_url}/{n:06d}.tar" for n in range(3)])
        stream = SampleStream(
            open_samples(tmp_path / "index", staged_dir=copies.folder), batch_size=4, copy=True
        )
        assert [dict(s.members) for b in stream for s in b] == expected
