"""Receipts that lie in a store, kept locally from look to look, so that only new ones are fetched.

The cache of a folder is one file, a line for each receipt: [name, version, text]. A listing tells
the version of every receipt in a request for a thousand; what has the version that is kept is not
read again. So `status` of a run with many units costs what was done since the last look.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import TypeAlias

from shardmill.io.atomic import write_file
from shardmill.io.folder import read_all
from shardmill.io.jsontext import dump_line, parse_json
from shardmill.io.scratch import scratch_root
from shardmill.remote import objects
from shardmill.remote.path import UrlPath

MIN_KEPT = 64
Kept: TypeAlias = dict[str, tuple[str, bytes]]


def read_receipt_files(folder: Path, names: Sequence[str]) -> Iterator[bytes | None]:
    """Yield the content of each receipt, None for one that is gone."""
    if not isinstance(folder, UrlPath) or len(names) < MIN_KEPT:
        return read_all(folder, names)
    return iter(_read_cached(folder, names))


def _read_cached(folder: Path, names: Sequence[str]) -> list[bytes | None]:
    tags = {info.path: info.tag for info in objects.list_here(str(folder))[1]}
    path = _cache_path(folder)
    kept = _load(path)
    new = [name for name in names if not tags.get(name) or kept.get(name, ("",))[0] != tags[name]]
    fetched = dict(zip(new, read_all(folder, new)))
    contents = [fetched[name] if name in fetched else kept[name][1] for name in names]
    if new:
        _store(path, tags, dict(zip(names, contents)))
    return contents


def _load(path: Path) -> Kept:
    kept: Kept = {}
    # What cannot be read is fetched again.
    with suppress(OSError, ValueError, TypeError, AttributeError):
        for line in path.read_bytes().splitlines():
            name, tag, text = parse_json(line)
            kept[name] = tag, text.encode()
    return kept


def _store(path: Path, tags: Mapping[str, str], contents: Mapping[str, bytes | None]) -> None:
    lines = (
        dump_line([name, tags.get(name, ""), content.decode("utf-8", "replace")])
        for name, content in contents.items()
        if content is not None
    )
    # Somebody without room for it can do without.
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, b"".join(lines))


def _cache_path(folder: Path) -> Path:
    name = blake2b(str(folder).encode(), digest_size=16).hexdigest()
    return scratch_root() / "cache" / f"receipts-{name}"
