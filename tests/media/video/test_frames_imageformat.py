from __future__ import annotations

import io
from fractions import Fraction
from typing import Any

import av
import numpy as np
import pytest
from numbered_video import numbered_clip, numbered_pixels, read_number, with_matrix
from PIL import Image

from shardmill.errors import ConfigError, SampleError
from shardmill.media.sizes import probe
from shardmill.media.video.frames import (
    FramePainter,
    ImageFormat,
    fit_long_side,
    read_frames,
    square_pixels,
)
from shardmill.media.video.samplers import Uniform

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
    content, found = FramePainter().encode(frame, ImageFormat(format=format))
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
    painter = FramePainter()
    assert np.abs(painter.rgb(stored).astype(int) - pixels).max() <= 4
    content, _ = painter.encode(stored, ImageFormat(quality=95))
    middles = opened(content)[16, 16::32]
    assert np.abs(middles - colours).max() <= 8


def test_a_long_side_keeps_the_shape() -> None:
    assert fit_long_side(1920, 1080, 512) == (512, 288)
    assert fit_long_side(1080, 1920, 512) == (288, 512)
    assert fit_long_side(640, 480, 640) == fit_long_side(640, 480, None) == (640, 480)
    assert fit_long_side(5000, 3, 100) == (100, 1)
    frame = frame_of(numbered_pixels(77, 640, 480))
    content, size = FramePainter(160).encode(frame, ImageFormat())
    assert (size.width, size.height) == (160, 120)
    assert read_number(opened(content).astype(np.uint8)) == 77


def test_wide_pixels_become_square() -> None:
    assert square_pixels(720, 576, Fraction(16, 15)) == (768, 576)
    assert square_pixels(1440, 1080, Fraction(4, 3)) == (1920, 1080)
    assert square_pixels(100, 100, Fraction(1, 2)) == (100, 200)
    assert square_pixels(100, 100, Fraction(900, 1)) == (100, 100)
    _, size = FramePainter(384, Fraction(16, 15)).encode(
        frame_of(numbered_pixels(5, 720, 576)), ImageFormat()
    )
    assert (size.width, size.height) == (384, 288)


@pytest.mark.parametrize("size", [(2, 2), (4, 2), (8, 6), (16, 16), (1, 1), (3, 8)])
@pytest.mark.parametrize("format", ["jpg", "webp"])
def test_tiny_frames_are_images_too(format: Any, size: tuple[int, int]) -> None:
    grey = np.full((size[1], size[0], 3), 90, np.uint8)
    content, found = FramePainter().encode(frame_of(grey, "yuv444p"), ImageFormat(format=format))
    assert (found.width, found.height) == size
    assert np.abs(opened(content) - 90).max() <= 3


def test_quality_matters() -> None:
    frame = frame_of(np.random.default_rng(0).integers(0, 255, (96, 128, 3), np.uint8))
    sizes = [len(FramePainter().encode(frame, ImageFormat(quality=q))[0]) for q in (30, 60, 95)]
    assert sizes == sorted(sizes)


@pytest.mark.parametrize("long_side", [None, 100, 101, 102, 33])
@pytest.mark.parametrize("pix_fmt", ["yuv420p", "yuv420p10le", "rgb24"])
def test_the_same_frame_gives_the_same_bytes(long_side: int | None, pix_fmt: str) -> None:
    made, frame = set(), frame_of(numbered_pixels(5, 130, 97), pix_fmt)
    for number in range(12):
        np.random.default_rng(number).integers(0, 255, 100_000 * number, np.uint8)  # old memory
        made.add(FramePainter(long_side).encode(frame, ImageFormat())[0])
    assert len(made) == 1


def test_a_frame_larger_than_its_header_says_is_refused() -> None:
    with pytest.raises(SampleError, match="too many pixels"):
        FramePainter().rgb(av.VideoFrame(16400, 16, "gray"))
    with pytest.raises(SampleError, match="too many pixels"):
        FramePainter(None, Fraction(2)).rgb(av.VideoFrame(16000, 16, "gray"))


def test_settings_are_checked() -> None:
    for fields in ({"quality": 0}, {"quality": 101}, {"long_side": 0}, {"long_side": 10**6}):
        with pytest.raises(ConfigError):
            ImageFormat(**fields)  # type: ignore[arg-type]
