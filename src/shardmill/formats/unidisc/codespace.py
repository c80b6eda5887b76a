"""Ids of a token space with image codes as they are, or counted from 0 beside a modality.

UniDisc stores codes raw (0 .. K-1) and says in `modality` which ids are codes, so that the shift
can be chosen when a model is trained; others want every id as the model sees it.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardmill.model.space import TokenSpace

CodeForm: TypeAlias = Literal["raw", "shifted"]


def num_ids(space: TokenSpace, form: CodeForm) -> int:
    """Return how many different ids there are: with raw codes, text and codes share numbers."""
    if form == "shifted":
        return space.size
    text = max([space.text_size + len(space.added), *(1 + i for i in space.specials.values())])
    return max(text, space.num_codes)


def is_code(ids: NDArray[Any], space: TokenSpace) -> NDArray[np.bool_]:
    """Return which ids are image codes."""
    if not space.num_codes:
        return np.zeros(ids.shape, np.bool_)
    # Below the first code the difference wraps around to a great number: one comparison is enough.
    unsigned = ids.view(f"u{ids.itemsize}")
    mask: NDArray[np.bool_] = (unsigned - unsigned.dtype.type(space.code_offset)) < space.num_codes
    return mask


def make_raw(ids: NDArray[Any], codes: NDArray[np.bool_], space: TokenSpace) -> None:
    """Count the ids that are codes from 0, in place."""
    if space.num_codes:
        ids -= codes * ids.dtype.type(space.code_offset)
