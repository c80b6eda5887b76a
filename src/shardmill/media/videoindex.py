"""The packets of an ISO media file from its index alone, without reading what they hold.

FFmpeg's own index says when each packet is decoded, which are key frames, and which an edit list
hides; it lacks how much later a packet is shown, which the box `ctts` says in runs:

    ctts    u32 flags, u32 count, then for each run: u32 packets, i32 ticks

The first and the last packets are then demuxed and compared. If anything does not agree (an edit
list that repeats or leaves out packets, a fragmented file), the answer is None.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from struct import error as StructError
from struct import unpack_from
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import SampleError
from shardmill.media.isomedia import find_boxes, first_box, track_number
from shardmill.media.isotables import read_moov
from shardmill.media.videofile import OpenVideo, read_packets
from shardmill.media.videopackets import Packets
from shardmill.model.frames import MAX_FRAMES

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
