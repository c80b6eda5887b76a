"""The files of `.nv-meta`; that Energon reads them is proved with all formats."""

from __future__ import annotations

import json
import resource
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis.strategies import integers, lists, text
from lossy_export import lossy_export
from mixed_folder import Mixed

from shardmill.errors import ConfigError, FormatError
from shardmill.formats.energon import EnergonFormat, write_index
from shardmill.running.runner import run_stage
from shardmill.shards.ledger import open_manifest
from shardmill.shards.samples import open_samples
from shardmill.shards.tar.index import IndexRows, TarIndex, index_of
from shardmill.stages.check.folder import check_folder


def export(source: Path, out: Path, **fields: Any) -> Path:
    report = run_stage(
        lossy_export(input_dir=source, format=EnergonFormat(**fields), num_shards=4), out, workers=0
    )
    assert report.complete, report.failures
    return out


def test_tables_name_every_sample_and_member(mixed: Mixed, tmp_path: Path) -> None:
    out = export(mixed.tokens, tmp_path / "out", samples=mixed.samples)
    assert check_folder(out).sound
    info = json.loads((out / ".nv-meta" / ".info.json").read_text())
    shards = open_manifest(out).shards
    assert info["shard_counts"] == {s.files["tar"].path: s.num_samples for s in shards}
    with sqlite3.connect(out / ".nv-meta" / "index.sqlite") as database:
        keys = [key for (key,) in database.execute("SELECT sample_key FROM samples")]
        assert keys == [row.key for row in mixed.rows]
        query = "SELECT content_byte_offset, content_byte_size FROM sample_parts p JOIN samples s"
        query += " USING (tar_file_id, sample_index) WHERE sample_key = ? AND part_name = ?"
        offset, size = database.execute(query, (mixed.rows[1].key, "0.jpg")).fetchone()
    samples = open_samples(out)
    number = samples.find(mixed.rows[1].key)
    assert number is not None
    tar = out / shards[samples.locate(number)[0]].files["tar"].path
    assert tar.read_bytes()[offset : offset + size] == samples.raw(number)["0.jpg"]


def test_the_last_tars_are_for_validation(mixed: Mixed, tmp_path: Path) -> None:
    out = export(mixed.tokens, tmp_path / "out", val=0.25, test=0.25)
    parts = json.loads((out / ".nv-meta" / "split.yaml").read_text())["split_parts"]
    assert [len(parts[name]) for name in ("train", "val", "test")] == [2, 1, 1]
    assert [*parts["train"], *parts["val"], *parts["test"]] == sorted(
        tar for tars in parts.values() for tar in tars
    )


def test_running_again_makes_the_same_bytes(mixed: Mixed, tmp_path: Path) -> None:
    first, second = (export(mixed.packs, tmp_path / name) for name in "ab")
    for path in sorted((first / ".nv-meta").iterdir()):
        assert path.read_bytes() == (second / ".nv-meta" / path.name).read_bytes(), path.name


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"val": 0.8, "test": 0.3}, "shares"),
        ({"layout": "dashed"}, "dotted"),
    ],
)
def test_settings_that_cannot_be_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EnergonFormat(**fields)


def test_captioning_needs_pairs(mixed: Mixed, tmp_path: Path) -> None:
    for source, message in ((mixed.tokens, "holds tokens"), (mixed.samples, "not an image and a")):
        stage = lossy_export(input_dir=source, format=EnergonFormat(sample_type="captioning"))
        with pytest.raises(ConfigError, match=message):
            list(stage.units())


EXTS = ["json", "0.jpg", "input_ids.npy"]


def make_tar(keys: Sequence[str], place: str = "tar", step: int = 1024) -> TarIndex:
    """Return the index of a tar whose samples have one to three members."""
    rows, end = IndexRows(), 0
    for number, key in enumerate(keys):
        count = 1 + number % len(EXTS)
        offsets = [512 + step * member for member in range(count)]
        rows.add(key, end, EXTS[:count], offsets, range(count))
        end += max(step, 512) * count
    return index_of(rows.arrays(Path(place), end=end, num_bytes=end + 1024))


