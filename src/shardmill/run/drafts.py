"""Private folders for units at work, used again once they are empty.

A file system spreads new folders over the disk, so that a file in a new folder costs ten times as
much as one in a folder that exists. With thousands of small units that is what a run spends.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import deque
from contextlib import suppress
from pathlib import Path


class DraftRoom:
    """Hands out empty folders below `root`; safe to use from two threads."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._empty: deque[Path] = deque()

    def take(self) -> Path:
        """Return an empty folder that nobody else uses."""
        try:
            return self._empty.pop()
        except IndexError:
            return Path(tempfile.mkdtemp(prefix="unit-", dir=self._root))

    def give_back(self, path: Path) -> None:
        """Take back a folder; whatever was left in it is removed."""
        # Somebody who took this run for dead may have removed the folder.
        with suppress(FileNotFoundError):
            if next(path.iterdir(), None) is None:
                self._empty.append(path)
                return
        shutil.rmtree(path, ignore_errors=True)
