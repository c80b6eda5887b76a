"""Foreign tokens become token shards: all of them, once, and the books say what was left."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from unidisc_folder import LENGTH, sample_tokens, write_full, write_interleaved
from video_tars import write_video_tar

from shardmill.api.tokenize import tokenize_stage
from shardmill.errors import ConfigError
from shardmill.formats.adapters.unidisc import UnidiscReader
from shardmill.formats.megatron import MegatronReader
from shardmill.model.codec import from_plain, to_plain
from shardmill.model.space import TokenSpace
from shardmill.running.runner import run_stage
from shardmill.shards.ledger import open_manifest
from shardmill.shards.samples import open_samples
from shardmill.shards.tokens.ids import write_megatron_index
from shardmill.shards.tokens.shard import TokenDataset, open_tokens
from shardmill.sources.guess import shape_of, source_from_input
from shardmill.stages.adopt import AdoptTokens
from shardmill.stages.ingest import Ingest


def adopt(source: Path, out: Path, **recipe: object) -> TokenDataset:
    report = run_stage(tokenize_stage(recipe, [str(source)]), out, workers=0, max_skip_rate=0.5)
    assert report.complete, report.failures
    return open_tokens(out)


def test_parts_that_overlap_are_merged_and_the_rest_is_counted(tmp_path: Path) -> None:
    write_interleaved(tmp_path / "in" / "train_0", [0, 1, 2, 3], unwritten=2)
    write_interleaved(tmp_path / "in" / "train_1", [2, 3, 4, 5])
    write_interleaved(tmp_path / "in" / "tmp_train_0", [0, 1], unwritten=2)
    tokens = adopt(tmp_path / "in", tmp_path / "out")
    assert [row.key for row in tokens] == [f"train-{n:08d}" for n in range(6)]
    for id_, row in enumerate(tokens):
        ids, modality = map(np.array, sample_tokens(id_))
        assert np.array_equal(row.ids, ids + 32001 * modality)
    stats = open_manifest(tmp_path / "out").stats
    assert stats["passed over|ids of an earlier part"] == 4
    assert stats["passed over|rows never written"] == 4


def test_another_vocabulary_is_given_by_the_recipe(tmp_path: Path) -> None:
    write_interleaved(tmp_path / "in" / "train_0", [0])
    space = {"text_size": 50000, "num_codes": 16384, "specials": {"image": 811}}
    tokens = adopt(tmp_path / "in", tmp_path / "out", space=space)
    assert tokens.space is not None
    assert tokens.space.code_offset == 50000
    assert int(tokens[0].ids.max()) == 50000 + 15


def test_packs_of_videos_join_their_images_by_key(tmp_path: Path) -> None:
    write_video_tar(tmp_path / "in" / "shard_0-0-50.tar", [2, 0, 1])
    tokens = adopt(tmp_path / "in", tmp_path / "tokens")
    source = source_from_input([str(tmp_path / "in")])
    run_stage(
        Ingest(source=source, shape=shape_of(source)),
        tmp_path / "samples",
        workers=0,
        max_skip_rate=1,
    )
    samples = open_samples(tmp_path / "samples")
    for row in tokens:
        if row.media:
            number = samples.find(row.key)
            assert number is not None
            assert [span.name for span in row.media] == [*samples[number].media]


def test_broken_samples_are_rejects(tmp_path: Path) -> None:
    from tars import tar_bytes
    from video_tars import packed_members

    (tmp_path / "x.tar").write_bytes(
        tar_bytes([*packed_members("a", 0, 0), ("b.json", b'{"input_ids": []}')])
    )
    tokens = adopt(tmp_path / "x.tar", tmp_path / "out")
    assert len(tokens) == 1
    assert open_manifest(tmp_path / "out").skipped == {"no tokens": 1}
    (reject,) = (tmp_path / "out" / "rejects").glob("*.jsonl")
    assert json.loads(reject.read_text())["key"] == "x/b"


def test_our_own_shards_come_back_as_megatron_prefixes(tmp_path: Path) -> None:
    write_interleaved(tmp_path / "in" / "train_0", [0, 1, 2])
    first = adopt(tmp_path / "in", tmp_path / "a")
    space = to_plain(first.space)
    second = adopt(tmp_path / "a" / "shards", tmp_path / "b", space=space)
    assert [row.ids.tolist() for row in second] == [row.ids.tolist() for row in first]


def test_a_prefix_needs_a_space_and_other_settings_have_no_meaning(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="how many ids there are"):
        AdoptTokens(reader=MegatronReader(files=("x",)))
    with pytest.raises(ConfigError, match="'max_length' has no meaning"):
        tokenize_stage({"from": {"kind": "unidisc"}, "max_length": 5}, ["x"])
    with pytest.raises(ConfigError, match="one folder"):
        tokenize_stage({"from": {"kind": "unidisc"}}, ["x", "y"])
    with pytest.raises(ConfigError, match="unknown kind 'unidisk'; did you mean 'unidisc'"):
        tokenize_stage({"from": "unidisk"}, ["x"])


def test_the_spec_survives_its_json() -> None:
    stage = AdoptTokens(reader=MegatronReader(files=("x",), space=TokenSpace(text_size=9)))
    assert from_plain(to_plain(stage)) == stage


@pytest.mark.parametrize("mask", [True, False])
def test_rows_that_are_stored_alike_are_not_copied(
    tmp_path: Path, mask: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = write_full(tmp_path / "in" / "train_0", range(5), mask=mask)
    write_full(tmp_path / "in" / "train_1", range(5, 8), mask=mask)
    tokens = adopt(tmp_path / "in", tmp_path / "out")
    assert (tmp_path / "out/shards/000000.bin").samefile(part / "input_ids.memmap")
    assert [row.key for row in tokens] == [f"train-{n:08d}" for n in range(8)]
    assert np.array_equal(tokens[4].ids, np.arange(4 * LENGTH, 5 * LENGTH))
    monkeypatch.setattr(UnidiscReader, "ids_file", lambda *_: None)
    adopt(tmp_path / "in", tmp_path / "copied")
    for receipt in (tmp_path / "out/receipts").iterdir():
        assert receipt.read_bytes() == (tmp_path / "copied/receipts" / receipt.name).read_bytes()


def test_what_is_shifted_padded_or_left_out_is_copied(tmp_path: Path) -> None:
    write_full(tmp_path / "raw" / "train_0", range(3), modality=1)
    write_full(tmp_path / "repeated" / "train_0", range(3))
    repeats = write_full(tmp_path / "repeated" / "train_1", range(3))
    (repeats / "idx.memmap").write_bytes(np.array([0, 4, 5], np.int32).tobytes())
    write_interleaved(tmp_path / "padded" / "train_0", [1, 3])
    wide = {"text_size": 90_000, "num_codes": 16384, "specials": {"image": 811}}
    write_full(tmp_path / "wide" / "train_0", range(3))
    for name, recipe in (("raw", {}), ("repeated", {}), ("padded", {}), ("wide", {"space": wide})):
        tokens = adopt(tmp_path / name, tmp_path / f"{name}-out", **recipe)
        binaries = sorted((tmp_path / f"{name}-out/shards").glob("*.bin"))
        assert [path.stat().st_nlink for path in binaries[:1]] == [2 if name == "repeated" else 1]
        assert [path.stat().st_nlink for path in binaries[1:]] == [1] * (len(binaries) - 1)
        assert tokens[0].ids[-1] == (2 if name == "padded" else 31 + 32001 * (name == "raw"))


def test_images_that_are_shifted_already_are_not_copied(tmp_path: Path) -> None:
    part = write_full(tmp_path / "in" / "train_0", range(5), modality=1)
    space = {"text_size": 1, "codes_at": 0, "num_codes": 16384}
    (row, *_) = adopt(tmp_path / "in", tmp_path / "out", space=space)
    assert (tmp_path / "out/shards/000000.bin").samefile(part / "input_ids.memmap")
    assert [span.num_tokens for span in row.media] == [LENGTH]


def test_an_id_outside_of_the_space_is_found_in_a_file_that_is_not_copied(tmp_path: Path) -> None:
    write_full(tmp_path / "in" / "train_0", range(5))
    stage = tokenize_stage({"space": {"text_size": 100, "num_codes": 9}}, [str(tmp_path / "in")])
    report = run_stage(stage, tmp_path / "out", workers=0)
    assert "the id 109 among its tokens, the token space has 109" in str(report.failures)


def test_megatrons_ids_are_not_copied_unless_there_are_gaps(tmp_path: Path) -> None:
    prefix = tmp_path / "in" / "data"
    prefix.parent.mkdir()
    ids = np.arange(10, dtype="<u2")
    ids.tofile(prefix.with_suffix(".bin"))
    space = {"text_size": 100}
    for name, lengths in (("all", [4, 3, 3]), ("gap", [4, 3, 2])):
        with prefix.with_suffix(".idx").open("wb") as file:
            write_megatron_index(file, ids.dtype, np.array(lengths), np.arange(3))
        tokens = adopt(prefix, tmp_path / name, space=space)
        assert [row.ids.tolist() for row in tokens][:2] == [[0, 1, 2, 3], [4, 5, 6]]
        is_linked = (tmp_path / name / "shards/000000.bin").samefile(prefix.with_suffix(".bin"))
        assert is_linked == (name == "all")