def ask(path: Path, statement: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as database:
        return database.execute(statement).fetchall()


def samples_of(tars: Sequence[TarIndex]) -> list[Any]:
    return [
        (tar, key, number, int(start), int(end - start))
        for tar, index in enumerate(tars)
        for number, (key, start, end) in enumerate(
            zip(index.keys, index.arrays["start"], index.arrays["start"][1:])
        )
    ]


def parts_of(tars: Sequence[TarIndex]) -> list[Any]:
    return [
        (tar, number, member.ext, member.offset, member.size)
        for tar, index in enumerate(tars)
        for number in range(len(index))
        for member in index.members(number)
    ]


def check(path: Path, tars: Sequence[TarIndex]) -> None:
    assert ask(path, "PRAGMA integrity_check") == [("ok",)]
    assert ask(path, "SELECT * FROM samples") == samples_of(tars)
    assert ask(path, "SELECT * FROM sample_parts") == parts_of(tars)


KEYS = text("ab/é音", min_size=1, max_size=60)


@settings(max_examples=30)
@given(
    names=lists(KEYS, max_size=30, unique=True),
    cuts=lists(integers(0, 30), max_size=3),
    step=integers(9, 31),
)
def test_tables_have_every_sample_and_member(
    tmp_path_factory: pytest.TempPathFactory, names: list[str], cuts: list[int], step: int
) -> None:
    bounds = [0, *sorted(min(cut, len(names)) for cut in cuts), len(names)]
    tars = [make_tar(names[a:b], step=1 << step) for a, b in pairwise(bounds)]
    path = tmp_path_factory.mktemp("made") / "index.sqlite"
    write_index(path, iter(tars))
    check(path, tars)


@pytest.mark.parametrize("counts", [[], [0], [1], [0, 3, 0], [4000, 0, 3000]])
def test_few_and_many_samples(tmp_path: Path, counts: list[int]) -> None:
    tars = [make_tar([f"{t}-{n:06d}" for n in range(count)]) for t, count in enumerate(counts)]
    write_index(tmp_path / "index.sqlite", iter(tars))
    check(tmp_path / "index.sqlite", tars)


@pytest.mark.parametrize(
    ("query", "used"),
    [
        ("samples WHERE sample_key = 'a'", "samples_by_key (sample_key=?)"),
        ("samples WHERE tar_file_id = 1 AND sample_index = 2", "PRIMARY KEY"),
        ("sample_parts WHERE tar_file_id = 1 AND sample_index = 2", "PRIMARY KEY"),
    ],
)
def test_what_energon_asks_for_is_searched(tmp_path: Path, query: str, used: str) -> None:
    write_index(tmp_path / "index.sqlite", iter([make_tar("ab")]))
    [plan] = ask(tmp_path / "index.sqlite", f"EXPLAIN QUERY PLAN SELECT * FROM {query}")
    assert "SEARCH" in plan[-1] and used in plan[-1]


def assert_refused(folder: Path, tars: Sequence[TarIndex], message: str) -> None:
    with pytest.raises(FormatError, match=message):
        write_index(folder / "index.sqlite", iter(tars))
    assert not list(folder.iterdir())


def test_a_key_in_two_tars_is_named(tmp_path: Path) -> None:
    tars = [make_tar(keys, f"tar-{n}") for n, keys in enumerate(["ab", "cd", "eb"])]
    assert_refused(tmp_path, tars, "tar-2: has key 'b', which tar-0 has already")


def test_a_key_that_is_no_text_is_refused(tmp_path: Path) -> None:
    tars = [make_tar(["a"]), make_tar(["b", "\udcff"], "tar-1")]
    assert_refused(tmp_path, tars, "tar-1: a key is not UTF-8")


def test_members_at_one_place_are_refused(tmp_path: Path) -> None:
    rows = IndexRows()
    rows.add("a", 0, ["json", "txt"], [512, 512], [0, 0])
    index = index_of(rows.arrays(Path("tar"), end=512, num_bytes=1024))
    assert_refused(tmp_path, [index], "two members lie at the same byte")


@pytest.mark.parametrize("missing", [400_000, 20_000])
def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path, missing: int) -> None:
    path, tars = tmp_path / "index.sqlite", [make_tar([f"{n:06d}" for n in range(8000)])]
    write_index(path, iter(tars))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    # First the tables are written, then the keys, which are the last 130,000 bytes.
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size - missing, limits[1]))
    path.unlink()
    try:
        with pytest.raises(OSError, match="cannot write"):
            write_index(path, iter(tars))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.iterdir())
