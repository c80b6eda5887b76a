"""An array container put at its path: whole and on the disk, or not at all."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from numpy.typing import NDArray

from shardmill.io.arrays import write_arrays
from shardmill.io.atomic import DISK, removed_on_error
from shardmill.remote import objects
from shardmill.remote.path import UrlPath


def store_arrays(
    path: Path, format: str, arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]
) -> None:
    """Write the container beside `path`, sync it and give it its name; or put it into a store."""
    if isinstance(path, UrlPath):
        with TemporaryDirectory(prefix="shardmill-") as folder:
            local_path = Path(folder) / path.name
            store_arrays(local_path, format, arrays, meta)
            objects.put_file(str(path), local_path)
        return
    draft_path = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    with removed_on_error(DISK, draft_path):
        with draft_path.open("wb") as file:
            write_arrays(file, format, arrays, meta)
        DISK.sync_file(draft_path)
        DISK.rename(draft_path, path)
    DISK.sync_dir(path.parent)
