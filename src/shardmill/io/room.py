"""Memory for one array after the other, so that a batch is written where the last one was.

The kernel clears every page before it hands it out, which takes about as long as filling it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(slots=True)
class Room:
    """Bytes that are used again: what `take` returned is overwritten after the next call."""

    _memory: NDArray[np.uint8] = field(default_factory=lambda: np.empty(0, np.uint8))

    def take(self, num_bytes: int) -> NDArray[np.uint8]:
        """Return so many bytes, with anything in them."""
        if len(self._memory) < num_bytes:
            # Batches differ a little in size; the next one shall still have room.
            self._memory = np.empty(num_bytes + num_bytes // 4, np.uint8)
        return self._memory[:num_bytes]
