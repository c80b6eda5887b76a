"""Files kept on this machine for a remote folder: scratch space, cached copies, staged copies.

The scratch folder is `$SHARDMILL_SCRATCH`, or else one in the system's temporary folder. A large,
fast local disk is best: a worker needs room there for what its unit writes and uploads.

Indexes, spans, plans and length tables that lie in a store are copied there once and mapped like
local files, so all processes of a machine share one copy. A copy is named by the url, size and
version of its object, so it is never outdated. Together they stay below `$SHARDMILL_CACHE_BYTES`;
the least recently opened go first. Removing one that is mapped is safe: its bytes stay until the
last user has gone.

Staged copies (see `train.staging`) appear in a folder of their own while the originals are being
read. Each is put there whole, under the path that it has in the original folder; then a line is
added to the file `arrived`. Readers look at the size of that file now and then.
"""

from __future__ import annotations

import os
import secrets
import stat
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from shardmill.errors import ConfigError, FormatError
from shardmill.storage.objects import call, find_object, look
from shardmill.storage.path import UrlPath
from shardmill.storage.prefetch import map_ahead

SCRATCH_VARIABLE = "SHARDMILL_SCRATCH"
LIMIT_VARIABLE = "SHARDMILL_CACHE_BYTES"
LIMIT_BYTES = 32 << 30
# A copy is fetched by ranges, so that a connection that breaks loses one of them.
CHUNK_BYTES = 16 << 20
NUM_THREADS = 16
LOG_NAME = "arrived"
LOOK_EVERY_S = 2.0


def scratch_root() -> Path:
    """Return the folder of everything that is kept locally for stores."""
    named = os.environ.get(SCRATCH_VARIABLE)
    return Path(named) if named else _own_folder(Path(tempfile.gettempdir()))


def _own_folder(shared: Path) -> Path:
    """Return a folder of this user alone in one that all users share."""
    folder = shared / f"shardmill-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    check_own(folder, f"set {SCRATCH_VARIABLE} to a folder of your own")
    return folder


def check_own(folder: Path, to_do: str) -> None:
    """Raise `ConfigError` unless a folder is this user's alone: what lies there is believed."""
    info = folder.lstat()
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid() or info.st_mode & 0o022:
        raise ConfigError(f"{folder} is not ours alone, others may write there: {to_do}")


def scratch_dir(url: str) -> Path:
    """Return the folder for one folder of a store."""
    return scratch_root() / "drafts" / blake2b(url.encode(), digest_size=8).hexdigest()


def local_copy(path: Path) -> Path:
    """Return a local file with the content of `path`: itself, or a copy of what lies in a store."""
    if not isinstance(path, UrlPath):
        return path
    try:
        info = look(str(path))
        name = blake2b(f"{path}\n{info.num_bytes}\n{info.tag}\n{info.mtime_ns}".encode())
        copy_path = scratch_root() / "cache" / name.hexdigest()[:32]
        with suppress(FileNotFoundError):
            os.utime(copy_path)  # now the most recently used one
            # Copies are not synced, so a power cut may leave an empty file under the name.
            if copy_path.stat().st_size == info.num_bytes:
                return copy_path
        _fetch(path, info.num_bytes, copy_path)
    except FileNotFoundError as error:
        raise FormatError("does not exist", path=path) from error
    return copy_path


def fetch_copies(paths: Iterable[Path]) -> None:
    """Copy many small files at once, so that opening each of them does not wait for a store."""
    remote = [path for path in paths if isinstance(path, UrlPath)]
    threads = min(NUM_THREADS, len(remote))
    for _ in map_ahead(local_copy, remote, threads=threads, ahead=len(remote)):
        pass


def remembered(name: str, make: Callable[[], str]) -> str:
    """Return a short text that is made once on this machine; `name` says all that decides it."""
    try:
        path = scratch_root() / "cache" / name
        known = path.read_text() if path.is_file() else ""
    except (OSError, ConfigError):  # whoever has no place to remember makes it each time
        return make()
    if known.endswith("\n"):  # written whole
        return known[:-1]
    made = make()
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{made}\n")
    return made


def _fetch(path: Path, num_bytes: int, copy_path: Path) -> None:
    copy_path.parent.mkdir(parents=True, exist_ok=True)
    limit = _limit()
    if num_bytes > limit:
        raise ConfigError(
            f"{path} has {num_bytes:,} bytes, local copies may have {limit:,}: raise "
            f"{LIMIT_VARIABLE}"
        )
    # Several processes may fetch one object at once: each writes its own file, and the last rename
    # puts the same bytes there again.
    draft_path = copy_path.with_name(f".{secrets.token_hex(8)}")
    try:
        _download(path, num_bytes, draft_path)
        draft_path.rename(copy_path)
    finally:
        draft_path.unlink(missing_ok=True)
    _remove_oldest(copy_path, limit)


def _download(path: Path, num_bytes: int, draft_path: Path) -> None:
    found = find_object(str(path))
    with draft_path.open("wb") as file:
        for start in range(0, num_bytes, CHUNK_BYTES):
            length = min(CHUNK_BYTES, num_bytes - start)
            file.write(call(found, "get_range", start=start, length=length))
        if file.tell() != num_bytes:
            raise FormatError("changed while it was read: try again", path=path)


def _remove_oldest(newest: Path, limit: int) -> None:
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


class StagedCopies:
    """The staged copies in a folder, as one reader has seen them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._seen, self._look_at = 0, 0.0

    def find(self, original: str, relative: str) -> str:
        """Return where to read a file: its copy if that has come, else the original."""
        copy = self.folder / relative
        return str(copy) if copy.exists() else original

    def has_news(self) -> bool:
        """Say whether more copies have come since the last yes; looks every two seconds."""
        now = time.monotonic()
        if now < self._look_at:
            return False
        self._look_at = now + LOOK_EVERY_S
        try:
            size = os.stat(self.folder / LOG_NAME).st_size  # noqa: PTH116 (a microsecond counts)
        except FileNotFoundError:
            size = 0
        seen, self._seen = self._seen, size
        return size != seen
