"""What is known of the packets of a video stream, found by reading all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import SampleError
from shardmill.media.videofile import OpenVideo, read_packets
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
