"""An array container put at its path: whole and on the disk, or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from shardmill.io.arrays import write_arrays
from shardmill.io.atomic import made_file
from shardmill.io.pieces import open_to_write


def store_arrays(
    path: Path, format: str, arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]
) -> None:
    """Write the container to a file or an object."""
    with made_file(path) as draft_path, open_to_write(draft_path) as file:
        write_arrays(file, format, arrays, meta)
