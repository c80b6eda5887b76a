"""The index of a tar: what goes in comes out, by number and by key; damage is our error only."""

from __future__ import annotations

import tempfile
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import booleans, lists
from tars import samples

from shardmill.errors import FormatError
from shardmill.model.sample import Document, MediaSize, Origin, Sample, Segment
from shardmill.model.stage import Draft
from shardmill.shards.arrays import open_arrays, write_arrays
from shardmill.shards.samples import SampleWriter, open_foreign, open_shard
from shardmill.shards.tar import index as tar_index
from shardmill.shards.tar.index import (
    FORMAT,
    IndexRows,
    PlainMemberTable,
    TarIndex,
    cut_tar,
    open_tar_index,
)


def write_index(path: Path, named: dict[str, dict[str, bytes]]) -> int:
    """Write the index of a made-up tar and return the tar's size."""
    rows, position = IndexRows(), 0
    for key, members in named.items():
        sizes = [len(content) for content in members.values()]
        offsets = [512 + 4096 * i for i in range(len(sizes))]
        rows.add(key, position, members, offsets, sizes)
        position += 4096 * len(sizes)
    rows.write(path, end=position, num_bytes=position + 1024)
    return position + 1024


@given(samples)
def test_members_come_back_by_number_and_by_key(named: dict) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.idx"
        num_bytes = write_index(path, named)
        index = open_tar_index(path)
        assert list(index.keys) == list(named)
        assert (len(index), index.num_bytes) == (len(named), num_bytes)
        for number, (key, members) in enumerate(named.items()):
            assert index.find(key) == number
            found = index.members(number)
            assert [m.ext for m in found] == list(members)
            assert [m.size for m in found] == [len(c) for c in members.values()]
            assert index.span(number) == (found[0].offset, found[-1].offset + found[-1].size)
        assert index.find_all([*named, "absent"]).tolist() == [*range(len(named)), -1]


def test_columns_are_zero_where_nothing_is_known(tmp_path: Path) -> None:
    write_index(tmp_path / "x.idx", {"a": {"jpg": b"1", "txt": b"2"}, "b": {"jpg": b"3"}})
    index = open_tar_index(tmp_path / "x.idx")
    assert index.column("width").tolist() == [0, 0, 0]
    assert index.column("text_chars").tolist() == [0, 0]
    assert index.column("content").tolist() == [[0, 0], [0, 0]]
    assert index.sources == ("",)


def test_columns_come_back(tmp_path: Path) -> None:
    rows = IndexRows()
    rows.add("a", 0, ["json", "mp4"], [512, 1536], [2, 3])
    video = MediaSize(width=4, height=3, num_frames=60, fps=29.97, duration_s=2.5)
    rows.describe([None, video], 7, (5 << 64) + 6, "web")
    rows.write(tmp_path / "x.idx", end=4096, num_bytes=5120)
    index = open_tar_index(tmp_path / "x.idx")
    assert index.column("width").tolist() == [0, 4]
    assert index.column("num_frames").tolist() == [0, 60]
    assert index.column("fps").tolist() == [0.0, 29.97]
    assert index.column("text_chars").tolist() == [7]
    assert index.column("content").tolist() == [[5, 6]]
    assert index.sources[index.column("source")[0]] == "web"


def test_keys_with_equal_hashes_are_told_apart(tmp_path: Path) -> None:
    write_index(tmp_path / "x.idx", {"a": {"jpg": b""}, "b": {"jpg": b""}, "c": {"jpg": b""}})
    arrays = open_arrays(tmp_path / "x.idx", FORMAT)
    same = {**arrays.arrays, "hash": np.full(3, open_tar_index(arrays.path).arrays["hash"][0])}
    with (tmp_path / "y.idx").open("wb") as file:
        write_arrays(file, FORMAT, same, arrays.meta)
    index = open_tar_index(tmp_path / "y.idx")
    first = next(key for key in "abc" if index.find(key) is not None)
    assert index.find(first) == "abc".index(first)


def test_too_many_extensions_are_refused(tmp_path: Path) -> None:
    rows = IndexRows()
    for number in range(65537):
        rows.add(str(number), 0, [f"e{number}"], [0], [0])
    with pytest.raises(FormatError, match="dots in the keys"):
        rows.write(tmp_path / "x.idx", end=0, num_bytes=1024)


