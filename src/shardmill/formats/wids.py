"""wids' shardindex.json: the list of shards that `wids.ShardListDataset` opens.

    {"__kind__": "wids-shard-index-v1", "wids_version": 1, "name": NAME,
     "shardlist": [{"url": U, "nsamples": N, "filesize": B, "md5sum": HEX}, ...]}

A tar of the folder itself is named relative to the list, so that both can move together. `md5sum`
is left out unless asked for, since it takes reading every byte; wids does not need it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from shardmill.formats.tarplaces import TarPlace, tar_places
from shardmill.io.atomic import write_file
from shardmill.io.urls import open_blob
from shardmill.model.manifest import ShardEntry

FILE_NAME = "shardindex.json"
CHUNK_BYTES = 4 << 20


def write_wids_index(
    folder: Path,
    *,
    name: str,
    with_md5: bool = False,
    shards: Sequence[ShardEntry] | None = None,
) -> Path:
    """Write FOLDER/shardindex.json for a folder with these shards, by default its manifest's."""
    description = {
        "__kind__": "wids-shard-index-v1",
        "wids_version": 1,
        "name": name,
        "shardlist": [_shard(folder, place, with_md5) for place in tar_places(folder, shards)],
    }
    path = folder / FILE_NAME
    write_file(path, orjson.dumps(description, option=orjson.OPT_INDENT_2) + b"\n")
    return path


def _shard(folder: Path, place: TarPlace, with_md5: bool) -> dict[str, Any]:
    shard: dict[str, Any] = {
        "url": place.url,
        "nsamples": place.num_samples,
        "filesize": place.num_bytes,
    }
    if with_md5:
        shard["md5sum"] = _md5(place.absolute(folder))
    return shard


def _md5(url: str) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    blob = open_blob(url)
    try:
        for offset in range(0, blob.num_bytes, CHUNK_BYTES):
            digest.update(blob.read(offset, min(CHUNK_BYTES, blob.num_bytes - offset)))
    finally:
        blob.close()
    return digest.hexdigest()
