"""Three-axis rotary positions (time, height, width) of one document, as Qwen's models count them.

Text moves all three axes together. A medium starts where the text stopped and spreads its tokens
over a grid; after it, text goes on at the start plus the longer side of the grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, repeat

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import SampleError
from shardmill.model.tokenrow import MediaSpan, TokenRow


def mrope_positions(
    row: TokenRow,
    *,
    merge_size: int,
    tokens_per_second: float | None = None,
    seconds_per_grid: Sequence[float] = (),
) -> NDArray[np.int64]:
    """Return the (3, n) positions of a document whose media spans have grids in patches (t, h, w).

    With `tokens_per_second`, the temporal patches of a video are spaced by its `seconds_per_grid`,
    one value a video, 1.0 where there is none. A span that its grid does not fill is a
    `SampleError`.
    """
    seconds = chain(seconds_per_grid, repeat(1.0))
    parts = [np.empty((3, 0), np.int64)]
    token = position = 0
    for span in row.media:
        parts.append(_text(position, span.position - token))
        position += span.position - token
        spacing = 1.0
        if span.kind == "video" and tokens_per_second is not None:
            spacing = tokens_per_second * float(next(seconds))
        parts.append(_spread(span, merge_size, spacing) + position)
        position += max(span.grid[1:]) // merge_size
        token = span.position + span.num_tokens
    parts.append(_text(position, len(row.ids) - token))
    return np.concatenate(parts, axis=1)


def _text(position: int, length: int) -> NDArray[np.int64]:
    return np.broadcast_to(np.arange(position, position + length, dtype=np.int64), (3, length))


def _spread(span: MediaSpan, merge_size: int, spacing: float) -> NDArray[np.int64]:
    depth, tall, wide = span.grid[0], span.grid[1] // merge_size, span.grid[2] // merge_size
    if depth * tall * wide != span.num_tokens:
        raise SampleError(
            "media tokens do not match their grid",
            f"{span.num_tokens} tokens for a grid of {span.grid} merged by {merge_size}",
        )
    # The models multiply in single precision before they cut to whole positions.
    times = (np.arange(depth, dtype=np.float32) * np.float32(spacing)).astype(np.int64)
    spread = np.empty((3, depth, tall, wide), np.int64)
    spread[0] = times[:, None, None]
    spread[1] = np.arange(tall)[:, None]
    spread[2] = np.arange(wide)
    return spread.reshape(3, -1)
