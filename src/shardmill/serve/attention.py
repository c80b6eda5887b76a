"""Three ways to tell a model where documents end; B packs of S places, documents D.

indexed  attention_mask int64 [B, S]: 1, 2, 3 ... by document, 0 for padding
4d       attention_mask bool [B, 1, S, S]: a place sees itself and what is before it in its
         document; padding sees only itself, since a row that sees nothing becomes NaN
thd      seq_lens, seq_lens_padded int64 [B, D], filled up with -1000; cu_seqlens int32 over the
         flattened batch, padding included; max_seqlen; qkv_format = "thd"
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from shardmill.pack.layout import Layout

Attention = Literal["indexed", "4d", "thd"]
NO_DOCUMENT = -1000


def index_masks(layouts: Sequence[Layout], size: int) -> torch.Tensor:
    """Return the number of the document at each place, 0 for padding."""
    masks = np.zeros((len(layouts), size), np.int64)
    for mask, layout in zip(masks, layouts):
        mask[: layout.size] = layout.index_mask()
    return torch.from_numpy(masks)


def indexed(layouts: Sequence[Layout], size: int) -> dict[str, Any]:
    """Return the compact mask."""
    return {"attention_mask": index_masks(layouts, size)}


def block_causal(layouts: Sequence[Layout], size: int) -> dict[str, Any]:
    """Return the mask that is written out, of `size` squared places a pack."""
    index = index_masks(layouts, size)
    allowed = index[:, :, None] == index[:, None, :]
    allowed &= (index > 0)[:, None, :]
    allowed = allowed.tril_()
    allowed |= torch.eye(size, dtype=torch.bool)
    return {"attention_mask": allowed[:, None]}


def thd(layouts: Sequence[Layout], size: int) -> dict[str, Any]:
    """Return lengths; the padding at the end of a pack belongs to its last document."""
    lengths = [_or_one_empty(layout.lengths) for layout in layouts]
    padded = [_filled_up(layout.padded, size) for layout in layouts]
    flat = np.fromiter(chain.from_iterable(row.tolist() for row in padded), np.int64)
    return {
        "seq_lens": _table(lengths),
        "seq_lens_padded": _table(padded),
        "cu_seqlens": torch.from_numpy(np.concatenate([[0], np.cumsum(flat)]).astype(np.int32)),
        "max_seqlen": int(flat.max(initial=0)),
        "qkv_format": "thd",
    }


LAYOUTS: Mapping[str, Callable[[Sequence[Layout], int], dict[str, Any]]] = {
    "indexed": indexed,
    "4d": block_causal,
    "thd": thd,
}


def _or_one_empty(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    # A pack without documents is all padding, which must belong to something.
    return lengths if len(lengths) else np.zeros(1, np.int64)


def _filled_up(padded: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    filled = _or_one_empty(padded).copy()
    filled[-1] += size - int(filled.sum())
    return filled


def _table(rows: Sequence[NDArray[np.int64]]) -> torch.Tensor:
    table = np.full((len(rows), max(map(len, rows))), NO_DOCUMENT, np.int64)
    for place, row in zip(table, rows):
        place[: len(row)] = row
    return torch.from_numpy(table)
