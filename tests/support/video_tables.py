"""Tables of videos that were never made, for tests of what is chosen from them."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from shardmill.media.samplers import VideoTable, make_table


def steady_table(num_frames: int, *, fps: int = 10, keys: Collection[int] = (0,)) -> VideoTable:
    """Return a video of one rate without frames that look ahead."""
    return make_table(
        np.arange(num_frames),
        np.isin(np.arange(num_frames), list(keys)),
        np.ones(num_frames, bool),
        time_base=1 / fps,
        origin_s=0.0,
        last_duration_s=1 / fps,
    )
