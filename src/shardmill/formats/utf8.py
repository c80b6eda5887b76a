"""Whether flat bytes are texts in UTF-8, one after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

HEAD_BITS = 0b1100_0000
CONTINUED = 0b1000_0000  # a byte that goes on with a character has these two bits


def continues(text: Any) -> NDArray[np.bool_]:
    """Return for each byte whether it goes on with the character of the byte before it."""
    found: NDArray[np.bool_] = (np.frombuffer(text, np.uint8) & HEAD_BITS) == CONTINUED
    return found


def is_utf8(text: Any, starts: NDArray[np.int64]) -> bool:
    """Say whether each text is UTF-8: all of them together are, and none begins in a character."""
    try:
        str(text, "utf-8")
    except UnicodeDecodeError:
        return False
    return not bool(continues(text)[starts[starts < len(text)]].any())
