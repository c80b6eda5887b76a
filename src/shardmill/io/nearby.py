"""Local copies of small files that lie in a store: indexes, spans, plans, length tables.

They are mapped like local ones, so all processes of a machine share one copy. A copy is named by
the url, size and version of its object, so it is never outdated; together they stay below
`$SHARDMILL_CACHE_BYTES`, the least recently opened go first. Removing one that is mapped is safe:
its bytes stay until the last user has gone.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from shardmill.errors import ConfigError, FormatError
from shardmill.io.atomic import DISK, removed_on_error
from shardmill.io.scratch import scratch_root
from shardmill.remote import objects
from shardmill.remote.client import call, find_object
from shardmill.remote.path import UrlPath

LIMIT_VARIABLE = "SHARDMILL_CACHE_BYTES"
LIMIT_BYTES = 32 << 30
CHUNK_BYTES = 16 << 20
NUM_THREADS = 16


def near(path: Path) -> Path:
    """Return a local file with the content of `path`: itself, or a copy of what lies in a store."""
    if not isinstance(path, UrlPath):
        return path
    try:
        info = objects.look(str(path))
        name = blake2b(f"{path}\n{info.num_bytes}\n{info.tag}\n{info.mtime_ns}".encode())
        copy_path = scratch_root() / "cache" / name.hexdigest()[:32]
        if not _touch(copy_path):
            _fetch(path, info.num_bytes, copy_path)
    except FileNotFoundError as error:
        raise FormatError("does not exist", path=path) from error
    return copy_path


def bring_near(paths: Iterable[Path]) -> None:
    """Fetch many small files at once, so that opening each of them does not wait for a store."""
    remote = [path for path in paths if isinstance(path, UrlPath)]
    if remote:
        with ThreadPoolExecutor(NUM_THREADS) as pool:
            list(pool.map(near, remote))


def _touch(copy_path: Path) -> bool:
    """Note that a copy is used; say whether it is there."""
    try:
        os.utime(copy_path)
    except FileNotFoundError:
        return False
    return True


def _fetch(path: Path, num_bytes: int, copy_path: Path) -> None:
    copy_path.parent.mkdir(parents=True, exist_ok=True)
    limit = _limit()
    if num_bytes > limit:
        raise ConfigError(
            f"{path} has {num_bytes:,} bytes, local copies may have {limit:,}: raise "
            f"{LIMIT_VARIABLE}"
        )
    draft_path = copy_path.with_name(f".{secrets.token_hex(8)}")
    with removed_on_error(DISK, draft_path):
        _download(path, num_bytes, draft_path)
        DISK.rename(draft_path, copy_path)
    _forget_oldest(copy_path, limit)


def _download(path: Path, num_bytes: int, draft_path: Path) -> None:
    found = find_object(str(path))
    with draft_path.open("wb") as file:
        for start in range(0, num_bytes, CHUNK_BYTES):
            length = min(CHUNK_BYTES, num_bytes - start)
            file.write(call(found, "get_range", start=start, length=length))
        if file.tell() != num_bytes:
            raise FormatError("changed while it was read: try again", path=path)


def _forget_oldest(newest: Path, limit: int) -> None:
    copies = []
    for entry in os.scandir(newest.parent):
        with suppress(FileNotFoundError):
            info = entry.stat()
            copies.append((info.st_mtime_ns, info.st_size, entry.path))
    total = sum(size for _, size, _ in copies)
    for _, size, name in sorted(copies):
        if total <= limit:
            return
        if name != str(newest):
            Path(name).unlink(missing_ok=True)
            total -= size


def _limit() -> int:
    text = os.environ.get(LIMIT_VARIABLE, str(LIMIT_BYTES))
    if not text.isdigit():
        raise ConfigError(f"{LIMIT_VARIABLE} must be a number of bytes, got {text!r}")
    return int(text)
