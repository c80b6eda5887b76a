"""Probes a video: exact times and key frames of every frame, nothing decoded.

MP4 lists its packets in its index, other files are demuxed from end to end: some 5 ms or 25 ms for
a minute of 720p. What the header says is compared with what is there: a file that was cut off, or
whose header promises another duration, is rejected.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import SampleError
from shardmill.media.videofile import OpenVideo, broken_as
from shardmill.media.videoindex import list_packets
from shardmill.media.videopackets import Packets, demux_packets
from shardmill.media.videotable import VideoTable, make_table

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
    """Return when players begin to count: at the first sound or picture, whichever is first."""
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
