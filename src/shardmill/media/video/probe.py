"""Probes a video: exact times and key frames of every frame, nothing decoded.

MP4 lists its packets in its index, other files are demuxed from end to end: some 5 ms or 25 ms for
a minute of 720p. What the header says is compared with what is there: a file that was cut off, or
whose header promises another duration, is rejected.

What is known of the packets of a video stream, found by reading all of them.

The packets of an ISO media file from its index alone, without reading what they hold.

FFmpeg's own index says when each packet is decoded, which are key frames, and which an edit list
hides; it lacks how much later a packet is shown, which the box `ctts` says in runs:

    ctts    u32 flags, u32 count, then for each run: u32 packets, i32 ticks

The first and the last packets are then demuxed and compared. If anything does not agree (an edit
list that repeats or leaves out packets, a fragmented file), the answer is None.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from struct import error as StructError
from struct import unpack_from
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import SampleError
from shardmill.media.video.file import OpenVideo, broken_as, read_packets
from shardmill.media.video.header import find_boxes, first_box, read_moov, track_number
from shardmill.media.video.table import VideoTable, make_table
from shardmill.model.frames import MAX_FRAMES

SHOWN_VP8 = 0x10  # the bit of a VP8 frame's first byte that says that it is shown


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
    for number, packet in enumerate(read_packets(video)):
        if packet.is_corrupt:
            raise SampleError("truncated video", f"packet {number} is not complete")
        if number >= MAX_FRAMES:
            raise SampleError("absurd number of frames", f"more than {MAX_FRAMES}")
        pts = _pts(packet, video, number)
        dts = pts if packet.dts is None else packet.dts
        is_shown = not packet.is_discard and not (is_vp8 and _is_hidden(packet))
        rows.append((pts, dts, packet.is_keyframe, is_shown))
        if last_pts is None or pts > last_pts:
            last_pts, last_duration = pts, packet.duration or 0
    columns = np.array(rows, np.int64).reshape(-1, 4)
    return Packets(
        pts=columns[:, 0],
        dts=columns[:, 1],
        is_key=columns[:, 2].astype(bool),
        is_shown=columns[:, 3].astype(bool),
        last_duration=last_duration,
    )


def _pts(packet: Any, video: OpenVideo, number: int) -> int:
    if packet.pts is not None:
        return int(packet.pts)
    # Without frames that look ahead, frames are shown in the order in which they are decoded.
    if packet.dts is not None and not video.stream.codec_context.has_b_frames:
        return int(packet.dts)
    raise SampleError("no frame times", f"packet {number} does not say when it is shown")


def _is_hidden(packet: Any) -> bool:
    return not bytes(packet)[0] & SHOWN_VP8


NUM_COMPARED = 16
BEGINNING = -(1 << 62)


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


MICROSECONDS = 1_000_000
# Containers whose header states a duration; others let FFmpeg guess from the bit rate.
STATES_DURATION = ("mov", "matroska", "avi", "flv")
# Rounding, a last frame without duration and sound that ends later are no lies.
TOLERATED_S, TOLERATED_SHARE = 1.0, 0.1


def probe_video(video: OpenVideo) -> VideoTable:
    """Return the table of all frames; a broken, cut off or lying file is a `SampleError`."""
    with broken_as("broken video"):
        packets = list_packets(video) or demux_packets(video)
    is_counted = _is_counted(video)
    pts = np.sort(packets.dts) if is_counted else packets.pts
    base = float(video.stream.time_base)
    table = make_table(
        pts,
        packets.is_key,
        packets.is_shown,
        time_base=base,
        origin_s=_origin_s(video, pts[packets.is_shown], base),
        last_duration_s=_last_duration(packets) * base,
    )
    _check_duration(video, table, float(np.ptp(packets.dts)) * base)
    return replace(table, is_counted=is_counted)


def _is_counted(video: OpenVideo) -> bool:
    """AVI has no times: if frames look ahead, all that is known is the order that comes out."""
    is_avi = video.container.format.name == "avi"
    return is_avi and bool(video.stream.codec_context.has_b_frames)


def _origin_s(video: OpenVideo, pts: NDArray[np.int64], base: float) -> float:
    """Return when players begin to count: at the first sound or image, whichever is first."""
    first = int(pts.min()) * base if len(pts) else 0.0
    start = video.container.start_time
    return first if start is None else min(first, start / MICROSECONDS)


def _last_duration(packets: Packets) -> float:
    gaps = np.diff(np.sort(packets.pts))
    return float(packets.last_duration or (np.median(gaps) if len(gaps) else 0))


def _check_duration(video: OpenVideo, table: VideoTable, decoded_s: float) -> None:
    """Compare the header with the time of showing, and with that of decoding, which some state."""
    stated = _stated_duration(video)
    if stated is None:
        return
    found = min(table.duration_s, decoded_s, key=lambda seconds: abs(seconds - stated))
    if abs(stated - found) > max(TOLERATED_S, TOLERATED_SHARE * found):
        detail = f"its header says {stated:g} s, its frames last {found:g} s"
        raise SampleError("wrong duration", detail)


def _stated_duration(video: OpenVideo) -> float | None:
    stream, container = video.stream, video.container
    if not container.format.name.startswith(STATES_DURATION):
        return None
    if stream.duration:
        return float(stream.duration * stream.time_base)
    # The duration of a container may be that of its sound.
    is_alone = len(container.streams) == 1
    return container.duration / MICROSECONDS if container.duration and is_alone else None
