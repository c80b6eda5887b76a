"""One shard: numbers, keys, order, and what happens when tar and index do not fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardmill.errors import FormatError, SampleError
from shardmill.shards import samples as samples_module
from shardmill.shards.samples import open_foreign, open_shard, parse_sample
from shardmill.shards.tar.index import IndexRows
from shardmill.shards.tar.write import TarWriter


def make_shard(folder: Path, num: int = 20, size: int = 700) -> tuple[str, Path]:
    """Write a tar of samples and its index."""
    path, rows = folder / "x.tar", IndexRows()
    with TarWriter(path) as tar:
        for number in range(num):
            members = [("jpg", b"%03d" % number + bytes(size)), ("txt", b"t%d" % number)]
            start, planned = tar.add(f"k{number}", members)
            rows.add(f"k{number}", start, planned.exts, planned.offsets, planned.sizes)
        end = tar.num_bytes
    rows.write(folder / "x.idx", end=end, num_bytes=tar.num_bytes)
    return str(path), folder / "x.idx"


def test_numbers_and_keys(tmp_path: Path) -> None:
    with open_shard(*make_shard(tmp_path)) as shard:
        assert len(shard) == 20
        assert bytes(shard.raw(7)["jpg"][:3]) == b"007"
        assert shard.find("k13") == 13
        assert shard.find("k99") is None
        for number in (-1, 20, 1 << 70):
            with pytest.raises(IndexError):
                shard.raw(number)


@pytest.mark.parametrize("chunk_bytes", [1, 3000, 1 << 20])
def test_reading_in_order_gives_the_same_as_by_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int
) -> None:
    monkeypatch.setattr(samples_module, "CHUNK_BYTES", chunk_bytes)
    with open_shard(*make_shard(tmp_path)) as shard:
        in_order = [(key, {e: bytes(v) for e, v in raw.items()}) for key, raw in shard.iter_raw()]
        by_number = [{e: bytes(v) for e, v in shard.raw(i).items()} for i in range(20)]
        assert in_order == [(f"k{i}", raw) for i, raw in enumerate(by_number)]
        assert [key for key, _ in shard.iter_raw(5, 8)] == ["k5", "k6", "k7"]


def test_a_tar_of_another_size_than_its_index_is_refused(tmp_path: Path) -> None:
    url, index_path = make_shard(tmp_path)
    with Path(url).open("ab") as file:
        file.write(bytes(512))
    with pytest.raises(FormatError, match="make the index again"):
        open_shard(url, index_path)


def test_a_foreign_tar_that_is_damaged_is_refused(tmp_path: Path) -> None:
    url, _ = make_shard(tmp_path)
    data = bytearray(Path(url).read_bytes())
    data[2560 + 5] ^= 1
    Path(url).write_bytes(data)
    with pytest.raises(FormatError, match=r"x\.tar, at byte 2560"):
        open_foreign(url)


@pytest.mark.parametrize("raw", [{}, {"json": memoryview(b'{"caption": "theirs"}')}])
def test_a_sample_of_others_is_refused_with_what_to_do(raw: dict) -> None:
    with pytest.raises(SampleError, match="shardmill ingest"):
        parse_sample("a", raw)


@pytest.mark.parametrize(
    "raw", [{}, {"json": memoryview(b"{")}, {"json": memoryview(b"[]")}, {"json": memoryview(b"1")}]
)
def test_what_is_no_document_is_a_sample_error(raw: dict) -> None:
    with pytest.raises(SampleError, match="not a document"):
        parse_sample("a", raw)


def test_views_stay_valid_after_close(tmp_path: Path) -> None:
    shard = open_shard(*make_shard(tmp_path))
    raw = shard.raw(3)
    shard.close()
    assert bytes(raw["txt"]) == b"t3"
