"""Prefixes are read as their index says; what lies outside of the files is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shardmill.errors import ConfigError, FormatError
from shardmill.formats.megatron import MegatronReader
from shardmill.shards.tokens.ids import write_megatron_index


def write_prefix(prefix: Path, documents: list[list[list[int]]], dtype: str = "<u2") -> Path:
    sequences = [sequence for document in documents for sequence in document]
    starts = np.cumsum([0, *(len(document) for document in documents)])[:-1]
    joined = np.array([token for sequence in sequences for token in sequence], dtype)
    prefix.with_name(prefix.name + ".bin").write_bytes(joined.tobytes())
    lengths = np.array([len(sequence) for sequence in sequences])
    with prefix.with_name(prefix.name + ".idx").open("wb") as file:
        write_megatron_index(file, np.dtype(dtype), lengths, starts)
    return prefix


def test_documents_and_their_sequences_come_back(tmp_path: Path) -> None:
    write_prefix(tmp_path / "a.b", [[[1, 2], [3]], [[4, 5, 6]]], "<i4")
    reader = MegatronReader(files=(str(tmp_path / "a.b"),))
    (part,) = reader.parts()
    first, second = reader.read(part.input)
    assert [row.ids.tolist() for row in first.rows] == [[1, 2], [3]]
    assert [row.key for row in first.rows] == ["a_b-00000000", "a_b-00000000~1"]
    assert [row.continues for row in first.rows] == [False, True]
    assert second.ids().tolist() == [4, 5, 6]
    assert part.num_records == 2


@pytest.mark.parametrize("given", ["x.idx", "x.bin", "x", "", "*.idx"])
def test_a_prefix_may_be_given_in_any_way(tmp_path: Path, given: str) -> None:
    write_prefix(tmp_path / "x", [[[1]]])
    place = str(tmp_path / given) if given else str(tmp_path)
    assert MegatronReader(files=(place, place)).prefixes() == [tmp_path / "x"]


def test_a_cut_off_file_is_named(tmp_path: Path) -> None:
    write_prefix(tmp_path / "x", [[[1, 2, 3]]])
    (tmp_path / "x.bin").write_bytes(b"\1\0")
    reader = MegatronReader(files=(str(tmp_path / "x"),))
    (part,) = reader.parts()
    with pytest.raises(FormatError, match=r"x\.bin: sequence 0 has 3 ids .* cut off"):
        list(reader.read(part.input))


def test_a_missing_half_is_named(tmp_path: Path) -> None:
    write_prefix(tmp_path / "x", [[[1]]])
    (tmp_path / "x.bin").unlink()
    with pytest.raises(FormatError, match=r"x\.bin: is missing"):
        list(MegatronReader(files=(str(tmp_path / "x"),)).parts())
    with pytest.raises(ConfigError, match=r"no \.idx files"):
        MegatronReader(files=(str(tmp_path / ".."),)).prefixes()


def test_bounds_that_do_not_rise_are_refused(tmp_path: Path) -> None:
    write_prefix(tmp_path / "x", [[[1]], [[2]]])
    raw = (tmp_path / "x.idx").read_bytes()
    (tmp_path / "x.idx").write_bytes(raw[:-24] + np.array([0, 9, 2], "<i8").tobytes())
    with pytest.raises(FormatError, match="bounds"):
        list(MegatronReader(files=(str(tmp_path / "x"),)).parts())
