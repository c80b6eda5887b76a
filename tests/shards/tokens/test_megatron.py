"""The index has Megatron's bytes."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from shardmill.errors import FormatError
from shardmill.shards.tokens.megatron import open_index, write_index


def test_the_bytes_are_those_of_the_layout(tmp_path: Path) -> None:
    path = tmp_path / "a.idx"
    with path.open("wb") as file:
        write_index(file, np.dtype("<u2"), np.array([3, 0, 5]), np.array([0, 2]))
    assert path.read_bytes() == b"".join(
        [
            b"MMIDIDX\x00\x00",
            struct.pack("<Q", 1),
            struct.pack("<B", 8),
            struct.pack("<QQ", 3, 3),
            struct.pack("<3i", 3, 0, 5),
            struct.pack("<3q", 0, 6, 6),
            struct.pack("<3q", 0, 2, 3),
        ]
    )
    index = open_index(path)
    assert index.dtype == np.dtype("<u2")
    assert index.lengths.tolist() == [3, 0, 5]
    assert index.offsets.tolist() == [0, 6, 6]
    assert index.documents.tolist() == [0, 2, 3]


def test_an_empty_index_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "a.idx"
    with path.open("wb") as file:
        write_index(file, np.dtype("<i4"), np.array([], int), np.array([], int))
    assert open_index(path).documents.tolist() == [0]


@pytest.mark.parametrize(
    ("at", "value"), [(0, 0), (9, 2), (17, 9), (17, 0), (18, 4), (24, 255), (26, 9)]
)
def test_a_wrong_header_is_an_error(tmp_path: Path, at: int, value: int) -> None:
    path = tmp_path / "a.idx"
    with path.open("wb") as file:
        write_index(file, np.dtype("<u2"), np.array([3]), np.array([0]))
    raw = bytearray(path.read_bytes())
    raw[at] = value
    path.write_bytes(raw)
    with pytest.raises(FormatError):
        open_index(path)
