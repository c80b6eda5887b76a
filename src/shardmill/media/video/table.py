"""The frames of a video as numbers: when each is shown, and where its decoding must begin.

A row of a `VideoTable` is a frame, in the order they are shown. Seconds count from the container's
start, as players count them, so that they agree with captions; a stream whose timestamps begin
below zero or at ten hours begins at 0 all the same.

`probe_video` makes the table without decoding anything. MP4 lists its packets in its index, other
files are demuxed from end to end: some 5 ms or 25 ms for a minute of 720p. What the header says is
compared with what is there: a file that was cut off, or whose header promises another duration, is
rejected. FFmpeg's index of an MP4 says when each packet is decoded, which are key frames, and which
an edit list hides; it lacks how much later a packet is shown, which the box `ctts` says in runs:

    ctts    u32 flags, u32 count, then for each run: u32 packets, i32 ticks

The first and the last packets are then demuxed and compared. If anything does not agree (an edit
list that repeats or leaves out packets, a fragmented file), all packets are demuxed after all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from struct import error as StructError
from struct import unpack_from
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import SampleError
from shardmill.media.video.file import OpenVideo, broken_as, read_packets
from shardmill.media.video.header import find_boxes, first_box, read_moov, track_number
from shardmill.model.frames import MAX_FRAMES, FrameNumbers

Seconds = NDArray[np.float64]
SLACK_S, SLACK_SHARE = 1.0, 0.1
# Times that people write, such as 1.2 s, mean the frame at 1.2000000000000002 s too.
ROUNDING_S = 1e-6
PER_FRAME = ("times_s", "pts", "place", "start_pts", "start_place", "is_key", "is_forward")
MICROSECONDS = 1_000_000
# Containers whose header states a duration; others let FFmpeg guess from the bit rate.
STATES_DURATION = ("mov", "matroska", "avi", "flv")
# Rounding, a last frame without duration and audio that ends later are no lies.
TOLERATED_S, TOLERATED_SHARE = 1.0, 0.1
SHOWN_VP8 = 0x10  # the bit of a VP8 frame's first byte that says that it is shown
NUM_COMPARED = 16
BEGINNING = -(1 << 62)


@dataclass(frozen=True, kw_only=True)
class VideoTable:
    """What demuxing tells of each frame; nothing here was decoded, except for `changes`.

    `place` is the number of a frame's packet, in the order of decoding; `start_place` and
    `start_pts` are those of the key frame from which on packets must be decoded to get it.
    `is_forward` frames are shown after all that was decoded before them: key frames and those that
    are predicted from the past (P); the others (B) also look ahead. `first_number` is the number
    of the first frame in the whole video, of which this may be a clip. In a video that `is_counted`
    only the order of the frames is known, not their timestamps. `changes` says how much each frame
    differs from the one before, from 0 to 1, if somebody measured it.
    """

    times_s: Seconds
    end_s: float
    pts: NDArray[np.int64]
    place: NDArray[np.int64]
    start_pts: NDArray[np.int64]
    start_place: NDArray[np.int64]
    is_key: NDArray[np.bool_]
    is_forward: NDArray[np.bool_]
    first_number: int = 0
    is_counted: bool = False
    changes: Seconds | None = None

    def __len__(self) -> int:
        return len(self.times_s)

    @cached_property
    def duration_s(self) -> float:
        """How long the frames are shown, the last one included."""
        return self.end_s - float(self.times_s[0])

    @cached_property
    def fps(self) -> float:
        """Frames a second on average, 0 if they have no duration."""
        return len(self) / self.duration_s if self.duration_s > 0 else 0.0

    def numbers_at(self, times_s: Sequence[float] | Seconds) -> FrameNumbers:
        """Return the numbers of the frames that are shown at these times."""
        wanted = np.asarray(times_s, np.float64)
        first, last = float(self.times_s[0]), self.end_s
        outside = wanted[~((wanted >= first - ROUNDING_S) & (wanted <= last + ROUNDING_S))]
        if len(outside):
            detail = f"{outside[0]:g} s, it is shown from {first:g} to {last:g} s"
            raise SampleError("time outside the video", detail)
        return np.maximum(np.searchsorted(self.times_s, wanted + ROUNDING_S, "right") - 1, 0)

    def within(self, start_s: float, end_s: float) -> VideoTable:
        """Return the frames of a clip [start, end).

        Rows round their times, so that a clip may end a little after the video; one that begins
        after it, or ends long after it, was cut from another video.
        """
        slack = max(SLACK_S, SLACK_SHARE * (end_s - start_s))
        begins_inside = 0 <= start_s < min(end_s, self.end_s - ROUNDING_S)
        if not (begins_inside and end_s <= self.end_s + slack):
            detail = f"{start_s:g} to {end_s:g} s, it ends at {self.end_s:g} s"
            raise SampleError("clip outside the video", detail)
        # A clip that begins while a frame is shown begins with that frame.
        begin = int(self.numbers_at([max(start_s, float(self.times_s[0]))])[0])
        end = max(begin + 1, int(np.searchsorted(self.times_s, end_s - ROUNDING_S)))
        cut: dict[str, Any] = {name: getattr(self, name)[begin:end] for name in PER_FRAME}
        if self.changes is not None:
            cut["changes"] = self.changes[begin:end]
        shown_until = self.end_s if end == len(self) else float(self.times_s[end])
        cut["first_number"] = self.first_number + begin
        return replace(self, **cut, end_s=min(shown_until, end_s))

    def type_of(self, number: int) -> str:
        """Return "I" for a key frame, "P" if it looks only back, "B" if it looks ahead too."""
        if self.is_key[number]:
            return "I"
        return "P" if self.is_forward[number] else "B"

    def positions(self, scale: int) -> NDArray[np.int64]:
        """Return the times on a scale from 0, the first frame, to `scale`, the last."""
        since = self.times_s - self.times_s[0]
        places: NDArray[np.float64] = np.rint(scale * since / max(float(since[-1]), 1e-9))
        return places.astype(np.int64)


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
    """Return when players begin to count: at the first audio or frame, whichever is first."""
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
    # The duration of a container may be that of its audio.
    is_alone = len(container.streams) == 1
    return container.duration / MICROSECONDS if container.duration and is_alone else None


def make_table(
    pts: NDArray[np.int64],
    is_key: NDArray[np.bool_],
    is_shown: NDArray[np.bool_],
    *,
    time_base: float,
    origin_s: float,
    last_duration_s: float,
) -> VideoTable:
    """Return the table of packets that are given in the order of decoding.

    Packets that are not shown must be decoded, but are no frames; frames that no key frame comes
    before cannot be decoded and are none either.
    """
    starts = _start_of(pts, is_key)
    shown = np.flatnonzero(is_shown & (starts >= 0))
    shown = shown[np.argsort(pts[shown], kind="stable")]
    if len(shown) == 0:
        raise SampleError("no frames", f"{len(pts)} packets, {int(is_key.sum())} key frames")
    if (np.diff(pts[shown]) <= 0).any():
        raise SampleError("broken timestamps", "two frames are shown at the same time")
    times_s: Seconds = pts[shown] * np.float64(time_base) - origin_s
    start = starts[shown]
    return VideoTable(
        times_s=times_s,
        end_s=float(times_s[-1]) + last_duration_s,
        pts=pts[shown],
        place=shown,
        start_pts=pts[start],
        start_place=start,
        is_key=is_key[shown],
        is_forward=(pts == np.maximum.accumulate(pts))[shown],
    )


def _start_of(pts: NDArray[np.int64], is_key: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the packet from which on each packet can be decoded, -1 if there is none.

    It is the last key frame before it, unless that one is shown later: frames that were sent after
    a key frame to be shown before it look back across it, to the group before.
    """
    keys = np.flatnonzero(is_key)
    which = np.searchsorted(keys, np.arange(len(pts)), "right") - 1
    if len(keys) == 0:
        return which
    for _ in range(len(keys)):
        leads = (which >= 0) & (pts[keys[which]] > pts)
        if not leads.any():
            break
        which[leads] -= 1
    return np.where(which >= 0, keys[which], -1)


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
