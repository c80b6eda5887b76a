"""Lists of frames that others took: the pictures of a document that follow each other.

They are a video of which each frame is a key frame, at a given rate or at the times that their
segments have, so that every sampler that needs no decoding can choose among them. The chosen
pictures stay as they are, and those that are not chosen go.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np

from shardmill.errors import SampleError
from shardmill.media.videotable import VideoTable, make_table
from shardmill.model.sample import Segment

MIN_FRAMES = 2
THOUSANDTHS = 1000


def find_lists(segments: Sequence[Segment]) -> Iterator[range]:
    """Yield the places of pictures that follow each other in one turn."""
    numbered = groupby(range(len(segments)), key=lambda place: _voice(segments[place]))
    for (kind, *_), group in numbered:
        places = list(group)
        if kind == "image" and len(places) >= MIN_FRAMES:
            yield range(places[0], places[-1] + 1)


def list_table(segments: Sequence[Segment], fps: float) -> VideoTable:
    """Return a list of pictures as the table of a video."""
    starts = [segment.time_s[0] for segment in segments if segment.time_s is not None]
    if len(starts) != len(segments):
        starts = [number / fps for number in range(len(segments))]
    pts = np.rint(np.array(starts) * THOUSANDTHS).astype(np.int64)
    if (np.diff(pts) <= 0).any():
        raise SampleError("broken timestamps", "the frames of a list are not in order of time")
    every = np.ones(len(segments), bool)
    return make_table(
        pts, every, every, time_base=1 / THOUSANDTHS, origin_s=0.0, last_duration_s=1 / fps
    )


def _voice(segment: Segment) -> tuple[str, str | None, int]:
    return segment.kind, segment.role, segment.turn
