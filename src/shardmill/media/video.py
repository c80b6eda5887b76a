"""Opens a video (bytes, a file, a part of a blob such as a member of a tar) and lists its frames.

FFmpeg reads through our own file object, piece by piece, so that memory does not depend on the
length of the video.

`probe_video` makes the `VideoTable` of all frames without decoding anything. MP4 lists its packets
in its index, other files are demuxed from end to end: some 5 ms or 25 ms for a minute of 720p. What
the header says is compared with what is there: a file that was cut off, or whose header promises
another duration, is rejected. FFmpeg's index of an MP4 says when each packet is decoded, which are
key frames, and which an edit list hides; it lacks how much later a packet is shown, which the box
`ctts` says in runs:

    ctts    u32 flags, u32 count, then for each run: u32 packets, i32 ticks

The first and the last packets are then demuxed and compared. If anything does not agree (an edit
list that repeats or leaves out packets, a fragmented file), all packets are demuxed after all.

Some files do not say when their frames are shown: AVI if frames look ahead, Matroska whose times
would be negative, segments that were joined byte by byte. Of these every frame is decoded once:
what comes out of FFmpeg is in the right order, and times that are missing, go back or leap are
corrected, which the table says in `corrected`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from pathlib import Path
from struct import error as StructError
from struct import unpack_from
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import SampleError, need
from shardmill.media.containers import (
    LOCAL_READ_BYTES,
    MAX_PIXELS,
    broken_as,
    check_claims,
    check_whole,
    find_boxes,
    find_ts_packets,
    first_box,
    open_container,
    read_moov,
    track_number,
)
from shardmill.media.samplers import VideoTable, make_table, number_frames
from shardmill.model.frames import MAX_FRAMES
from shardmill.storage.blob import open_blob

MAX_FETCHED_BYTES = 64 << 20
MAX_SIDE = 16383  # of a WebP
MICROSECONDS = 1_000_000
# Containers whose header states a duration; others let FFmpeg guess from the bit rate.
STATES_DURATION = ("mov", "matroska", "avi", "flv")
# Containers whose times may begin anew; in them FFmpeg takes a leap for a new beginning too.
MAY_RESTART, LONGEST_LEAP_S = ("mpegts", "mpeg", "flv"), 10
JOINED = "segments were joined"
# Rounding, a last frame without duration and audio that ends later are no lies.
TOLERATED_S, TOLERATED_SHARE = 1.0, 0.1
SHOWN_VP8 = 0x10  # the bit of a VP8 frame's first byte that says that it is shown
NUM_COMPARED = 16
BEGINNING = -(1 << 62)  # before every timestamp, so that a seek to it goes to the first packet


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
        self._open()

    @property
    def codec(self) -> str:
        """The name of the codec, such as "h264"."""
        return str(self.stream.codec_context.name)

    def rewind(self) -> None:
        """Open the container again, which works for every file, unlike a seek to its beginning."""
        self.container.close()
        self._open()

    def _open(self) -> None:
        file, window = _PartFile(self.part), self.part.blob.window
        self.container = open_container(file, max(LOCAL_READ_BYTES, window))
        try:
            self.stream = _video_stream(self.container)
            _prepare(self.stream, self._threads)
        except SampleError:
            self.container.close()
            raise


@contextmanager
def open_video(video: Video, *, threads: int = 1) -> Iterator[OpenVideo]:
    """Open the first video stream that is no cover image; what has none is a `SampleError`."""
    with _as_part(video) as part:
        if part.num_bytes == 0:
            raise SampleError("empty video", "it has no bytes")
        check_whole(part)
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


def probe_video(video: OpenVideo) -> VideoTable:
    """Return the table of all frames; a broken, cut off or lying file is a `SampleError`."""
    base = float(video.stream.time_base)
    with broken_as("broken video"):
        try:
            packets = list_packets(video) or demux_packets(video)
            _check_order(video, packets)
        except _OutOfOrder as problem:
            return _decoded_table(video, problem)
    table = make_table(
        packets.pts,
        packets.is_key,
        packets.is_shown,
        time_base=base,
        origin_s=_origin_s(video, packets.pts[packets.is_shown], base),
        last_duration_s=_last_duration(packets) * base,
    )
    _check_duration(video, table, float(np.ptp(packets.dts)) * base)
    return table


class _OutOfOrder(SampleError):
    """Packets do not tell when frames are shown: the reason says what is wrong with them.

    `ticks`, if there are any, are the right times of all frames.
    """

    ticks: tuple[int, ...] = ()


def _check_order(video: OpenVideo, packets: Packets) -> None:
    """Raise `_OutOfOrder` if only the decoder knows how many frames there are, or their order."""
    format = video.container.format.name
    if format == "avi" and video.stream.codec_context.has_b_frames:
        problem = _OutOfOrder("frames are counted", "AVI does not say when frames are shown")
        problem.ticks = tuple(np.sort(packets.dts).tolist())
        raise problem
    leap = float("inf")
    if format in MAY_RESTART:
        leap = LONGEST_LEAP_S / float(video.stream.time_base)
    gaps = np.diff(packets.dts)
    wrong = np.flatnonzero((gaps < 0) | (gaps > leap))
    if len(wrong):
        raise _OutOfOrder("times restart", f"at packet {wrong[0] + 1}")
    if len(np.unique(shown := packets.pts[packets.is_shown])) < len(shown):
        raise _OutOfOrder("times repeat", "two frames are shown at the same time")
    if format == "mpegts" and not _is_ts_padded(video):
        raise _OutOfOrder("end unknown", "its last packet is full, so that more may be missing")


def _is_ts_padded(video: OpenVideo) -> bool:
    """Say whether the last packet of the video is padded: frames begin in a packet of their own.

    Of one that is cut off between two packets the last is full, as it is of one frame in 184.
    """
    for packet in find_ts_packets(video.part):
        if int.from_bytes(packet[1:3], "big") & 0x1FFF == video.stream.id:
            return bool(packet[3] & 0x20)
    return True


def decode_whole(video: OpenVideo) -> Iterator[tuple[Any, bool]]:
    """Yield every frame that FFmpeg decodes from the beginning on, and whether it is damaged.

    A packet that does not decode damages all frames up to the next key frame.
    """
    video.rewind()
    context, is_damaged = video.stream.codec_context, False
    for packet in chain(read_packets(video), [None]):
        try:
            frames = context.decode(packet)
        except need("av", extra="video").InvalidDataError:
            is_damaged = True
            continue
        for frame in frames:
            is_damaged = damages(frame, is_damaged)
            yield frame, is_damaged


def damages(frame: Any, was_damaged: bool) -> bool:
    """Tell whether a frame is damaged, or may refer to one before it that was."""
    return bool(frame.is_corrupt or (was_damaged and not frame.key_frame))


def _decoded_table(video: OpenVideo, problem: _OutOfOrder) -> VideoTable:
    """Return the table of what the decoder gives, with times that go on."""
    types = need("av.video.frame", extra="video").PictureType
    pts: list[int | None] = []
    is_i, is_b, damaged = [], [], False
    for frame, is_damaged in decode_whole(video):
        damaged = is_damaged
        if len(pts) >= MAX_FRAMES:
            raise SampleError("absurd number of frames", f"more than {MAX_FRAMES}")
        pts.append(frame.pts)
        is_i.append(bool(frame.key_frame))
        is_b.append(frame.pict_type == types.B)
    if damaged:
        raise SampleError("truncated video", f"its last frame, {len(pts) - 1}, is damaged")
    if not pts:
        raise SampleError("no frames", "FFmpeg decodes none")
    # A packet may hold no frame, or two.
    given = [*problem.ticks[: len(pts)], *[None] * (len(pts) - len(problem.ticks))]
    ticks, num_corrected = _going_on(given if problem.ticks else pts, video)
    base = float(video.stream.time_base)
    corrected = f"{problem.reason}: {problem.detail}"
    if num_corrected:
        corrected += f", {num_corrected} {'time' if num_corrected == 1 else 'times'} corrected"
    table = number_frames(
        ticks * np.float64(base) - _origin_s(video, ticks, base),
        last_duration_s=float(np.median(np.diff(ticks)) if len(ticks) > 1 else 0) * base,
        is_key=np.array(is_i),
        is_forward=~np.array(is_b),
        corrected=() if problem.ticks else (corrected,),
    )
    if problem.ticks:
        _check_duration(video, table, table.duration_s)
    return table


def _going_on(pts: list[int | None], video: OpenVideo) -> tuple[NDArray[np.int64], int]:
    """Return times that grow, and how many had to be changed: what is wrong takes a frame's time.

    5 6 7 5 6 goes on as 5 6 7 8 9, of which one step was wrong.
    """
    if set(pts) == {None}:
        raise SampleError("no frame times", "none of its frames says when it is shown")
    steps = [b - a for a, b in pairwise(pts) if a is not None and b is not None and b > a]
    usual = int(np.median(steps)) if steps else 1
    may_restart = video.container.format.name in MAY_RESTART
    leap = LONGEST_LEAP_S / video.stream.time_base if may_restart else 1 << 40
    gaps = [None if None in (a, b) else b - a for a, b in pairwise(pts)]  # type: ignore[operator]
    is_right = [gap is not None and 0 < gap <= leap for gap in gaps]
    steady = [gap if right else usual for gap, right in zip(gaps, is_right)]
    known = next((number for number, time in enumerate(pts) if time is not None), 0)
    first = (pts[known] or 0) - sum(steady[:known])  # type: ignore[arg-type]
    return np.cumsum([first, *steady]).astype(np.int64), is_right.count(False)


def _origin_s(video: OpenVideo, pts: NDArray[np.int64], base: float) -> float:
    """Return when players begin to count: at the first audio or frame, whichever is first."""
    first = int(pts.min()) * base if len(pts) else 0.0
    start_s = float(video.container.start_time or 0) / MICROSECONDS
    # A start long before the first frame is a time that was corrected.
    has_start = video.container.start_time is not None and first - start_s <= LONGEST_LEAP_S
    return min(first, start_s) if has_start else first


def _last_duration(packets: Packets) -> float:
    gaps = np.diff(np.sort(packets.pts))
    return float(packets.last_duration or (np.median(gaps) if len(gaps) else 0))


def _check_duration(video: OpenVideo, table: VideoTable, decoded_s: float) -> None:
    """Compare the header with the time of showing, of decoding, or until the end: all are stated.

    Matroska that begins at 7 s and lasts for 4 says 11.
    """
    stated = _stated_duration(video)
    if stated is None:
        return
    until_s = table.end_s + (video.container.start_time or 0) / MICROSECONDS
    found = min(table.duration_s, decoded_s, until_s, key=lambda seconds: abs(seconds - stated))
    if abs(stated - found) > max(TOLERATED_S, TOLERATED_SHARE * found):
        detail = f"its header says {stated:g} s, its frames last {found:g} s"
        raise SampleError("wrong duration", detail)


def _stated_duration(video: OpenVideo) -> float | None:
    stream, container = video.stream, video.container
    if not container.format.name.startswith(STATES_DURATION):
        return None
    if stream.duration:
        return float(stream.duration * stream.time_base)
    # The duration of a container may be that of its audio.
    is_alone = len(container.streams) == 1
    return container.duration / MICROSECONDS if container.duration and is_alone else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Packets:
    """Packets in the order of decoding, in ticks of the stream.

    `dts` is when to decode them, `pts` when to show them; `last_duration` is how long the frame
    that comes last is shown, 0 if nobody says.
    """

    pts: NDArray[np.int64]
    dts: NDArray[np.int64]
    is_key: NDArray[np.bool_]
    is_shown: NDArray[np.bool_]
    last_duration: int


def demux_packets(video: OpenVideo) -> Packets:
    """Read every packet of a stream; one that is cut off or without a time is a `SampleError`."""
    rows: list[tuple[int, int, bool, bool]] = []
    last_pts, last_duration, is_vp8 = None, 0, video.codec == "vp8"
    incomplete: list[int] = []
    untimed, dts = -1, BEGINNING
    for number, packet in enumerate(read_packets(video)):
        if packet.is_corrupt:
            incomplete.append(number)
        if number >= MAX_FRAMES:
            raise SampleError("absurd number of frames", f"more than {MAX_FRAMES}")
        # Without frames that look ahead, frames are shown in the order in which they are decoded.
        looks_ahead = bool(video.stream.codec_context.has_b_frames)
        pts = packet.dts if packet.pts is None and not looks_ahead else packet.pts
        if pts is None:
            untimed, pts = number, dts
        dts = (
            pts if packet.dts is None and rows == [] else dts if packet.dts is None else packet.dts
        )
        is_shown = not packet.is_discard and not (is_vp8 and _is_hidden(packet))
        rows.append((pts, dts, packet.is_keyframe, is_shown))
        if last_pts is None or pts > last_pts:
            last_pts, last_duration = pts, packet.duration or 0
    may_join = video.container.format.name == "mpegts"
    if incomplete and (not may_join or incomplete[-1] == len(rows) - 1):
        raise SampleError("truncated video", f"packet {incomplete[0]} is not complete")
    if incomplete:
        raise _OutOfOrder(JOINED, f"at packet {incomplete[0] + 1}")
    if untimed >= 0:
        raise _OutOfOrder("no frame times", f"packet {untimed} does not say when it is shown")
    columns = np.array(rows, np.int64).reshape(-1, 4)
    return Packets(
        pts=columns[:, 0],
        dts=columns[:, 1],
        is_key=columns[:, 2].astype(bool),
        is_shown=columns[:, 3].astype(bool),
        last_duration=last_duration,
    )


def _is_hidden(packet: Any) -> bool:
    return not bytes(packet)[0] & SHOWN_VP8


def list_packets(video: OpenVideo) -> Packets | None:
    """Return the packets that the index lists, or None if only demuxing can tell.

    A file that is shorter than its index needs is a `SampleError`.
    """
    entries = video.stream.index_entries
    if not video.container.format.name.startswith("mov") or not 0 < len(entries) <= MAX_FRAMES:
        return None
    columns = np.array(
        [(e.timestamp, e.is_keyframe, e.is_discard, e.pos + e.size) for e in entries], np.int64
    )
    end = int(columns[:, 3].max())
    if end > video.part.num_bytes:
        detail = f"{video.part.num_bytes} bytes, its frames need {end}"
        raise SampleError("truncated video", detail)
    delays = _delays(video, len(columns))
    if delays is None:
        return None
    packets = _compared(video, columns, delays)
    if packets is None:  # whoever demuxes begins at the beginning
        video.container.seek(BEGINNING, stream=video.stream, backward=True)
    return packets


def _compared(
    video: OpenVideo, columns: NDArray[np.int64], delays: NDArray[np.int64]
) -> Packets | None:
    """Return the packets if those that are demuxed at both ends agree with the index."""
    dts = columns[:, 0]
    first = list(islice(_packets_from(video, BEGINNING), NUM_COMPARED))
    if not first or first[0].pts is None:
        return None
    # FFmpeg moves all times by as much as the earliest needs; the first packet tells.
    pts = dts + delays + (first[0].pts - int(dts[0] + delays[0]))
    keys = np.flatnonzero(columns[:, 1])
    tail_start = int(keys[-1]) if len(keys) else len(dts)
    tail = list(_packets_from(video, int(dts[tail_start]))) if len(keys) else []
    for packets, start in ((first, 0), (tail, len(dts) - len(tail))):
        expected = list(zip(pts[start:].tolist(), dts[start:].tolist()))
        if start < 0 or [(p.pts, p.dts) for p in packets] != expected[: len(packets)]:
            return None
    if len(tail) < len(dts) - tail_start:
        return None
    return Packets(
        pts=pts,
        dts=dts,
        is_key=columns[:, 1].astype(bool),
        is_shown=columns[:, 2] == 0,
        last_duration=max(tail, key=lambda packet: packet.pts).duration or 0,
    )


def _packets_from(video: OpenVideo, dts: int) -> Iterator[Any]:
    video.container.seek(dts, stream=video.stream, backward=True)
    return read_packets(video)


def _delays(video: OpenVideo, count: int) -> NDArray[np.int64] | None:
    """Return how many ticks after its decoding each packet is shown."""
    try:
        for track in find_boxes(read_moov(video.part), b"trak"):
            if track_number(first_box(track, b"tkhd")) == video.stream.id:
                return _expanded(first_box(track, b"mdia", b"minf", b"stbl", b"ctts"), count)
    except (StructError, IndexError):
        return None
    return None


def _expanded(ctts: bytes | memoryview, count: int) -> NDArray[np.int64] | None:
    if not ctts:
        return np.zeros(count, np.int64)
    (num_runs,) = unpack_from(">I", ctts, 4)
    if 8 + 8 * num_runs > len(ctts):
        return None
    runs = np.frombuffer(ctts, ">i4", 2 * num_runs, 8).reshape(-1, 2).astype(np.int64)
    if (runs[:, 0] < 0).any() or runs[:, 0].sum() != count:
        return None
    return np.repeat(runs[:, 1], runs[:, 0])
