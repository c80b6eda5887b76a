"""Lists of tars for readers that want one: wids' shardindex.json, and a plain list of urls.

    shardindex.json   {"__kind__": "wids-shard-index-v1", "wids_version": 1, "name": NAME,
                       "shardlist": [{"url": U, "nsamples": N, "filesize": B, "md5sum": HEX}, ...]}
    shardlist.json    [{"url": U, "nsamples": N}, ...], with whole paths, and the same list as a
    shardlist.pkl     pickle for training code that takes no JSON; nothing here ever loads a pickle

In shardindex.json, which `wids.ShardListDataset` opens, tars are named relative to the list, so
that both can move together; by its whole name a url, and a path that has nothing in common with the
folder but the root of the disk. `md5sum` is left out unless asked for, since it takes reading every
byte; wids does not need it.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from shardmill.errors import FormatError
from shardmill.model.manifest import ShardEntry
from shardmill.shards.ledger import open_manifest
from shardmill.shards.samples import entry_index, foreign_tar
from shardmill.storage.blob import open_blob
from shardmill.storage.files import write_file
from shardmill.storage.path import Home

FILE_NAME = "shardindex.json"
JSON_NAME = "shardlist.json"
PICKLE_NAME = "shardlist.pkl"
PICKLE_PROTOCOL = 4  # fixed, so that every Python writes the same bytes
CHUNK_BYTES = 4 << 20


class TarPlace(NamedTuple):
    """A tar: its path in the folder or its url, and how many samples and bytes it holds."""

    url: str
    num_samples: int
    num_bytes: int
    is_inside: bool

    def absolute(self, folder: Path) -> str:
        """Return the url, or the whole path of a tar inside the folder."""
        return str(folder.absolute() / self.url) if self.is_inside else self.url

    def relative(self, home: Home) -> str:
        """Return the path as seen from a folder, or the url."""
        return self.url if self.is_inside else home.relative(self.url)


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
        tar_url = foreign_tar(folder, entry.name)
        yield TarPlace(tar_url, entry.num_samples, index.num_bytes, is_inside=False)


def write_wids_index(
    folder: Path,
    *,
    name: str,
    with_md5: bool = False,
    shards: Sequence[ShardEntry] | None = None,
) -> Path:
    """Write FOLDER/shardindex.json for a folder with these shards, by default its manifest's."""
    places, home = list(tar_places(folder, shards)), Home(folder)
    listed: list[dict[str, Any]] = [
        {
            "url": place.relative(home),
            "nsamples": place.num_samples,
            "filesize": place.num_bytes,
        }
        for place in places
    ]
    if with_md5:
        with ThreadPoolExecutor() as pool:  # hashing and reading leave the interpreter free
            sums = pool.map(_md5, [place.absolute(folder) for place in places])
            listed = [{**shard, "md5sum": md5} for shard, md5 in zip(listed, sums)]
    description = {
        "__kind__": "wids-shard-index-v1",
        "wids_version": 1,
        "name": name,
        "shardlist": listed,
    }
    path = folder / FILE_NAME
    write_file(path, orjson.dumps(description, option=orjson.OPT_INDENT_2) + b"\n")
    return path


def _md5(url: str) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    blob = open_blob(url)
    try:
        for offset in range(0, blob.num_bytes, CHUNK_BYTES):
            digest.update(blob.read(offset, min(CHUNK_BYTES, blob.num_bytes - offset)))
    finally:
        blob.close()
    return digest.hexdigest()


def has_list(folder: Path, file_name: str) -> bool:
    """Say whether one of the lists is there and names the tars where they are."""
    try:
        listed = orjson.loads((folder / file_name).read_bytes())
        place = next(tar_places(folder))
        if file_name == FILE_NAME:
            return bool(listed["shardlist"][0]["url"] == place.relative(Home(folder)))
        is_paired = (folder / PICKLE_NAME).exists()
        return is_paired and bool(listed[0]["url"] == place.absolute(folder))
    except (OSError, ValueError, LookupError, TypeError, StopIteration):
        return False


def write_shard_list(folder: Path) -> tuple[Path, Path]:
    """Write FOLDER/shardlist.json and .pkl for a finished folder and return their paths."""
    shards = [
        {"url": place.absolute(folder), "nsamples": place.num_samples}
        for place in tar_places(folder)
    ]
    json_path, pickle_path = folder / JSON_NAME, folder / PICKLE_NAME
    write_file(json_path, orjson.dumps(shards, option=orjson.OPT_INDENT_2) + b"\n")
    write_file(pickle_path, pickle.dumps(shards, protocol=PICKLE_PROTOCOL))
    return json_path, pickle_path
