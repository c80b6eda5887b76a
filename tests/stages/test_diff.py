"""What changed between two folders is found by key and content, shard by shard."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.strategies import dictionaries, integers
from mixed_folder import Mixed, make_mixed
from samples_for_tests import store_samples
from token_folder import write_token_folder

from shardmill.errors import ConfigError
from shardmill.model.sample import Document, Origin, Sample, Segment
from shardmill.model.tokenrow import TokenRow
from shardmill.running.runner import run_stage
from shardmill.shards.arrays import hash_keys
from shardmill.shards.ledger import open_manifest
from shardmill.stages.diff import FolderDiff, diff_folders, fingerprint_shard, mix_of_shard
from shardmill.stages.index import IndexTars
from shardmill.stages.inputs import ContentShard, files_of, open_content

contents = dictionaries(integers(0, 9), integers(0, 2), min_size=1, max_size=8)


def sample(key: int, content: int) -> Sample:
    document = Document((Segment(kind="text", text=f"text {content}"),))
    origin = Origin(source=f"s{key % 2}", path="p", row=key)
    return Sample(key=f"k{key}", document=document, origin=origin)


def samples_diff(folder: Path, before: dict[int, int], after: dict[int, int]) -> FolderDiff:
    for name, rows in (("a", before), ("b", after)):
        store_samples(folder / name, [sample(*row) for row in sorted(rows.items())], 3)
    return diff_folders(folder / "a", folder / "b")


@settings(max_examples=25)
@given(before=contents, after=contents)
def test_added_removed_and_changed_are_found(before: dict[int, int], after: dict[int, int]) -> None:
    with TemporaryDirectory() as name:
        found = samples_diff(Path(name), before, after)
    changed = {key for key in before.keys() & after.keys() if before[key] != after[key]}
    assert sorted(found.examples["added"]) == sorted(f"k{k}" for k in after.keys() - before.keys())
    assert sorted(found.examples["removed"]) == sorted(
        f"k{k}" for k in before.keys() - after.keys()
    )
    assert sorted(found.examples["changed"]) == sorted(f"k{k}" for k in changed)
    assert (found.added, found.removed, found.changed) == tuple(
        len(found.examples[what]) for what in ("added", "removed", "changed")
    )
    assert found.num_samples == (len(before), len(after))
    for mix in found.mix:
        wanted = [sum(f"s{k % 2}" == mix.source for k in side) for side in (before, after)]
        assert list(mix.samples) == wanted


def test_only_touched_shards_are_listed(tmp_path: Path) -> None:
    before = dict.fromkeys(range(9), 0)
    found = samples_diff(tmp_path, before, {**before, 4: 1})
    assert found.num_same_shards == 2
    assert [(s.side, s.name, s.changed) for s in found.shards] == [
        ("before", "000003", 1),
        ("after", "000003", 1),
    ]
    assert found.examples["changed"] == ["k4"]


def test_samples_that_only_moved_are_the_same(tmp_path: Path) -> None:
    rows = [sample(n, 0) for n in range(6)]
    store_samples(tmp_path / "a", rows, 2)
    store_samples(tmp_path / "b", rows, 3)
    found = diff_folders(tmp_path / "a", tmp_path / "b")
    assert (found.added, found.removed, found.changed) == (0, 0, 0)
    assert len(found.shards) == 5


@pytest.mark.parametrize("what", ["ids", "loss"])
def test_tokens_are_compared_with_their_loss(tmp_path: Path, what: str) -> None:
    rows = [
        TokenRow(key=f"k{n}", ids=np.arange(4), origin=Origin(source="web", path="p", row=n))
        for n in range(3)
    ]
    changed = {"ids": np.arange(4)[::-1], "loss": np.array([[0, 2]])}[what]
    other = replace(rows[1], **{what: changed})  # type: ignore[arg-type]
    before = write_token_folder(tmp_path / "a", [rows])
    after = write_token_folder(tmp_path / "b", [[rows[0], other]])
    found = diff_folders(before, after)
    assert found.examples == {"added": [], "removed": ["k2"], "changed": ["k1"]}
    assert found.num_tokens == (12, 8)
    assert found.mix[0].tokens == (12, 8)


def test_folders_of_two_kinds_are_refused(tmp_path: Path) -> None:
    samples = store_samples(tmp_path / "a", [sample(0, 0)], 2)
    tokens = write_token_folder(tmp_path / "b", [[TokenRow(key="k0", ids=np.arange(2))]])
    with pytest.raises(ConfigError, match=r"holds samples and .* tokens"):
        diff_folders(samples, tokens)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Mixed:
    return make_mixed(tmp_path_factory.mktemp("mixed"), 8)


def opened(folder: Path) -> list[ContentShard]:
    return [open_content(files_of(folder, shard)) for shard in open_manifest(folder).shards]


@pytest.mark.parametrize("name", ["samples", "codes", "tokens"])
def test_rows_have_the_hash_of_their_key_and_a_content(mixed: Mixed, name: str) -> None:
    parts = [fingerprint_shard(shard) for shard in opened(getattr(mixed, name))]
    keys = [row.key for row in mixed.rows]
    found = np.concatenate([part.keys for part in parts])
    assert found.tolist() == hash_keys([key.encode() for key in keys]).tolist()
    if name != "codes":  # of which several samples have none
        contents = np.concatenate([part.content for part in parts])
        assert len(np.unique(contents, axis=0)) == len(keys)


def test_the_mix_is_read_from_indexes(mixed: Mixed) -> None:
    mix = mix_of_shard(opened(mixed.tokens)[0])
    assert mix["source0", "samples"] == 3
    assert mix["source1", "tokens"] == sum(len(row.ids) for row in mixed.rows[1:6:2])


def test_tars_that_were_only_indexed_have_sizes_for_content(mixed: Mixed, tmp_path: Path) -> None:
    stage = IndexTars(tars=(str(mixed.samples / "shards"),))
    run_stage(stage, tmp_path / "index", workers=0)
    assert fingerprint_shard(opened(tmp_path / "index")[0]).content.any(axis=1).all()
