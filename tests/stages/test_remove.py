"""Samples go by their keys: exactly they, from every kind of folder, and the books prove it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from finished_folder import finish_folder, shard_entry
from samples_for_tests import store_samples
from token_folder import write_token_folder

from shardmill.errors import ConfigError
from shardmill.model.manifest import Manifest
from shardmill.model.sample import Document, MediaSize, Origin, Sample, Segment
from shardmill.model.stage import Tally
from shardmill.model.tokenrow import TokenRow
from shardmill.running.runner import run_stage
from shardmill.shards.codes import ImageCodes, open_codes, write_codes
from shardmill.shards.ledger import open_manifest
from shardmill.shards.samples import open_samples
from shardmill.shards.tokens.shard import open_tokens
from shardmill.stages import remove as downstream
from shardmill.stages.check.folder import check_folder
from shardmill.stages.index import IndexTars
from shardmill.stages.inputs import count_sample, files_of, open_content
from shardmill.stages.remove import (
    RemoveSamples,
    find_downstream,
    read_keys,
    rows_with_keys,
    whole_key,
)

SIZE = MediaSize(width=30, height=20)


def sample(number: int) -> Sample:
    segments = (Segment(kind="image", media="jpg"), Segment(kind="text", text="t" * number))
    origin = Origin(source="web", path="p", row=number)
    return Sample(
        key=f"k{number}", document=Document(segments), media={"jpg": b"\1" * 99}, origin=origin
    )


def remove(folder: Path, keys: list[str], out: Path) -> Manifest:
    keys_path = out.with_name("keys.txt")
    keys_path.write_text("\n".join(keys))
    report = run_stage(RemoveSamples(input_dir=folder, keys_path=keys_path), out, workers=0)
    assert report.manifest is not None, report.failures
    assert check_folder(out).sound
    return report.manifest


def test_only_the_shard_that_holds_them_is_written_again(tmp_path: Path) -> None:
    samples = [sample(n) for n in range(9)]
    folder = store_samples(tmp_path / "in", samples, 3, SIZE)
    manifest = remove(folder, ["k4", "nobody"], tmp_path / "out")
    assert [s.key for s in open_samples(tmp_path / "out")] == [f"k{n}" for n in range(9) if n != 4]
    assert (manifest.num_in, manifest.num_kept) == (9, 8)
    assert manifest.skipped == {"removed on request": 1}
    before = {shard.name: shard for shard in open_manifest(folder).shards}
    for shard in manifest.shards:
        for role, entry in shard.files.items():
            old, new = folder / before[shard.name].files[role].path, tmp_path / "out" / entry.path
            assert old.samefile(new) == (shard.name != "000003")
    summary = json.loads((tmp_path / "out" / "removal.json").read_text())
    assert summary == {
        "asked": 2,
        "removed": 1,
        "shards_rewritten": 1,
        "shards_linked": 2,
        "not_there": ["nobody"],
    }
    (reject,) = (tmp_path / "out" / "rejects").iterdir()
    assert json.loads(reject.read_text())["key"] == "k4"
    assert reject.name == "000003.jsonl"


def test_the_statistics_are_those_of_the_samples_that_stay(tmp_path: Path) -> None:
    samples = [sample(n) for n in range(9)]
    folder = store_samples(tmp_path / "in", samples, 3, SIZE)
    manifest = remove(folder, ["k0", "k4"], tmp_path / "out")
    wanted = Tally()
    for kept in samples:
        if kept.key not in ("k0", "k4"):
            count_sample(wanted, kept, {"jpg": SIZE})
    found = {name: n for name, n in manifest.stats.items() if not name.startswith("shards|")}
    assert found == dict(wanted.stats)


def test_tokens_lose_all_blocks_of_a_document(tmp_path: Path) -> None:
    names = ["a", "b", "b~+1", "b~+2", "c"]
    rows = [
        TokenRow(key=name, ids=np.arange(n + 1), loss=np.array([[0, 1]]), continues="~" in name)
        for n, name in enumerate(names)
    ]
    folder = write_token_folder(tmp_path / "in", [rows[:4], rows[4:]])
    manifest = remove(folder, ["b"], tmp_path / "out")
    kept = open_tokens(tmp_path / "out", manifest)
    assert [(row.key, row.ids.tolist()) for row in kept] == [("a", [0]), ("c", [0, 1, 2, 3, 4])]
    assert manifest.stats["tokens"] == 6
    assert manifest.stats["loss tokens"] == 2


def test_packs_stay_packs_when_their_first_document_goes(tmp_path: Path) -> None:
    packs = [["a", "b", "c"], ["d"], ["e", "f"]]
    rows = [
        TokenRow(key=key, ids=np.arange(3), continues=at > 0)
        for pack in packs
        for at, key in enumerate(pack)
    ]
    folder = write_token_folder(tmp_path / "in", [rows])
    manifest = remove(folder, ["a", "d", "f"], tmp_path / "out")
    shard = open_tokens(tmp_path / "out", manifest).shard(0)
    assert [row.key for row in shard] == ["b", "c", "e"]
    assert shard.documents.tolist() == [0, 2, 3]


def test_codes_go_with_their_samples(tmp_path: Path) -> None:
    (tmp_path / "in" / "shards").mkdir(parents=True)
    path = tmp_path / "in" / "shards" / "0.codes"
    made = [(f"k{n}", [ImageCodes("jpg", np.full((2, 2), n, np.uint8))]) for n in range(4)]
    write_codes(path, made, num_codes=9, factor=16, about={"weights": "w"})
    finish_folder(tmp_path / "in", [shard_entry(tmp_path / "in", "0", 4, ("codes",))])
    done = remove(tmp_path / "in", ["k1"], tmp_path / "out")
    shard = open_codes(tmp_path / "out" / done.shards[0].files["codes"].path)
    assert list(shard.keys) == ["k0", "k2", "k3"]
    assert shard.images(1)[0].codes.tolist() == [[2, 2], [2, 2]]
    assert shard.arrays.meta["weights"] == "w"
    assert done.stats["codes"] == 12


def test_a_shard_may_lose_all_its_samples(tmp_path: Path) -> None:
    folder = store_samples(tmp_path / "in", [sample(n) for n in range(4)], 2, SIZE)
    remove(folder, ["k0", "k1"], tmp_path / "out")
    assert [s.key for s in open_samples(tmp_path / "out")] == ["k2", "k3"]


def test_tars_that_lie_elsewhere_are_not_touched(tmp_path: Path) -> None:
    folder = store_samples(tmp_path / "in", [sample(0)], 2, SIZE)
    run_stage(IndexTars(tars=(str(folder / "shards"),)), tmp_path / "index", workers=0)
    (tmp_path / "keys.txt").write_text("k0")
    stage = RemoveSamples(input_dir=tmp_path / "index", keys_path=tmp_path / "keys.txt")
    with pytest.raises(ConfigError, match="tars that lie elsewhere"):
        list(stage.units())


def test_a_line_is_a_key(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("a/b\n\n c \nd\twhy it goes\r\ncat.jpg\n", "utf-8")
    assert read_keys(tmp_path / "keys") == {"a/b", "c", "d", "cat_jpg"}


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xff"])
def test_a_file_without_keys_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "keys").write_bytes(content)
    with pytest.raises(ConfigError, match="keys"):
        read_keys(tmp_path / "keys")


@pytest.mark.parametrize(
    ("name", "key"),
    [("a", "a"), ("a~+1", "a"), ("a~+12", "a"), ("a~+x", None), ("b", None), ("b~2", "b~2")],
)
def test_a_key_means_its_blocks_too(name: str, key: str | None) -> None:
    assert whole_key(name, {"a", "b~2"}) == key


def test_a_sample_of_an_equal_name_is_another_one(tmp_path: Path) -> None:
    """Two files named "cat" become the samples "cat" and "cat~2"; only one of them opts out."""
    rows = [TokenRow(key=key, ids=np.arange(2)) for key in ("cat", "cat~2", "cat~2~+1")]
    manifest = remove(write_token_folder(tmp_path / "in", [rows]), ["cat"], tmp_path / "out")
    assert [row.key for row in open_tokens(tmp_path / "out", manifest)] == ["cat~2", "cat~2~+1"]


def test_rows_of_tokens_are_found_with_their_blocks(tmp_path: Path) -> None:
    names = ["x-1", "x-2", "x-2~+1", "x-3"]
    rows = [TokenRow(key=name, ids=np.arange(2)) for name in names]
    folder = write_token_folder(tmp_path / "t", [rows])
    (shard,) = open_manifest(folder).shards
    assert rows_with_keys(open_content(files_of(folder, shard)), {"x-2", "x-9"}) == [1, 2]


def stage(folder: Path, **reads: Path | str) -> None:
    folder.mkdir(parents=True)
    plain = {
        "stage": {"kind": "m:C"},
        "content": "tokens",
        "reads": {role: [str(place)] for role, place in reads.items()},
        "version": 1,
        "digest": "0",
    }
    (folder / "stage.json").write_text(json.dumps(plain))


def test_the_whole_chain_is_found_and_nothing_else(tmp_path: Path) -> None:
    stage(tmp_path / "samples")
    stage(tmp_path / "codes", samples=tmp_path / "samples")
    stage(tmp_path / "tokens", samples="elsewhere", codes=tmp_path / "codes")
    stage(tmp_path / "packs", tokens=tmp_path / "tokens")
    stage(tmp_path / "others", samples=tmp_path / "more")
    stage(tmp_path / "less", input=tmp_path / "samples", keys="keys.txt")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "stage.json").write_text("{")
    found = [path.name for path in find_downstream(tmp_path / "samples").folders]
    assert found == ["codes", "packs", "tokens"]
    assert find_downstream(tmp_path / "packs").folders == ()


def test_exports_in_folders_of_their_own_are_found_too(tmp_path: Path) -> None:
    samples = tmp_path / "samples"
    stage(samples)
    for place in ("exports/hf", "exports/for/mds", "a/b/c/too-deep", ".trash/old"):
        stage(tmp_path / place, input=samples)
    stage(tmp_path / "tars", tokens="elsewhere", samples=samples)
    found = find_downstream(samples)
    places = [str(path.relative_to(tmp_path)) for path in found.folders]
    assert places == ["exports/for/mds", "exports/hf", "tars"]
    assert (found.looked_in, found.saw_all) == (tmp_path, True)


def test_only_so_many_folders_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downstream, "MAX_FOLDERS", 2)
    stage(tmp_path / "a")
    for name in "bcd":
        stage(tmp_path / name, samples=tmp_path / "a")
    found = find_downstream(tmp_path / "a")
    assert [path.name for path in found.folders] == ["b"]
    assert not found.saw_all
