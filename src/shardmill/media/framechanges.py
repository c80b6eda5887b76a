"""How much each frame differs from the one before, for finding scenes; decodes every frame.

Frames are compared as grey pictures of 64 x 36. What moves all the time (a pan, water) changes
much from frame to frame, but not more than before, so the lesser of the difference and its own
change counts: differences of 0.2, 0.2, 0.7, 0.2 are changes of 0, 0.5 and 0.2.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from shardmill.extras import need
from shardmill.media.decodeframes import decode_frames
from shardmill.media.videofile import OpenVideo, broken_as
from shardmill.media.videotable import Seconds, VideoTable

WIDTH, HEIGHT = 64, 36


def measure_changes(video: OpenVideo, table: VideoTable) -> Seconds:
    """Return the change of each frame, from 0 to 1; that of the first is 0."""
    scaler = need("av.video.reformatter", extra="video").VideoReformatter()
    differences = np.zeros(len(table))
    before: NDArray[np.int16] | None = None
    with broken_as("broken video"):
        for number, frame in decode_frames(video, table, np.arange(len(table))):
            small = scaler.reformat(frame, WIDTH, HEIGHT, format="gray", threads=1)
            now = small.to_ndarray().astype(np.int16)
            if before is not None:
                differences[number] = np.abs(now - before).mean() / 255
            before = now
    return changes_of(differences)


def changes_of(differences: Seconds) -> Seconds:
    """Return what is new in differences from frame to frame; the first of them is no difference."""
    changes = [0.0] + [min(now, abs(now - last)) for last, now in pairwise(differences.tolist())]
    return np.array(changes)
