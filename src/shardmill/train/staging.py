"""Copies of shards on a local disk or in shared memory, made once a node while training goes on.

`Staging(folder, "/dev/shm/data")` returns at once. A thread copies shard after shard, as many as
`max_bytes` and the disk allow; readers that were opened with `staged_dir=` read the originals until
a copy has arrived (see `storage.cache`), and those that found no room for as long as they live.
Trouble with copying is told in the log and never stops training. In the folder of copies:

    shards/...    the files, each put in place whole, under the same paths as in the original
    arrived       the names of the shards that are complete, one a line
    .stager       locked by the one process of the node that copies; the others wait for its place
    .users        locked by every process that uses the copies; the last one deletes them

Both locks are the kernel's: they go with the process that holds them, however that ends.
"""

from __future__ import annotations

import atexit
import fcntl
import logging
import os
import shutil
import stat
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import xxhash

from shardmill.errors import ConfigError, FormatError, ShardmillError
from shardmill.model.manifest import ShardEntry
from shardmill.shards.ledger import open_manifest
from shardmill.shards.samples import entry_index, tar_place
from shardmill.storage.cache import LOG_NAME, check_own
from shardmill.storage.path import AnyPath, as_path

log = logging.getLogger(__name__)

# So much is read between two looks at whether to stop.
CHUNK = 8 << 20
RETRY_S = 1.0
USERS = ".users"
# Of what is free, so much stays free for others: /dev/shm is memory.
SPARE_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class FileCopy:
    """A file to copy: where it is, its path in the copy, its size and perhaps its checksum."""

    source: Path
    path: str
    num_bytes: int
    checksum: str | None


class Staging:
    """Copying that goes on until all that has room is there, and copies that stay until `remove`.

    `remove` is called by the end of a `with` block and by the end of the process. All processes of
    a node may stage the same folder to the same place: one copies, the copies go with the last.
    """

    def __init__(
        self, folder: AnyPath, staged_dir: AnyPath, *, max_bytes: int | None = None
    ) -> None:
        self.folder, self._source = Path(staged_dir), as_path(folder)
        self._manifest, self._max_bytes = open_manifest(self._source), max_bytes
        self._users: int | None = _use(self.folder)
        self._stop, self._done = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="staging", daemon=True)
        self._thread.start()
        self._pid = os.getpid()
        atexit.register(self.remove)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until all that has room is there; say whether it is."""
        return self._done.wait(timeout_s)

    def remove(self) -> None:
        """Stop copying; the copies are deleted unless another process of the node uses them."""
        atexit.unregister(self.remove)
        if os.getpid() != self._pid or self._users is None:
            return  # a forked worker that ends in the usual way, or a second call
        self._stop.set()
        self._thread.join()
        users, self._users = self._users, None
        try:
            if _try_lock(users):
                _delete(self.folder)
        finally:
            os.close(users)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def _run(self) -> None:
        lock = _open_lock(self.folder / ".stager")
        try:
            while not self._stop.is_set() and not _try_lock(lock):
                self._stop.wait(RETRY_S)
            if not self._stop.is_set():
                self._copy_all()
        except (ShardmillError, OSError) as error:
            log.warning("copying to %s stopped, training goes on without: %s", self.folder, error)
        finally:
            os.close(lock)
            self._done.set()

    def _copy_all(self) -> None:
        arrived, used, left_out = self._arrived(), 0, 0
        for shard in self._manifest.shards:
            files = list(self._files(shard))
            num_bytes = sum(file.num_bytes for file in files)
            is_there = shard.name in arrived
            if not self._has_room(0 if is_there else num_bytes, used + num_bytes):
                left_out += 1
                continue
            used += num_bytes
            for file in files:
                copy_file(self.folder, file, self._stop)
            if self._stop.is_set():
                return
            if not is_there:
                # After its last file: readers take a shard whose name is here to be whole.
                with (self.folder / LOG_NAME).open("a") as log_file:
                    log_file.write(f"{shard.name}\n")
        if left_out:
            log.info("%d shards found no room in %s and stay where they are", left_out, self.folder)

    def _has_room(self, more: int, total: int) -> bool:
        if self._max_bytes is not None and total > self._max_bytes:
            return False
        return not more or more + SPARE_BYTES <= shutil.disk_usage(self.folder).free

    def _arrived(self) -> set[str]:
        path = self.folder / LOG_NAME
        return set(path.read_text().split()) if path.exists() else set()

    def _files(self, shard: ShardEntry) -> Iterator[FileCopy]:
        for entry in shard.files.values():
            yield FileCopy(self._source / entry.path, entry.path, entry.num_bytes, entry.checksum)
        if self._manifest.content == "samples" and "tar" not in shard.files:
            # A tar that was indexed where it lies: its size is known, but nobody has summed it up.
            index = entry_index(self._source, shard)
            url, relative = tar_place(self._source, shard, index)
            yield FileCopy(as_path(url), relative, index.num_bytes, None)


def _use(folder: Path) -> int:
    """Return a lock that says that this process uses the copies in a folder, made if need be."""
    while True:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except FileExistsError:
            # It was there when it was made, and its last user deleted it before it was looked at.
            with suppress(FileNotFoundError):
                if not stat.S_ISDIR(folder.lstat().st_mode):
                    raise ConfigError(f"{folder} is no folder: copies need one") from None
            continue
        with suppress(FileNotFoundError):  # its last user has just deleted it: begin again
            check_own(folder, "give copies a folder that nobody else can write to")
            names = [path.name for path in folder.iterdir()]
            # The last user deletes the folder, so it must not be one that holds anything else.
            if names and USERS not in names:
                raise ConfigError(f"{folder} holds other files: give copies a folder of their own")
            users = _open_lock(folder / USERS)
            fcntl.flock(users, fcntl.LOCK_SH)
            # While we waited for the lock, the file that it is on may have been deleted.
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(users), (folder / USERS).stat()):
                    return users
            os.close(users)


def _delete(folder: Path) -> None:
    """Delete copies; the lock goes last, so that a folder with anything in it has one."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != USERS:
            path.unlink(missing_ok=True)
    with suppress(OSError):  # somebody who came meanwhile has made the lock anew
        (folder / USERS).unlink()
        folder.rmdir()


def copy_file(target: Path, file: FileCopy, stop: threading.Event) -> None:
    """Put one file at its place, unless it is there already, or `stop` is set meanwhile."""
    path = target / file.path
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size == file.num_bytes:
        return
    # Under a private name until it is checked, so that what has its own name is whole.
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        checksum = _copy(file.source, draft, stop)
        if checksum is not None:
            _check_copy(file, draft, checksum)
            draft.rename(path)
    finally:
        draft.unlink(missing_ok=True)


def _copy(source: Path, draft: Path, stop: threading.Event) -> str | None:
    state = xxhash.xxh3_64()
    with source.open("rb") as reading, draft.open("wb") as writing:
        while chunk := reading.read(CHUNK):
            if stop.is_set():
                return None
            state.update(chunk)
            writing.write(chunk)
    return state.hexdigest()


def _check_copy(file: FileCopy, draft: Path, checksum: str) -> None:
    num_bytes = draft.stat().st_size
    if num_bytes != file.num_bytes:
        raise FormatError(
            f"has {num_bytes} bytes, {file.num_bytes} were expected", path=file.source
        )
    if file.checksum is not None and checksum != file.checksum:
        raise FormatError(
            f"has the checksum {checksum}, the manifest says {file.checksum}: run shardmill check",
            path=file.source,
        )


def _open_lock(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


def _try_lock(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
