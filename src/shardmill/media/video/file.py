"""Opens a video for reading: bytes, a file, or a part of a blob such as a member of a tar.

FFmpeg reads through our own file object and may use only the demuxers listed here: a "video" that
is really a playlist of other files or urls is refused. A part of a blob is read piece by piece, so
that memory does not depend on the length of the video.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from shardmill.errors import SampleError, need
from shardmill.media.video.header import check_claims
from shardmill.storage.blob import open_blob

DEMUXERS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,ogg,mpeg,mpegts,flv,asf,gif,h264,hevc,ivf"
LOCAL_READ_BYTES = 128 << 10
MAX_FETCHED_BYTES = 64 << 20
# Twice 8K. A decoder holds up to 16 frames besides, so more would not be bounded memory.
MAX_PIXELS = 1 << 26
MAX_SIDE = 16383  # of a WebP


class RandomBytes(Protocol):
    """What is asked of a blob here (see `storage.blob`)."""

    @property
    def window(self) -> int:
        """How many bytes to ask for at once."""

    def read(self, offset: int, length: int) -> bytes:
        """Return exactly these bytes."""


@dataclass(frozen=True, slots=True)
class BlobPart:
    """A range of a blob."""

    blob: RandomBytes
    offset: int
    num_bytes: int

    def read(self, start: int, length: int) -> bytes:
        """Return the bytes from `start` on; fewer than `length` only at the end of the part."""
        length = max(0, min(length, self.num_bytes - start))
        return self.blob.read(self.offset + start, length) if length else b""


Video: TypeAlias = bytes | memoryview | str | Path | BlobPart


class OpenVideo:
    """An open container and its video stream, for one thread, and the bytes behind them."""

    def __init__(self, part: BlobPart, threads: int) -> None:
        self.part, self._threads = part, threads
        self.container = _open_container(part)
        self.stream = self._open_stream()

    @property
    def codec(self) -> str:
        """The name of the codec, such as "h264"."""
        return str(self.stream.codec_context.name)

    def rewind(self) -> None:
        """Open the container again, which works for every file, unlike a seek to its beginning."""
        self.container.close()
        self.container = _open_container(self.part)
        self.stream = self._open_stream()

    def _open_stream(self) -> Any:
        try:
            stream = _video_stream(self.container)
            _prepare(stream, self._threads)
        except SampleError:
            self.container.close()
            raise
        return stream


@contextmanager
def open_video(video: Video, *, threads: int = 1) -> Iterator[OpenVideo]:
    """Open the first video stream that is no cover image; what has none is a `SampleError`."""
    with _as_part(video) as part:
        if part.num_bytes == 0:
            raise SampleError("empty video", "it has no bytes")
        check_claims(part)
        opened = OpenVideo(part, threads)
        try:
            yield opened
        finally:
            opened.container.close()


def read_packets(video: OpenVideo) -> Iterator[Any]:
    """Yield the packets of the video stream from where the container is, up to its end."""
    packets = video.container.demux(video.stream)
    while True:
        try:
            packet = next(packets)
        except (StopIteration, IndexError):
            # PyAV stumbles at the end over streams that appeared after the header.
            return
        if packet.size:
            yield packet


@contextmanager
def broken_as(reason: str) -> Iterator[None]:
    """Turn what FFmpeg complains of into a `SampleError`; errors of reading pass unchanged."""
    av = need("av", extra="video")
    try:
        yield
    except av.FFmpegError as error:
        raise SampleError(reason, f"{error.strerror}") from error


def _open_container(part: BlobPart) -> Any:
    # The second is for the decoders with which FFmpeg looks at a first frame.
    options = {"format_whitelist": DEMUXERS, "max_pixels": str(MAX_PIXELS)}
    with broken_as("not a video"):
        return need("av", extra="video").open(
            _PartFile(part),
            options=options,
            buffer_size=max(LOCAL_READ_BYTES, part.blob.window),
            metadata_errors="replace",
        )


def _video_stream(container: Any) -> Any:
    cover = need("av", extra="video").stream.Disposition.attached_pic
    streams = [s for s in container.streams.video if not s.disposition & cover]
    if not len(container.streams):
        raise SampleError("not a video", "it holds nothing")
    if not streams:
        kinds = {"a cover image" if s.type == "video" else s.type for s in container.streams}
        raise SampleError("no video stream", f"it holds {', '.join(sorted(kinds))}")
    stream = streams[0]
    if stream.codec_context is None:
        raise SampleError("unknown codec", "FFmpeg has no decoder for its video")
    return stream


def check_size(width: int, height: int) -> None:
    """Raise `SampleError` unless frames of this size fit into memory and into any image file."""
    if width < 1 or height < 1:
        raise SampleError("no frame size", "its header has none, or one that FFmpeg refuses")
    if width * height > MAX_PIXELS or max(width, height) > MAX_SIDE:
        detail = f"{width} x {height}, the limits are {MAX_SIDE} a side and {MAX_PIXELS} in all"
        raise SampleError("too many pixels", detail)


def _prepare(stream: Any, threads: int) -> None:
    context = stream.codec_context
    check_size(context.width, context.height)
    context.thread_count = threads
    context.thread_type = "NONE" if threads == 1 else "AUTO"
    # A stream may say another size than its container; the decoder must not believe it either.
    context.options = {**context.options, "max_pixels": str(MAX_PIXELS)}


@contextmanager
def _as_part(video: Video) -> Iterator[BlobPart]:
    if isinstance(video, BlobPart):
        yield _near(video)
    elif isinstance(video, str | Path):
        blob = open_blob(str(video))
        try:
            yield _near(BlobPart(blob, 0, blob.num_bytes))
        finally:
            blob.close()
    else:
        yield BlobPart(_Memory(memoryview(video)), 0, len(video))


def _near(part: BlobPart) -> BlobPart:
    """Return a part of a store as bytes in memory, unless it is large: one request, not many."""
    if part.blob.window <= LOCAL_READ_BYTES or part.num_bytes > MAX_FETCHED_BYTES:
        return part
    return BlobPart(_Memory(memoryview(part.read(0, part.num_bytes))), 0, part.num_bytes)


@dataclass(frozen=True, slots=True)
class _Memory:
    """Bytes in memory, read like a blob."""

    view: memoryview
    window: int = LOCAL_READ_BYTES

    def read(self, offset: int, length: int) -> bytes:
        return bytes(self.view[offset : offset + length])


class _PartFile:
    """A part of a blob as the file that PyAV reads."""

    def __init__(self, part: BlobPart) -> None:
        self._part, self._position = part, 0

    def read(self, count: int) -> bytes:
        content = self._part.read(self._position, count)
        self._position += len(content)
        return content

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._part.num_bytes}
        self._position = max(0, base[whence] + offset)
        return self._position

    def tell(self) -> int:
        return self._position