CHANGES = {
    "first": ([0, 1, 5], "first"),
    "offset": ([512, 1 << 63, 4608], "outside"),
    "size": ([1, 1 << 63, 1], "outside"),
    "ext": ([0, 9, 0], "extension"),
    "start": ([9000, 4096, 8192], "order"),
    "hash_order": ([0, 7], "order"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_numbers_that_point_outside_are_refused(tmp_path: Path, name: str) -> None:
    write_index(tmp_path / "x.idx", {"a": {"jpg": b"1", "txt": b"2"}, "b": {"jpg": b"3"}})
    arrays = open_arrays(tmp_path / "x.idx", FORMAT)
    values, problem = CHANGES[name]
    changed = {**arrays.arrays, name: np.array(values, arrays[name].dtype)}
    with (tmp_path / "y.idx").open("wb") as file:
        write_arrays(file, FORMAT, changed, arrays.meta)
    with pytest.raises(FormatError, match=problem):
        open_tar_index(tmp_path / "y.idx")


@pytest.mark.parametrize("name", [*CHANGES, "hash", "key_bytes", "ext_bounds"])
def test_missing_arrays_and_wrong_types_are_refused(tmp_path: Path, name: str) -> None:
    write_index(tmp_path / "x.idx", {"a": {"jpg": b"1"}})
    arrays = open_arrays(tmp_path / "x.idx", FORMAT)
    without = {k: v for k, v in arrays.items() if k != name}
    for changed in (without, {**arrays, name: arrays[name].astype(np.float64)}):
        with (tmp_path / "y.idx").open("wb") as file:
            write_arrays(file, FORMAT, changed, arrays.meta)
        with pytest.raises(FormatError):
            open_tar_index(tmp_path / "y.idx")


@given(
    samples,
    st.lists(st.tuples(st.integers(0, 1 << 16), st.binary(min_size=1, max_size=9))),
    st.integers(0, 1 << 14),
)
def test_damage_gives_our_errors_only(named: dict, damage: list, cut: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.idx"
        write_index(path, named)
        data = bytearray(path.read_bytes())
        for at, patch in damage:
            at %= len(data)
            data[at : at + len(patch)] = patch[: len(data) - at]
        path.write_bytes(data[: len(data) - cut % 64])
        try:
            use_everything(open_tar_index(path))
        except FormatError as error:
            assert str(path) in str(error)


def use_everything(index: TarIndex) -> None:
    """Ask an index for all it knows; nothing may lie outside of its tar."""
    for number in range(len(index)):
        for member in index.members(number):
            assert 0 <= member.offset <= member.offset + member.size <= index.num_bytes
        index.find(index.keys[number])


EXTS = ("json", "jpg", "0.png")
TABLES = [PlainMemberTable] + ([tar_index._members.MemberTable] if tar_index._members else [])


def columns(samples: list[list[int]], gap: int) -> tuple[Any, ...]:
    """Return the columns of samples whose members have these sizes, with a gap before each."""
    sizes = [size for sample in samples for size in sample]
    offsets = [start + gap for start in accumulate((size + gap for size in sizes), initial=0)]
    exts = [number % len(EXTS) for sample in samples for number in range(len(sample))]
    first = list(accumulate(map(len, samples), initial=0))
    return (
        np.array(first, np.uint64).data,
        np.array(offsets[:-1], np.uint64).data,
        np.array(sizes, np.uint64).data,
        np.array(exts, np.uint16).data,
        EXTS,
    )


SAMPLES = st.lists(st.lists(st.integers(0, 9000), min_size=1, max_size=3), min_size=1, max_size=6)


@pytest.mark.parametrize("table", TABLES)
@settings(max_examples=60, deadline=None)
@given(samples=SAMPLES, gap=st.integers(0, 600), base=st.integers(0, 600))
def test_members_are_the_bytes_at_their_places(
    table: Any, samples: list[list[int]], gap: int, base: int
) -> None:
    made = columns(samples, gap)
    tar = np.random.default_rng(1).bytes(sum(map(sum, samples)) + gap * len(made[1]) + 1)
    base = min(base, gap)
    chunk, cut = memoryview(tar)[base:], table(*made)
    for number, sizes in enumerate(samples):
        first = made[0][number]
        wanted = {
            EXTS[i]: tar[made[1][first + i] : made[1][first + i] + size]
            for i, size in enumerate(sizes)
        }
        views, copies = cut.views(number, chunk, base), cut.copies(number, chunk, base)
        assert copies == wanted
        assert list(copies) == list(views) == list(wanted)
        assert all(type(view) is memoryview and view.obj is tar for view in views.values())
        assert all(type(content) is bytes for content in copies.values())
        assert {ext: bytes(view) for ext, view in views.items()} == wanted


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("number", [-1, 2, 1 << 40])
def test_a_number_outside_the_tar_is_an_index_error(table: Any, number: int) -> None:
    cut = table(*columns([[3], [4]], 0))
    with pytest.raises(IndexError, match="of 2"):
        cut.views(number, memoryview(b"1234567"), 0)


@pytest.mark.skipif(len(TABLES) == 1, reason="the compiled table is not built")
def test_the_compiled_table_reads_nothing_outside_its_memory() -> None:
    first, offset, size, ext, exts = columns([[3], [4]], 0)
    make, chunk = TABLES[-1], memoryview(b"1234567")
    with pytest.raises(IndexError, match="outside"):
        make(first, offset, size, ext, exts).copies(1, chunk[:6], 0)
    with pytest.raises(IndexError, match="outside"):
        make(first, offset, size, ext, exts).copies(0, chunk, 1)
    with pytest.raises(IndexError, match="extension"):
        make(first, offset, size, ext, ()).views(0, chunk, 0)
    beyond = np.array([0, 1, 1 << 50], np.uint64).data
    with pytest.raises(IndexError):
        make(beyond, offset, size, ext, exts).views(1, chunk, 0)
    with pytest.raises(ValueError, match="differ"):
        make(first, offset, size[:1], ext, exts)
    with pytest.raises(TypeError):
        make(first, offset, size, ext)
    with pytest.raises(IndexError):
        make.__new__(make).views(0, chunk, 0)


def sample(number: int) -> Sample:
    name = "jpg" if number % 3 else f"{number}.png"
    segments = (Segment(kind="image", media=name), Segment(kind="text", text="x" * number))
    return Sample(
        # Every fourth name is so long that it takes a PAX header.
        key=f"k{number}" + "y" * (150 if number % 4 == 0 else 0),
        document=Document(segments),
        media={name: bytes(range(number, number + 37))},
        origin=Origin(source=f"s{number % 2}", path="p", row=number),
    )


def write(folder: Path, numbers: list[int]) -> tuple[Path, Path]:
    folder.mkdir()
    with SampleWriter(Draft(folder), lambda _: "0") as writer:
        for number in numbers:
            made = sample(number)
            writer.add(made, dict.fromkeys(made.media, MediaSize(width=number + 1, height=2)))
    return folder / "0.tar", folder / "0.idx"


@settings(max_examples=30)
@given(lists(booleans(), min_size=1, max_size=12).filter(any))
def test_a_cut_shard_is_the_shard_of_the_others(keep: list[bool]) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        tar, index = write(folder / "all", list(range(len(keep))))
        cut_tar(tar, index, np.array(keep), folder / "cut.tar", folder / "cut.idx")
        wanted_tar, wanted_index = write(folder / "kept", [n for n, k in enumerate(keep) if k])
        assert (folder / "cut.tar").read_bytes() == wanted_tar.read_bytes()
        cut, wanted = open_tar_index(folder / "cut.idx"), open_tar_index(wanted_index)
        assert list(cut.keys) == list(wanted.keys)
        for number in range(len(cut)):
            assert cut.members(number) == wanted.members(number)
            assert cut.find(cut.keys[number]) == number
        for column in ("width", "text_chars", "content"):
            assert np.array_equal(cut.column(column), wanted.column(column))
        sources = [[i.sources[s] for s in i.column("source")] for i in (cut, wanted)]
        assert sources[0] == sources[1]
        with open_shard(str(folder / "cut.tar"), folder / "cut.idx") as shard:
            assert [s.key for s in shard] == [sample(n).key for n, k in enumerate(keep) if k]


def test_a_shard_that_loses_all_is_an_empty_tar(tmp_path: Path) -> None:
    tar, index = write(tmp_path / "all", [1, 2])
    cut_tar(tar, index, np.zeros(2, bool), tmp_path / "c.tar", tmp_path / "c.idx")
    shard, grouped = open_foreign(str(tmp_path / "c.tar"))
    with shard:
        assert len(shard) == len(grouped.bad) == 0
    assert len(open_tar_index(tmp_path / "c.idx")) == 0


def test_a_tar_that_is_not_as_its_index_says_is_refused(tmp_path: Path) -> None:
    tar, index = write(tmp_path / "all", [1, 2])
    tar.write_bytes(tar.read_bytes()[:-512])
    with pytest.raises(FormatError, match="bytes of its index"):
        cut_tar(tar, index, np.ones(2, bool), tmp_path / "c.tar", tmp_path / "c.idx")
