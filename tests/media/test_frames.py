from __future__ import annotations

import io
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numbered_video import numbered_clip, numbered_pixels, read_number, with_matrix
from PIL import Image
from web_server import serving

from shardmill.errors import ConfigError, SampleError
from shardmill.media import video as videofile
from shardmill.media.frames import (
    FrameConverter,
    ImageFormat,
    fit_long_side,
    read_frames,
    square_pixels,
)
from shardmill.media.header import probe
from shardmill.media.samplers import Keyframes, Uniform, WholeVideo
from shardmill.media.video import BlobPart
from shardmill.storage.blob import LocalBlob


def numbers(video: object, sampler: object, **options: object) -> list[int]:
    """Return what the frames show; their own numbers must agree."""
    frames = read_frames(video, sampler, **options)  # type: ignore[arg-type]
    assert [frame.time_s for frame in frames] == sorted(frame.time_s for frame in frames)
    return [read_number(frame.pixels) for frame in frames]


def test_bytes_paths_and_parts_of_blobs_read_alike(tmp_path: Path) -> None:
    content = numbered_clip()
    (tmp_path / "clip.mp4").write_bytes(content)
    (tmp_path / "clip.tar").write_bytes(b"x" * 777 + content + b"y" * 999)
    blob = LocalBlob(str(tmp_path / "clip.tar"))
    found = [
        numbers(video, Uniform(count=12))
        for video in (
            content,
            memoryview(content),
            tmp_path / "clip.mp4",
            str(tmp_path / "clip.mp4"),
            BlobPart(blob, 777, len(content)),
        )
    ]
    assert found == [[2, 7, 12, 17, 22, 27, 32, 37, 42, 47, 52, 57]] * 5
    blob.close()


def test_every_frame_is_itself_beyond_the_ninth_and_to_the_last() -> None:
    assert numbers(numbered_clip(), WholeVideo()) == list(range(60))


def test_a_clip_of_a_video_keeps_the_times_of_the_video() -> None:
    frames = read_frames(numbered_clip(), Uniform(count=3), clip=(1.0, 1.6))
    assert [read_number(frame.pixels) for frame in frames] == [27, 32, 37]
    assert [frame.number for frame in frames] == [27, 32, 37]
    assert [frame.time_s for frame in frames] == pytest.approx([1.08, 1.28, 1.48])


def test_frames_can_be_scaled() -> None:
    frames = read_frames(numbered_clip(), Uniform(count=2), long_side=64)
    assert [frame.pixels.shape for frame in frames] == [(48, 64, 3)] * 2


def test_keyframes_are_those_of_the_encoder() -> None:
    fixed = (("bf", "0"), ("sc_threshold", "0"))
    found = numbers(numbered_clip(100, options=fixed), Keyframes(i_frames=6, p_frames=0))
    assert found == [0, 20, 40, 60, 80, 99]


FUZZED = {
    "mp4": {},
    "mkv": {"format": "matroska"},
    "ts": {"format": "mpegts"},
    "flv": {"format": "flv"},
    "avi": {"format": "avi", "codec": "mpeg4", "options": (("bf", "2"),)},
    "gif": {"format": "gif", "codec": "gif", "pix_fmt": "rgb8", "options": ()},
}


