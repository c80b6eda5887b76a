from __future__ import annotations

import pytest

from shardmill.errors import SampleError
from shardmill.media.sizes import probe


def element(kind: int, body: bytes) -> bytes:
    length = (kind.bit_length() + 7) // 8
    return kind.to_bytes(length, "big") + (1 << 56 | len(body)).to_bytes(8, "big") + body


def test_blocks_in_groups_are_frames_too() -> None:
    video = element(0xE0, element(0xB0, b"\x40") + element(0xBA, b"\x30"))
    track = element(0xAE, element(0xD7, b"\x01") + element(0x83, b"\x01") + video)
    group = element(0xA0, element(0xA1, b"\x81\0\0\0frame"))
    other = element(0xA3, b"\x82\0\0\0sound")
    cluster = element(0x1F43B675, group * 3 + other + element(0xA3, b"\x81\0\0\0frame"))
    segment = element(0x18538067, element(0x1654AE6B, track) + cluster * 2)
    size = probe("video", element(0x1A45DFA3, b"") + segment).size
    assert (size.width, size.height, size.num_frames) == (64, 48, 8)


def test_clusters_inside_of_clusters_do_no_harm() -> None:
    deep = b"".join(b"\x1f\x43\xb6\x75\xff" for _ in range(100_000))
    with pytest.raises(SampleError, match="not a video"):
        probe("video", element(0x1A45DFA3, b"") + b"\x18\x53\x80\x67\xff" + deep)
