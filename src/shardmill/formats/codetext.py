"""Codes as JSON text, "[12, 7, 4095]", for many pictures at once; "no" where there are none."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.io.numbertext import number_lists
from shardmill.io.room import Room
from shardmill.io.weave import Column, texts, weave

NONE = "no"


def code_texts(codes: NDArray[Any], bounds: NDArray[np.int64], room: Room | None = None) -> Column:
    """Return the text of the codes bounds[i] to bounds[i + 1], in `room` if it is given."""
    listed = number_lists(codes, bounds, b", ", b"[]", room)
    is_empty = np.diff(bounds) == 0
    if not is_empty.any():
        return listed
    kept = Column(listed.data, listed.starts, np.where(is_empty, 0, listed.lengths))
    return weave([kept, texts([b"", NONE.encode()]).taken(is_empty.astype(np.int64))])
