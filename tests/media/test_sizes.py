from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from make_media import IMAGE_FORMATS, clip, image

from shardmill.errors import ConfigError, SampleError
from shardmill.media.sizes import MediaHeader, probe


def sides(medium: MediaHeader) -> tuple[int, int]:
    return medium.size.width, medium.size.height


@pytest.mark.parametrize("kind", ["image", "video", "audio"])
@pytest.mark.parametrize("content", [b"hello, I am a text\n" * 20, b"\0" * 500, b"<html>", b"x"])
def test_what_is_not_what_its_name_says_is_a_reject(kind: str, content: bytes) -> None:
    with pytest.raises(SampleError, match="not a"):
        probe(kind, content)


def test_an_image_is_no_video_and_a_video_no_image(tmp_path: Path) -> None:
    with pytest.raises(SampleError, match="not a video"):
        probe("video", image("JPEG"))
    with pytest.raises(SampleError, match="not an image"):
        probe("image", clip(tmp_path / "a.mp4", codec="libx264"))
    assert sides(probe("video", image("GIF"))) == (64, 48)
    with pytest.raises(ConfigError, match="a medium is one of"):
        probe("text", b"")


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    folder = tmp_path_factory.mktemp("clips")
    names = [("a.mp4", "libx264"), ("a.mkv", "libx264"), ("a.avi", "mpeg4")]
    return [clip(folder / name, codec=codec) for name, codec in names]


def test_a_video_that_was_cut_off_is_told_from_what_is_none(clips: list) -> None:
    half = clips[0][: len(clips[0]) // 2]  # the index of an mp4 stands at its end
    with pytest.raises(SampleError, match=r"mp4 without a video track: .* cut off"):
        probe("video", half)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_damaged_headers_never_do_worse_than_a_reject(data: st.DataObject, clips: list) -> None:
    images = [("image", image(format)) for format in IMAGE_FORMATS]
    kind, content = data.draw(st.sampled_from([*images, *(("video", c) for c in clips)]))
    damaged = bytearray(content[: data.draw(st.integers(1, len(content)))])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, min(len(damaged), 2000) - 1))
        damaged[at] = data.draw(st.sampled_from([0, 1, 127, 128, 255]))
    try:
        size = probe(kind, bytes(damaged)).size
    except SampleError:
        return
    assert 0 < size.width < 1 << 31
    assert 0 <= size.num_frames < 1 << 31


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
