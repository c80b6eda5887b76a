"""Files that are written in small pieces, however much is handed over at once.

What is written in one call the system caches in pieces of memory as large as it can find, and in a
virtual machine such pieces are often those that the host must give first: 4 MiB at a time took 1.6
to 3.1 ms for each MB, 256 KiB at a time 0.3 ms.
"""

from __future__ import annotations

import os
from io import BufferedWriter, FileIO
from pathlib import Path
from typing import Any

try:
    from shardmill.io import _weave  # type: ignore[attr-defined, unused-ignore]
except ImportError:  # no compiler was there at the installation
    _weave = None

PIECE_BYTES = 1 << 18
BUFFER_BYTES = 1 << 16


def open_to_write(path: Path) -> BufferedWriter:
    """Create a file or make it empty; small writes are gathered, large ones cut into pieces."""
    return BufferedWriter(PieceFile(path, "wb"), BUFFER_BYTES)


class PieceFile(FileIO):
    """A file without a buffer, in which a large write is many small ones."""

    def write(self, content: Any) -> int:
        """Write all of the content."""
        write_all(self.fileno(), content)
        return memoryview(content).nbytes


def write_all(descriptor: int, content: Any) -> None:
    """Write all bytes of a buffer to a file; other threads run meanwhile."""
    if _weave is not None:
        _weave.write_all(content, descriptor)
        return
    view = memoryview(content).cast("B")
    while view:
        view = view[os.write(descriptor, view[:PIECE_BYTES]) :]


def write_at(descriptor: int, content: Any, offset: int) -> None:
    """Write bytes to their place in a file; from there the next write goes on."""
    os.lseek(descriptor, offset, os.SEEK_SET)
    write_all(descriptor, content)
