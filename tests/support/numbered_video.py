"""Clips whose frames carry their number, as black and white blocks that survive any codec."""

from __future__ import annotations

import io
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from struct import pack_into, unpack_from
from tempfile import NamedTemporaryFile
from typing import Any

import numpy as np

NUM_BITS = 12
COLUMNS = 4


def numbered_pixels(number: int, width: int = 128, height: int = 96) -> np.ndarray:
    """Return a grey image with the bits of a number in three rows of four blocks."""
    pixels = np.full((height, width, 3), 128, np.uint8)
    for bit in range(NUM_BITS):
        rows, columns = _block(bit, height, width)
        pixels[rows, columns] = 255 * (number >> bit & 1)
    return pixels


def read_number(pixels: np.ndarray) -> int:
    """Return the number that an image shows; an image without one fails the test."""
    number = 0
    for bit in range(NUM_BITS):
        rows, columns = _block(bit, *pixels.shape[:2])
        block = pixels[rows, columns].astype(float)
        middle = block[len(block) // 4 : -len(block) // 4 or None]
        value = middle[:, middle.shape[1] // 4 : -middle.shape[1] // 4].mean()
        assert not 70 < value < 185, f"block {bit} is grey: {value:.0f}"
        number |= int(value > 128) << bit
    return number


def read_image(content: bytes | memoryview) -> int:
    """Return the number that an encoded image shows."""
    from PIL import Image

    with Image.open(io.BytesIO(content)) as image:
        return read_number(np.asarray(image.convert("RGB")))


def _block(bit: int, height: int, width: int) -> tuple[slice, slice]:
    row, column = divmod(bit, COLUMNS)
    num_rows = NUM_BITS // COLUMNS
    return (
        slice(row * height // num_rows, (row + 1) * height // num_rows),
        slice(column * width // COLUMNS, (column + 1) * width // COLUMNS),
    )


@lru_cache(maxsize=64)
def numbered_clip(
    num_frames: int = 60,
    *,
    codec: str = "libx264",
    format: str = "mp4",
    rate: int = 25,
    size: tuple[int, int] = (128, 96),
    pix_fmt: str = "yuv420p",
    group: int = 20,
    times: tuple[int, ...] | None = None,
    options: tuple[tuple[str, str], ...] = (("bf", "3"), ("preset", "veryfast")),
    container_options: tuple[tuple[str, str], ...] = (),
    sound: bool = False,
) -> bytes:
    """Return a clip; frame i shows i at i / rate seconds, or at times[i] thousandths."""
    import av

    # A file, since moving the header to the front needs to read what was written.
    with (
        NamedTemporaryFile() as file,
        av.open(file.name, "w", format=format, options=dict(container_options)) as container,
    ):
        stream: Any = container.add_stream(codec, rate=rate, options=dict(options))
        stream.width, stream.height, stream.pix_fmt = *size, pix_fmt
        stream.codec_context.gop_size = group
        stream.codec_context.time_base = Fraction(1, rate if times is None else 1000)
        voice = container.add_stream("aac", rate=16000) if sound else None
        _write_frames(container, stream, num_frames, size, times)
        if voice is not None:
            _write_silence(container, voice, num_frames / rate)
        container.close()
        return Path(file.name).read_bytes()


def with_matrix(clip: bytes, matrix: tuple[int, int, int, int]) -> bytes:
    """Return an MP4 whose display matrix (a b, c d) is this one."""
    content, at = bytearray(clip), clip.index(b"tkhd") + 4 + 40
    a, b, c, d = (value << 16 for value in matrix)
    pack_into(">ii", content, at, a, b)
    pack_into(">ii", content, at + 12, c, d)
    return bytes(content)


def with_duration(clip: bytes, factor: float) -> bytes:
    """Return an MP4 whose header says another duration of its track."""
    content, at = bytearray(clip), clip.index(b"mdhd") + 4 + 16
    (duration,) = unpack_from(">I", clip, at)
    pack_into(">I", content, at, round(duration * factor))
    return bytes(content)


def shifted_clip(clip: bytes, seconds: float, *, format: str = "mp4") -> bytes:
    """Return the clip with all its timestamps moved, also below zero."""
    import av

    file = io.BytesIO()
    with (
        av.open(io.BytesIO(clip)) as source,
        av.open(file, "w", format=format, options={"avoid_negative_ts": "disabled"}) as target,
    ):
        old = source.streams.video[0]
        new = target.add_stream_from_template(old)
        ticks = round(seconds / old.time_base)
        for packet in source.demux(old):
            if packet.size:
                packet.pts, packet.dts = packet.pts + ticks, packet.dts + ticks
                packet.stream = new
                target.mux(packet)
    return file.getvalue()


def huge_stream(side: int) -> bytes:
    """Return an H.264 stream whose parameters say frames of `side` x `side` pixels."""
    stream = numbered_clip(3, format="h264", options=(("profile", "baseline"),))
    first, second = stream.index(b"\0\0\1\x67"), stream.index(b"\0\0\1\x68")
    blocks = side // 16 - 1
    # profile 66, level 6.2; then numbers in exponential Golomb code: set 0, frame numbers of 4
    # bits, order type 2, one reference, no gaps, width and height, whole frames, no direct 8 x 8,
    # no crop, no usability information, and the bit that ends it.
    bits = "1" + "1" + "011" + "010" + "0" + _golomb(blocks) * 2 + "1" + "0" + "0" + "0" + "1"
    bits += "0" * (-len(bits) % 8)
    body = bytes(int(bits[i : i + 8], 2) for i in range(0, len(bits), 8))
    return stream[:first] + b"\0\0\1\x67\x42\x00\x3e" + body + b"\0" + stream[second:]


def _golomb(value: int) -> str:
    digits = f"{value + 1:b}"
    return "0" * (len(digits) - 1) + digits


def _write_frames(
    container: Any,
    stream: Any,
    num_frames: int,
    size: tuple[int, int],
    times: Sequence[int] | None,
) -> None:
    import av

    for number in range(num_frames):
        frame = av.VideoFrame.from_ndarray(numbered_pixels(number, *size), format="rgb24")
        frame.pts = number if times is None else times[number]
        frame.time_base = stream.codec_context.time_base
        container.mux(stream.encode(frame))
    container.mux(stream.encode(None))


def _write_silence(container: Any, stream: Any, seconds: float) -> None:
    import av

    frame = av.AudioFrame.from_ndarray(
        np.zeros((1, int(16000 * seconds)), np.float32), format="fltp", layout="mono"
    )
    frame.sample_rate, frame.pts = 16000, 0
    container.mux(stream.encode(frame))
    container.mux(stream.encode(None))
