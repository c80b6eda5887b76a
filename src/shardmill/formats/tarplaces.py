"""The tars behind a folder of samples, as other readers want them listed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from shardmill.errors import FormatError
from shardmill.io.receipts import open_manifest
from shardmill.io.sampleset import entry_index
from shardmill.model.manifest import ShardEntry


class TarPlace(NamedTuple):
    """A tar: its path in the folder or its url, and how many samples and bytes it holds."""

    url: str
    num_samples: int
    num_bytes: int
    is_inside: bool

    def absolute(self, folder: Path) -> str:
        """Return the url, or the whole path of a tar inside the folder."""
        return str(folder.absolute() / self.url) if self.is_inside else self.url


def tar_places(folder: Path, shards: Sequence[ShardEntry] | None = None) -> Iterator[TarPlace]:
    """Yield the tars of a folder in order: its own ones, or those its indexes point at.

    `shards` are those of its manifest, for a folder that has none yet.
    """
    for entry in open_manifest(folder).shards if shards is None else shards:
        tar = entry.files.get("tar")
        if tar is not None:
            yield TarPlace(tar.path, entry.num_samples, tar.num_bytes, is_inside=True)
            continue
        if "idx" not in entry.files:
            raise FormatError(f"shard {entry.name} is neither a tar nor an index", path=folder)
        index = entry_index(folder, entry)
        if index.url is None:
            raise FormatError("does not say where its tar is", path=index.arrays.path)
        yield TarPlace(index.url, entry.num_samples, index.num_bytes, is_inside=False)
