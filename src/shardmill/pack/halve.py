"""One level of the splitting in `balance`: runs of packs, sorted by two costs, cut in halves."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Packs = NDArray[np.uint32]


def halve(
    by_visual: Packs,
    by_attention: Packs,
    on_attention: NDArray[np.bool_],
    middle: int,
    is_left: NDArray[np.bool_],
) -> None:
    """Move the `middle` cheapest packs of each row to its left, keeping both sides sorted.

    Both matrices hold the same packs in each row. `on_attention` says for each row which cost
    decides; `is_left` is working space for one flag a pack, all False before and after.
    """
    left = np.where(on_attention[:, None], by_attention[:, :middle], by_visual[:, :middle])
    is_left[left] = True
    for run in (by_visual, by_attention):
        # Every row has `middle` packs on the left, so that both sides are matrices again.
        mask = is_left[run]
        right = run[~mask].reshape(len(run), -1)
        run[:, :middle] = run[mask].reshape(-1, middle)
        run[:, middle:] = right
    is_left[left] = False