@given(
    st.sampled_from(sorted(FUZZED)),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), max_size=20),
    st.floats(0, 1),
    st.binary(max_size=20),
)
@settings(max_examples=150)
def test_any_damage_gives_frames_or_a_reject(
    name: str, noise: list[tuple[float, int]], cut: float, more: bytes
) -> None:
    content = bytearray(numbered_clip(20, **FUZZED[name]))  # type: ignore[arg-type]
    for place, value in noise:
        content[int(place * (len(content) - 1))] = value
    at = int(cut * len(content))
    content[at : at + len(more) // 2] = more
    with suppress(SampleError):
        read_frames(bytes(content), Uniform(count=4))


def test_titles_in_another_alphabet_do_no_harm() -> None:
    content = numbered_clip(format="matroska")
    assert content.count(b"Lavf") > 0
    assert numbers(content.replace(b"Lavf", b"\xff\xfe\xe2a"), Uniform(count=2)) == [15, 45]


def test_what_is_no_video_is_rejected() -> None:
    with pytest.raises(SampleError, match="not a video"):
        read_frames(b"hello" * 100, Uniform())


def test_a_video_behind_a_url_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    content = numbered_clip()
    with serving({"clip.mp4": content}) as url:
        assert numbers(f"{url}/clip.mp4", Uniform(count=3)) == [10, 30, 50]
        monkeypatch.setattr(videofile, "MAX_FETCHED_BYTES", 1000)  # then piece by piece
        assert numbers(f"{url}/clip.mp4", Uniform(count=3)) == [10, 30, 50]


# What a player does with the image, by the matrix (a b, c d).
TURNS: dict[tuple[int, int, int, int], Any] = {
    (1, 0, 0, 1): lambda p: p,
    (0, 1, -1, 0): lambda p: np.rot90(p, -1),
    (-1, 0, 0, -1): lambda p: p[::-1, ::-1],
    (0, -1, 1, 0): lambda p: np.rot90(p),
    (-1, 0, 0, 1): np.fliplr,
    (1, 0, 0, -1): np.flipud,
    (0, 1, 1, 0): lambda p: p.transpose(1, 0, 2),
    (0, -1, -1, 0): lambda p: np.rot90(p, 2).transpose(1, 0, 2),
}


def frame_of(pixels: np.ndarray, format: str = "yuv420p") -> Any:
    return av.VideoFrame.from_ndarray(pixels, format="rgb24").reformat(format=format)


def opened(content: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB")).astype(int)


@pytest.mark.parametrize("matrix", TURNS)
def test_a_video_is_turned_as_players_turn_it(matrix: tuple[int, int, int, int]) -> None:
    (upright,) = read_frames(numbered_clip(), Uniform(count=1))
    turned_clip = with_matrix(numbered_clip(), matrix)
    (turned,) = read_frames(turned_clip, Uniform(count=1))
    assert np.array_equal(turned.pixels, TURNS[matrix](upright.pixels))
    size = probe("video", turned_clip).size
    assert turned.pixels.shape == (size.height, size.width, 3)


def test_an_odd_angle_is_left_alone() -> None:
    (frame,) = read_frames(with_matrix(numbered_clip(), (1, 1, -1, 1)), Uniform(count=1))
    assert read_number(frame.pixels) == frame.number


@pytest.mark.parametrize("format", ["jpg", "webp"])
@pytest.mark.parametrize("pix_fmt", ["yuv420p", "yuv444p", "yuv420p10le", "gray", "rgb24"])
@pytest.mark.parametrize("size", [(128, 96), (127, 95), (33, 200)])
def test_images_show_what_the_frame_shows(format: Any, pix_fmt: str, size: tuple[int, int]) -> None:
    frame = frame_of(numbered_pixels(0xA5C, *size), pix_fmt)
    content, found = FrameConverter().encode(frame, ImageFormat(format=format))
    assert (found.width, found.height) == size == Image.open(io.BytesIO(content)).size
    assert read_number(opened(content).astype(np.uint8)) == 0xA5C


@pytest.mark.parametrize("colorspace", ["ITU709", "ITU601"])
def test_colours_are_those_that_the_video_says(colorspace: str) -> None:
    """Pure red, green, blue, white and black blocks, stored with either matrix."""
    colours = np.array([[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255], [0, 0, 0]])
    pixels = np.repeat(colours[None], 32, axis=0).repeat(32, axis=1).astype(np.uint8)
    stored = av.VideoFrame.from_ndarray(pixels, format="rgb24").reformat(
        format="yuv444p", dst_colorspace=colorspace, dst_color_range="MPEG"
    )
    converter = FrameConverter()
    assert np.abs(converter.rgb(stored).astype(int) - pixels).max() <= 4
    content, _ = converter.encode(stored, ImageFormat(quality=95))
    middles = opened(content)[16, 16::32]
    assert np.abs(middles - colours).max() <= 8


def test_a_long_side_keeps_the_shape() -> None:
    assert fit_long_side(1920, 1080, 512) == (512, 288)
    assert fit_long_side(1080, 1920, 512) == (288, 512)
    assert fit_long_side(640, 480, 640) == fit_long_side(640, 480, None) == (640, 480)
    assert fit_long_side(5000, 3, 100) == (100, 1)
    frame = frame_of(numbered_pixels(77, 640, 480))
    content, size = FrameConverter(160).encode(frame, ImageFormat())
    assert (size.width, size.height) == (160, 120)
    assert read_number(opened(content).astype(np.uint8)) == 77


def test_wide_pixels_become_square() -> None:
    assert square_pixels(720, 576, Fraction(16, 15)) == (768, 576)
    assert square_pixels(1440, 1080, Fraction(4, 3)) == (1920, 1080)
    assert square_pixels(100, 100, Fraction(1, 2)) == (100, 200)
    assert square_pixels(100, 100, Fraction(900, 1)) == (100, 100)
    _, size = FrameConverter(384, Fraction(16, 15)).encode(
        frame_of(numbered_pixels(5, 720, 576)), ImageFormat()
    )
    assert (size.width, size.height) == (384, 288)


@pytest.mark.parametrize("size", [(2, 2), (4, 2), (8, 6), (16, 16), (1, 1), (3, 8)])
@pytest.mark.parametrize("format", ["jpg", "webp"])
def test_tiny_frames_are_images_too(format: Any, size: tuple[int, int]) -> None:
    grey = np.full((size[1], size[0], 3), 90, np.uint8)
    content, found = FrameConverter().encode(frame_of(grey, "yuv444p"), ImageFormat(format=format))
    assert (found.width, found.height) == size
    assert np.abs(opened(content) - 90).max() <= 3


def test_quality_matters() -> None:
    frame = frame_of(np.random.default_rng(0).integers(0, 255, (96, 128, 3), np.uint8))
    sizes = [len(FrameConverter().encode(frame, ImageFormat(quality=q))[0]) for q in (30, 60, 95)]
    assert sizes == sorted(sizes)


@pytest.mark.parametrize("long_side", [None, 100, 101, 102, 33])
@pytest.mark.parametrize("pix_fmt", ["yuv420p", "yuv420p10le", "rgb24"])
def test_the_same_frame_gives_the_same_bytes(long_side: int | None, pix_fmt: str) -> None:
    made, frame = set(), frame_of(numbered_pixels(5, 130, 97), pix_fmt)
    for number in range(12):
        np.random.default_rng(number).integers(0, 255, 100_000 * number, np.uint8)  # old memory
        made.add(FrameConverter(long_side).encode(frame, ImageFormat())[0])
    assert len(made) == 1


def test_a_frame_larger_than_its_header_says_is_refused() -> None:
    with pytest.raises(SampleError, match="too many pixels"):
        FrameConverter().rgb(av.VideoFrame(16400, 16, "gray"))
    with pytest.raises(SampleError, match="too many pixels"):
        FrameConverter(None, Fraction(2)).rgb(av.VideoFrame(16000, 16, "gray"))


def test_settings_are_checked() -> None:
    for fields in ({"quality": 0}, {"quality": 101}, {"long_side": 0}, {"long_side": 10**6}):
        with pytest.raises(ConfigError):
            ImageFormat(**fields)  # type: ignore[arg-type]
