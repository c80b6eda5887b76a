"""Files that many units write together, each its own range, in place.

Some readers want all rows in one file. Copying finished shards into it would write every byte
twice, so units write straight into a file that has its full size from the start. Where a unit's
rows go is part of its input, so doing it again writes the same bytes to the same place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from shardmill.errors import ConfigError
from shardmill.io.receipts import Ledger
from shardmill.model.stage import Unit, check_name
from shardmill.remote.path import UrlPath


def make_shared_files(ledger: Ledger, sizes: Mapping[str, int], units: Sequence[Unit]) -> None:
    """Create the shared files that are missing or have another size.

    A new file holds nothing, so no receipt may vouch for a range of it: all units are done again.
    """
    if sizes and isinstance(ledger.out_dir, UrlPath):
        raise ConfigError(
            f"{', '.join(sizes)} hold the rows of all units, which an object store cannot take "
            "piece by piece: export to a local folder and copy it"
        )
    paths = {ledger.out_dir / check_name(name): size for name, size in sizes.items()}
    missing = [path for path, size in paths.items() if not _has_size(path, size)]
    if not missing:
        return
    ledger.forget([unit.name for unit in units])
    for path in missing:
        ledger.disk.unlink(path)
        with path.open("wb") as file:
            file.truncate(paths[path])
        ledger.disk.sync_file(path)
    ledger.disk.sync_dir(ledger.out_dir)


def _has_size(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size
