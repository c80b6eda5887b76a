"""Pages of a mapped file asked for at once, which costs less than a fault for every few of them."""

from __future__ import annotations

import mmap
import sys
from contextlib import suppress
from typing import Any

from numpy.typing import NDArray

MADV_POPULATE_READ = 22  # of Linux since 5.14; Python has no name for it


def populate(flat: NDArray[Any], start: int, stop: int) -> None:
    """Map the pages with the items `start` to `stop`, if the array is a whole mapped file.

    Nothing depends on it: elsewhere, and on older kernels, pages come when they are touched.
    """
    mapping = getattr(flat.base, "obj", None)
    if not isinstance(mapping, mmap.mmap) or sys.platform != "linux" or stop <= start:
        return
    first = start * flat.itemsize // mmap.PAGESIZE * mmap.PAGESIZE
    with suppress(OSError):
        mapping.madvise(MADV_POPULATE_READ, first, stop * flat.itemsize - first)
