"""A second name for a file: nothing is copied where the file system allows it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def link_or_copy(source: Path, target: Path) -> None:
    """Give a file a second name; on another file system, make a copy."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
