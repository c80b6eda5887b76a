from __future__ import annotations

import gzip
import random
import tracemalloc
from pathlib import Path

import pytest
import xxhash
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from shardmill.errors import FormatError
from shardmill.sources import stream
from shardmill.sources.stream import (
    Span,
    Streams,
    TableRecord,
    cut,
    open_stream,
    too_long,
)

CONTENT = bytes(random.Random(1).choices(b"abc\n", k=300_000))


def compressed(suffix: str, content: bytes = CONTENT) -> bytes:
    return {".gz": gzip.compress, ".zst": zstandard.compress, "": bytes}[suffix](content)


@pytest.fixture(params=["", ".gz", ".zst"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    found = tmp_path / f"data{request.param}"
    found.write_bytes(compressed(request.param))
    return found


def test_a_stream_gives_the_content(path: Path) -> None:
    with open_stream(path) as file:
        assert file.read() == CONTENT


def test_streams_stand_where_they_are_told(path: Path) -> None:
    streams = Streams()
    for offset in (0, 10, 70_000, 69_000, 299_999, 5):
        assert streams.at(path, offset).read(20) == CONTENT[offset : offset + 20]
    streams.close()


def test_parts_in_order_open_a_file_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Path] = []
    monkeypatch.setattr(stream, "open_stream", lambda p: opened.append(p) or open_stream(p))
    streams = Streams()
    for offset in range(0, 300_000, 10_000):
        span = Span(streams.at(path, offset), 5_000)
        while span.read(777):
            pass
    assert opened == [path]
    streams.close()


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_frames_one_after_the_other_are_one_content(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"two{suffix}"
    path.write_bytes(compressed(suffix) + compressed(suffix, b"end"))
    with open_stream(path) as file:
        assert file.read() == CONTENT + b"end"


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_file_that_was_cut_off_is_an_error_not_an_end(suffix: str, tmp_path: Path) -> None:
    whole = compressed(suffix)
    path = tmp_path / f"cut{suffix}"
    for length in (3, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(FormatError), open_stream(path) as file:
            file.read()


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_damage_names_the_file_and_the_place(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"bad{suffix}"
    path.write_bytes(b"nonsense" * 100)
    with pytest.raises(FormatError) as error, open_stream(path) as file:
        file.read()
    assert str(path) in str(error.value)
    assert error.value.offset is not None


def test_a_bomb_is_inflated_bit_by_bit(tmp_path: Path) -> None:
    path = tmp_path / "bomb.zst"
    path.write_bytes(zstandard.compress(bytes(1 << 28)))
    tracemalloc.start()
    with open_stream(path) as file:
        file.read(100)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 80 << 20


def test_a_file_that_shrank_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "short.gz"
    path.write_bytes(gzip.compress(b"short"))
    with pytest.raises(FormatError, match="is shorter than when it was listed"):
        Streams().at(path, 100)


def test_zeros_after_a_gzip_member_are_padding(tmp_path: Path) -> None:
    path = tmp_path / "padded.gz"
    path.write_bytes(gzip.compress(b"text") + bytes(5000))
    with open_stream(path) as file:
        assert file.read() == b"text"


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    for name in ("gone.jsonl", "gone.jsonl.gz"):
        with pytest.raises(FormatError, match=r"gone\.jsonl.*cannot be opened"):
            open_stream(tmp_path / name)


@given(st.lists(st.binary(min_size=1, max_size=9), max_size=30), st.integers(1, 8))
def test_slices_cover_all_records_and_only_the_last_is_short(
    raws: list[bytes], per_slice: int
) -> None:
    records, offset = [], 0
    for number, raw in enumerate(raws):
        records.append(TableRecord(number, offset, len(raw), raw))
        offset += len(raw)
    slices = list(cut(records, per_slice))
    assert sum(piece.num_rows for piece in slices) == len(raws)
    assert all(piece.num_rows == per_slice for piece in slices[:-1])
    whole = b"".join(raws)
    for piece in slices:
        content = whole[piece.offset : piece.end]
        assert piece.checksum.hexdigest() == xxhash.xxh3_64_hexdigest(content)


def test_a_record_says_where_it_is() -> None:
    record = too_long(TableRecord(2, 70, 500), 100)
    assert record.place == "row 3 at byte 70"
    assert str(record.problem) == "row too long: row 3 at byte 70: 500 bytes, the limit is 100"
