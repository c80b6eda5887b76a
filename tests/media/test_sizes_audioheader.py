from __future__ import annotations

import pytest

from shardmill.media.sizes import probe


def test_a_wav_tells_its_duration() -> None:
    rate = 8000
    form = b"fmt " + (16).to_bytes(4, "little") + b"\1\0\1\0" + rate.to_bytes(4, "little")
    form += (2 * rate).to_bytes(4, "little") + b"\2\0\x10\0"
    data = b"data" + (2 * rate * 3).to_bytes(4, "little") + bytes(2 * rate * 3)
    wav = b"RIFF" + (len(form) + len(data) + 4).to_bytes(4, "little") + b"WAVE" + form + data
    assert probe("audio", wav).ext == "wav"
    assert probe("audio", wav).size.duration_s == 3


@pytest.mark.parametrize(
    "head", [b"fLaC", b"OggS", b"ID3\4", b"\xff\xfb\x90", b"\0\0\0\x20ftypM4A "]
)
def test_sounds_are_known_by_their_first_bytes(head: bytes) -> None:
    assert probe("audio", head + bytes(500)).size.width == 0
