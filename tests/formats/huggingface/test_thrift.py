"""The compact protocol, by its own examples."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmill.formats.huggingface.thrift import binary, i32, i64, listed, struct, varint


def read_varint(content: bytes) -> int:
    assert all(byte & 0x80 for byte in content[:-1])
    assert not content[-1] & 0x80
    return sum((byte & 0x7F) << 7 * place for place, byte in enumerate(content))


@given(st.integers(0, 2**63))
def test_numbers_have_seven_bits_a_byte(number: int) -> None:
    assert read_varint(varint(number)) == number


@pytest.mark.parametrize(("number", "content"), [(0, 0), (-1, 1), (1, 2), (-2, 3), (2, 4)])
def test_signs_alternate(number: int, content: int) -> None:
    assert i32(number) == (5, bytes([content]))
    assert i64(number) == (6, bytes([content]))


def test_fields_count_from_the_one_before() -> None:
    kind, content = struct({1: i32(1), 2: None, 4: binary("ab"), 5: struct({3: i64(-1)})})
    assert kind == 12
    assert content == bytes([0x15, 2, 0x38, 2, *b"ab", 0x1C, 0x36, 1, 0, 0])


def test_long_lists_have_their_length_after_the_type() -> None:
    assert listed([i32(1)] * 2) == (9, bytes([0x25, 2, 2]))
    assert listed([i32(1)] * 14)[1][0] == 0xE5
    assert listed([i32(1)] * 15) == (9, bytes([0xF5, 15]) + b"\2" * 15)
    assert listed([i32(0)] * 200)[1][:3] == bytes([0xF5, 0xC8, 1])
    assert listed([]) == (9, bytes([12]))
