"""Probes a video by demuxing: exact times and key frames of every frame, nothing decoded.

A minute of 720p takes some 25 ms. What the header says is compared with what is there: a file that
was cut off, or whose header promises another duration, is rejected.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import SampleError
from shardmill.media.videofile import OpenVideo, broken_as, read_packets
from shardmill.media.videotable import VideoTable, make_table
from shardmill.model.frames import MAX_FRAMES

MICROSECONDS = 1_000_000
# In AVI, which has no times, FFmpeg knows the order of older codecs, but not of these.
REORDERED = ("h264", "hevc")
SHOWN_VP8 = 0x10  # the bit of a VP8 frame's first byte that says that it is shown
# Containers whose header states a duration; others let FFmpeg guess from the bit rate.
STATES_DURATION = ("mov", "matroska", "avi", "flv")
# Rounding, a last frame without duration and sound that ends later are no lies.
TOLERATED_S, TOLERATED_SHARE = 1.0, 0.1


@dataclass(slots=True)
class _Packets:
    """What is kept of each packet, in the order of decoding, in ticks of the stream."""

    pts: list[int] = field(default_factory=list)
    dts: list[int] = field(default_factory=list)
    is_key: list[bool] = field(default_factory=list)
    is_shown: list[bool] = field(default_factory=list)
    duration: list[int] = field(default_factory=list)


def probe_video(video: OpenVideo) -> VideoTable:
    """Return the table of all frames; a broken, cut off or lying file is a `SampleError`."""
    _check_complete(video)
    _check_order(video)
    with broken_as("broken video"):
        packets = _demux(video)
    pts, is_shown = np.array(packets.pts, np.int64), np.array(packets.is_shown, bool)
    base = float(video.stream.time_base)
    table = make_table(
        pts,
        np.array(packets.is_key, bool),
        is_shown,
        time_base=base,
        origin_s=_origin_s(video, pts[is_shown], base),
        last_duration_s=_last_duration(pts, packets.duration) * base,
    )
    _check_duration(video, table, (max(packets.dts) - min(packets.dts)) * base)
    return table


def _demux(video: OpenVideo) -> _Packets:
    packets, is_vp8 = _Packets(), video.codec == "vp8"
    for number, packet in enumerate(read_packets(video)):
        if packet.is_corrupt:
            raise SampleError("truncated video", f"packet {number} is not complete")
        pts = _pts(packet, video, number)
        packets.pts.append(pts)
        packets.dts.append(pts if packet.dts is None else packet.dts)
        packets.is_key.append(packet.is_keyframe)
        packets.is_shown.append(not packet.is_discard and not (is_vp8 and _is_hidden(packet)))
        packets.duration.append(packet.duration or 0)
        if number >= MAX_FRAMES:
            raise SampleError("absurd number of frames", f"more than {MAX_FRAMES}")
    return packets


def _pts(packet: Any, video: OpenVideo, number: int) -> int:
    if packet.pts is not None:
        return int(packet.pts)
    # Without frames that look ahead, frames are shown in the order in which they are decoded.
    if packet.dts is not None and not video.stream.codec_context.has_b_frames:
        return int(packet.dts)
    raise SampleError("no frame times", f"packet {number} does not say when it is shown")


def _is_hidden(packet: Any) -> bool:
    return not bytes(packet)[0] & SHOWN_VP8


def _origin_s(video: OpenVideo, pts: NDArray[np.int64], base: float) -> float:
    """Return when players begin to count: at the first sound or picture, whichever is first."""
    first = int(pts.min()) * base if len(pts) else 0.0
    start = video.container.start_time
    return first if start is None else min(first, start / MICROSECONDS)


def _last_duration(pts: NDArray[np.int64], durations: list[int]) -> float:
    if len(pts) == 0:
        return 0.0
    stated = durations[int(pts.argmax())]
    gaps = np.diff(np.sort(pts))
    return float(stated or (np.median(gaps) if len(gaps) else 0))


def _check_complete(video: OpenVideo) -> None:
    """An index of ISO media lists every packet before any is read: the last must be there."""
    if not video.container.format.name.startswith("mov"):
        return
    entries = video.stream.index_entries
    ends = [entries[i].pos + entries[i].size for i in (0, len(entries) - 1)] if entries else []
    if ends and max(ends) > video.num_bytes:
        detail = f"{video.num_bytes} bytes, its frames need {max(ends)}"
        raise SampleError("truncated video", detail)


def _check_order(video: OpenVideo) -> None:
    is_avi = video.container.format.name == "avi"
    if is_avi and video.codec in REORDERED and video.stream.codec_context.has_b_frames:
        raise SampleError("no frame times", f"AVI does not say when frames of {video.codec} show")


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
