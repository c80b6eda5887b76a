"""Copies of a folder's files that arrive in a folder near by, while the originals are being read.

Whoever copies (see `serve.stagealong`) puts each file there whole, under the path that it has in
the original folder, and then adds a line to the file `arrived`. Readers look at the size of that
file now and then, and open again what has come.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

LOG_NAME = "arrived"
LOOK_EVERY_S = 2.0


class Arriving:
    """The copies in a folder, as one reader has seen them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._seen, self._look_at = 0, 0.0

    def find(self, original: str, relative: str) -> str:
        """Return where to read a file: its copy if that has come, else the original."""
        copy = self.folder / relative
        return str(copy) if copy.exists() else original

    def has_news(self) -> bool:
        """Say whether more copies have come since the last yes; looks every two seconds."""
        now = time.monotonic()
        if now < self._look_at:
            return False
        self._look_at = now + LOOK_EVERY_S
        try:
            size = os.stat(self.folder / LOG_NAME).st_size  # noqa: PTH116 (a microsecond counts)
        except FileNotFoundError:
            size = 0
        seen, self._seen = self._seen, size
        return size != seen


def arriving_in(folder: Path | str | None) -> Arriving | None:
    """Return the copies in a folder, None if there is no such folder to look at."""
    return None if folder is None else Arriving(Path(folder))
