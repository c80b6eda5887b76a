"""Whatever is done to a finished folder is found, and only the broken units are done again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from drivers import snapshot
from hypothesis import given, settings
from hypothesis import strategies as st
from lossy_export import lossy_export
from stages_for_tests import Lines
from token_folder import write_token_folder

from shardmill.errors import ShardmillError
from shardmill.formats.megatron import MegatronFormat
from shardmill.model.manifest import ShardEntry
from shardmill.model.sample import Document, Sample, Segment
from shardmill.model.stage import Draft
from shardmill.model.tokenrow import TokenRow
from shardmill.running.runner import run_stage
from shardmill.shards.commit import checksum_file
from shardmill.shards.ledger import open_manifest
from shardmill.shards.samples import SampleWriter
from shardmill.shards.tar.index import open_tar_index
from shardmill.stages.check.folder import check_folder, check_tar, find_repeated_keys, repair
from shardmill.stages.export import ExportShards

STAGE = Lines(num_units=6)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("finished") / "out"
    run_stage(STAGE, out, workers=0)
    return out


@pytest.fixture
def out(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "out"))


def edit_receipt(out: Path, name: str, **changes: object) -> None:
    path = out / "receipts" / f"{name}.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (lambda out: (out / "shards/00003.txt").write_bytes(b"x"), "has 1 bytes"),
    "flipped bit": (lambda out: flip(out / "shards/00003.idx"), "has the checksum"),
    "missing file": (lambda out: (out / "shards/00003.txt").unlink(), "No such file"),
    "rejects": (lambda out: flip(out / "rejects/00003.jsonl"), "has the checksum"),
    "no json": (lambda out: (out / "receipts/00003.json").write_text("{"), "is not JSON"),
    "empty receipt": (lambda out: (out / "receipts/00003.json").write_text(""), "is not JSON"),
    "not a receipt": (lambda out: (out / "receipts/00003.json").write_text("[]"), "not a receipt"),
    "unbalanced": (lambda out: edit_receipt(out, "00003", num_in=99), "99 in, but"),
    "other spec": (lambda out: edit_receipt(out, "00003", digest="0" * 32), "another spec"),
    "other unit": (lambda out: edit_receipt(out, "00003", unit="00002"), "receipt of unit '00002'"),
    "climbing": (
        lambda out: edit_receipt(
            out, "00003", rejects={"path": "rejects/../x", "num_bytes": 0, "checksum": ""}
        ),
        "is not a file in rejects/",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_found_named_and_repaired(out: Path, finished: Path, name: str) -> None:
    damage, says = DAMAGE[name]
    damage(out)
    verdict = check_folder(out)
    assert not verdict.sound
    assert verdict.broken_units == ("00003",)
    assert any(says in problem.what for problem in verdict.problems)
    assert repair(verdict) == ("00003",)
    report = run_stage(STAGE, out, workers=0)
    assert report.complete and (report.num_done, report.num_done_before) == (1, 5)
    assert check_folder(out).sound
    assert snapshot(out) == snapshot(finished)


def test_a_sound_folder_is_sound(out: Path) -> None:
    verdict = check_folder(out)
    assert verdict.sound and verdict.num_units == 6
    files = [*(out / "shards").iterdir(), *(out / "rejects").iterdir()]
    assert verdict.num_files == len(files)
    assert verdict.num_bytes == sum(path.stat().st_size for path in files)
    assert repair(verdict) == () and (out / "manifest.json").exists()


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_any_changed_byte_is_found(
    finished: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    out = Path(shutil.copytree(finished, tmp_path_factory.mktemp("any") / "out"))
    names = [name for name in snapshot(out) if name.startswith(("shards/", "rejects/"))]
    path = out / data.draw(st.sampled_from(names))
    content = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    verdict = check_folder(out)
    assert [problem.path for problem in verdict.problems] == [str(path.relative_to(out))]
    shutil.rmtree(out)


def test_without_deep_only_sizes_are_compared(out: Path) -> None:
    flip(out / "shards/00003.txt")
    assert check_folder(out, deep=False).sound
    (out / "shards/00003.txt").write_bytes(b"")
    assert not check_folder(out, deep=False).sound


def test_strangers_are_named_but_not_removed(out: Path) -> None:
    (out / "shards" / "00099.txt").write_text("from where?")
    verdict = check_folder(out)
    assert [problem.path for problem in verdict.problems] == ["shards/00099.txt"]
    assert repair(verdict) == ()
    assert (out / "shards" / "00099.txt").exists()


def test_a_manifest_that_lies_is_found(out: Path, finished: Path) -> None:
    manifest = json.loads((out / "manifest.json").read_text())
    manifest["shards"].reverse()
    (out / "manifest.json").write_text(json.dumps(manifest))
    verdict = check_folder(out)
    assert [problem.path for problem in verdict.problems] == ["manifest.json"]
    repair(verdict)
    assert run_stage(STAGE, out, workers=0).complete
    assert snapshot(out) == snapshot(finished)


def test_a_missing_receipt_under_a_manifest_is_found(out: Path) -> None:
    (out / "receipts" / "00001.json").unlink()
    verdict = check_folder(out)
    assert verdict.num_missing == 1 and not verdict.sound
    assert any("only 5 of 6 units" in problem.what for problem in verdict.problems)


def test_an_unfinished_folder_has_missing_units_but_no_problems(tmp_path: Path) -> None:
    run_stage(STAGE, tmp_path / "out", workers=0, part=(1, 2))
    verdict = check_folder(tmp_path / "out")
    assert verdict.num_missing == 3 and verdict.problems == () and not verdict.sound


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ShardmillError, match="not a folder of shardmill"):
        check_folder(tmp_path)
    with pytest.raises(ShardmillError, match="not a dataset of shardmill"):
        open_manifest(tmp_path)


def write_index(folder: Path, name: str, keys: list[str]) -> Path:
    draft = Draft(folder)
    with SampleWriter(draft, lambda _: name) as writer:
        for key in keys:
            writer.add(Sample(key=key, document=Document((Segment(kind="text", text=key),))))
    return draft.file(name, "idx")


@given(shards=st.lists(st.sets(st.sampled_from("abcdefgh"), min_size=1), max_size=4))
def test_exactly_the_keys_in_more_than_one_shard_are_found(
    tmp_path_factory: object, shards: list[set[str]]
) -> None:
    folder = tmp_path_factory.mktemp("keys")  # type: ignore[attr-defined]
    paths = [write_index(folder, str(i), sorted(keys)) for i, keys in enumerate(shards)]
    everything = [key for keys in shards for key in keys]
    repeated = {key for key in everything if everything.count(key) > 1}
    found = list(find_repeated_keys(paths))
    assert {repeat.key for repeat in found} == repeated
    assert all(repeat.first_path != repeat.second_path for repeat in found)


def write_shard(folder: Path, name: str, keys: list[str], *, text: str = "text") -> Draft:
    draft = Draft(folder)
    with SampleWriter(draft, lambda split: name) as writer:
        for key in keys:
            segment = Segment(kind="text", text=text)
            image = Segment(kind="image", media="jpg")
            media = {"jpg": b"\xff\xd8" + key.encode()}
            document = Document((image, segment))
            writer.add(Sample(key=key, document=document, media=media))
    return draft


def entry(folder: Path, name: str, num_samples: int, roles: str = "tar idx") -> ShardEntry:
    files = {role: checksum_file(folder / f"{name}.{role}") for role in roles.split()}
    return ShardEntry(name, num_samples, files)


def test_a_tar_and_its_index_agree(tmp_path: Path) -> None:
    write_shard(tmp_path, "a", ["x", "y-1", "y"])
    assert list(check_tar(tmp_path, entry(tmp_path, "a", 3))) == []


def test_other_numbers_of_samples_are_found(tmp_path: Path) -> None:
    write_shard(tmp_path, "a", ["x", "y"])
    [(path, what)] = check_tar(tmp_path, entry(tmp_path, "a", 3))
    assert path == "a.idx"
    assert what == "lists 2 samples, the tar holds 2, the receipt says 3"


@pytest.mark.parametrize(
    ("keys", "text", "says"),
    [(["x", "z"], "text", "other keys"), (["x", "y"], "other", "does not fit the tar")],
)
def test_the_index_of_another_tar_is_found(
    tmp_path: Path, keys: list[str], text: str, says: str
) -> None:
    write_shard(tmp_path, "a", ["x", "y"])
    write_shard(tmp_path, "b", keys, text=text)
    (tmp_path / "b.idx").rename(tmp_path / "a.idx")
    found = list(check_tar(tmp_path, entry(tmp_path, "a", 2)))
    assert any(path == "a.idx" and says in what for path, what in found)


@pytest.mark.parametrize("role", ["tar", "idx"])
def test_a_file_that_is_something_else_is_named(tmp_path: Path, role: str) -> None:
    write_shard(tmp_path, "a", ["x"])
    shard = entry(tmp_path, "a", 1)
    (tmp_path / f"a.{role}").write_bytes(b"GIF89a" * 400)
    [(path, _)] = check_tar(tmp_path, shard)
    assert path == f"a.{role}"


def test_a_shard_without_tar_is_not_looked_at(tmp_path: Path) -> None:
    write_shard(tmp_path, "a", ["x"])
    assert list(check_tar(tmp_path, entry(tmp_path, "a", 7, "idx"))) == []
    assert len(open_tar_index(tmp_path / "a.idx")) == 1


@pytest.fixture
def stage(tmp_path: Path) -> ExportShards:
    rows = [TokenRow(key=f"k{n}", ids=np.arange(1 + n % 19)) for n in range(40)]
    tokens = write_token_folder(tmp_path / "tokens", [rows[:20], rows[20:]])
    return lossy_export(input_dir=tokens, format=MegatronFormat(prefix="train"))


def test_a_flipped_byte_is_found_and_repaired(stage: ExportShards, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run_stage(stage, out, workers=0).complete
    whole = snapshot(out)
    assert check_folder(out).sound
    content = bytearray((out / "train.bin").read_bytes())
    content[-1] ^= 1
    (out / "train.bin").write_bytes(content)
    verdict = check_folder(out)
    assert [(p.unit, p.path) for p in verdict.problems] == [("00001", "train.bin")]
    assert repair(verdict) == ("00001",)
    assert run_stage(stage, out, workers=0).num_done == 1
    assert snapshot(out) == whole


def test_a_missing_file_is_found_and_repaired(stage: ExportShards, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run_stage(stage, out, workers=0).complete
    whole = snapshot(out)
    (out / "train.idx").unlink()
    verdict = check_folder(out)
    assert {p.what.partition(":")[0] for p in verdict.problems} == {"cannot be read"}
    repair(verdict)
    assert run_stage(stage, out, workers=0).complete
    assert snapshot(out) == whole
