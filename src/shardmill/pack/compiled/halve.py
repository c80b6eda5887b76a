"""One level of the splitting in `balance`, as `pack.halve` does it, row by row."""

from __future__ import annotations

from typing import Any

import numpy as np

from shardmill.pack.compiled.decorator import compiled


@compiled
def halve(by_visual: Any, by_attention: Any, on_attention: Any, middle: int, is_left: Any) -> None:
    """Move the `middle` cheapest packs of each row to its left, keeping both sides sorted."""
    rest = np.empty(by_visual.shape[1], np.uint32)
    for row in range(len(by_visual)):
        # The matrix that decides is sorted already: its left half is the cheap one.
        decided, other = by_visual[row], by_attention[row]
        if on_attention[row]:
            decided, other = other, decided
        for place in range(middle):
            is_left[decided[place]] = True
        kept = moved = 0
        for pack in other:
            if is_left[pack]:
                other[kept] = pack
                kept += 1
            else:
                rest[moved] = pack
                moved += 1
        for place in range(moved):
            other[kept + place] = rest[place]
        for place in range(middle):
            is_left[decided[place]] = False
