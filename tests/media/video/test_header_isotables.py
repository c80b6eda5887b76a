from __future__ import annotations

from dataclasses import dataclass
from struct import pack, pack_into

import pytest
from hypothesis import given
from hypothesis import strategies as st
from numbered_video import numbered_clip

from shardmill.errors import SampleError
from shardmill.media.video.file import open_video
from shardmill.media.video.header import MAX_MOOV_BYTES, check_claims, read_moov


@dataclass
class File:
    content: bytes

    @property
    def num_bytes(self) -> int:
        return len(self.content)

    def read(self, start: int, length: int) -> bytes:
        return self.content[start : start + length]


def box(kind: bytes, content: bytes) -> bytes:
    return pack(">I4s", 8 + len(content), kind) + content


def test_the_index_is_found_wherever_it_lies() -> None:
    moov, rest = b"index, long enough", box(b"mdat", b"x" * 40)
    large = pack(">I4sQ", 1, b"mdat", 16 + 5) + b"12345"
    to_the_end = pack(">I4s", 0, b"moov") + moov
    for content in (
        box(b"moov", moov) + rest,
        rest + box(b"moov", moov) + rest,
        large + box(b"moov", moov),
        rest + to_the_end,
    ):
        assert read_moov(File(content)) == moov


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"short",
        box(b"mdat", b"y" * 99),
        pack(">I4s", 4, b"mdat") * 9,
        pack(">I4s", MAX_MOOV_BYTES + 1, b"moov") + b"z" * 99,
        pack(">I4sQ", 1, b"mdat", 1 << 63) + b"z" * 99,
    ],
)
def test_what_has_no_index_has_none(content: bytes) -> None:
    assert read_moov(File(content)) == b""
    check_claims(File(content))


@given(st.binary(max_size=200))
def test_any_bytes_can_be_looked_at(content: bytes) -> None:
    read_moov(File(content))
    check_claims(File(content))


def claiming(count: int, size: int) -> bytes:
    """Return a clip whose index says that it has so many packets of one size."""
    content = bytearray(numbered_clip())
    pack_into(">II", content, content.index(b"stsz") + 8, size, count)
    return bytes(content)


@pytest.mark.parametrize("claim", [(4_000, 1), (1 << 32 - 1, 1), (2, 3_000), (61, 0), (10**6, 0)])
def test_claims_beyond_the_file_are_refused_before_room_is_made(claim: tuple[int, int]) -> None:
    with (
        pytest.raises(SampleError, match="absurd number of frames"),
        open_video(claiming(*claim)),
    ):
        pass


def test_honest_claims_pass() -> None:
    for content in (numbered_clip(), numbered_clip(sound=True), claiming(30, 100)):
        check_claims(File(content))
