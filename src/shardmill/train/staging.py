"""Copies of shards on a local disk or in shared memory, made once a node.

`stage(folder, "/dev/shm/data")` makes the same folder there before training, file by file. A file
is copied under a private name, compared with the manifest's checksum and renamed, so that what is
there is whole; the processes of a node share the work by a lock for each file. The manifest comes
last: a folder that has it is complete.

`stage_in_background(folder, "/dev/shm/data")` returns at once. A thread copies shard after shard,
as many as `max_bytes` and the disk allow; readers that were opened with `staged_dir=` read the
originals until a copy has arrived (see `storage.cache`), and those that found no room for as long
as they live. Of the processes of a node one copies, the others wait to take its place. Trouble with
copying is told in the log and never stops training.

Both remove the copies with their last user: `remove`, or the end of a `with` block.
"""

from __future__ import annotations

import atexit
import fcntl
import logging
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import xxhash

from shardmill.errors import ConfigError, FormatError, ShardmillError
from shardmill.model.manifest import Manifest, ShardEntry
from shardmill.shards.ledger import open_manifest
from shardmill.shards.samples import entry_index, tar_place
from shardmill.storage.cache import LOG_NAME
from shardmill.storage.path import AnyPath, as_path

log = logging.getLogger(__name__)

CHUNK = 8 << 20
USERS = ".users"
RETRY_S = 1.0
# Of what is free, so much stays free for others.
SPARE_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Staged:
    """A staged folder in use by this process; the copy goes when its last user does."""

    folder: Path
    num_bytes: int
    _users: int

    def remove(self) -> None:
        """Give the copy up; it is deleted unless another process of the node still uses it."""
        with suppress(OSError):
            try:
                fcntl.flock(self._users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.leave()
                return
            # The manifest goes first: a half deleted copy must not look complete.
            (self.folder / "manifest.json").unlink(missing_ok=True)
            shutil.rmtree(self.folder, ignore_errors=True)
            self.leave()

    def leave(self) -> None:
        """Give the copy up, but leave it there."""
        os.close(self._users)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.remove()


@dataclass(frozen=True, slots=True)
class FileCopy:
    """A file to copy: where it is, its path in the copy, its size and perhaps its checksum."""

    source: Path
    path: str
    num_bytes: int
    checksum: str | None


def stage(folder: AnyPath, staged_dir: AnyPath, *, max_bytes: int | None = None) -> Staged:
    """Copy a finished folder to `staged_dir`, or use the copy that is there; returns it in use.

    All processes of a node may call this at once. The copy must fit into `max_bytes`, and into
    what is free there.
    """
    source, target = as_path(folder), Path(staged_dir)
    manifest = open_manifest(source)
    staged = use_folder(target, manifest.num_bytes)
    with ExitStack() as unless_copied:
        unless_copied.callback(staged.leave)
        _check_room(target, manifest, max_bytes)
        for shard in manifest.shards:
            for entry in shard.files.values():
                found = source / entry.path
                copy_file(target, FileCopy(found, entry.path, entry.num_bytes, entry.checksum))
        with _locked(target / ".manifest.lock"):
            _replace(source / "manifest.json", target / "manifest.json")
        unless_copied.pop_all()
    return staged


def use_folder(target: Path, num_bytes: int) -> Staged:
    """Return a folder for copies, made if it is not there, in use by this process."""
    (target / "shards").mkdir(parents=True, exist_ok=True)
    users = os.open(target / USERS, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    fcntl.flock(users, fcntl.LOCK_SH)
    return Staged(target, num_bytes, users)


def copy_file(target: Path, file: FileCopy, stop: threading.Event | None = None) -> None:
    """Put one file at its place, unless it is there already, or `stop` is set meanwhile."""
    path = target / file.path
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path.with_name(f".{path.name}.lock")):
        if path.exists() and path.stat().st_size == file.num_bytes:
            return
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            checksum = _copy(file.source, draft, stop)
            if checksum is None:
                return
            _check_copy(file, draft, checksum)
            draft.rename(path)
        finally:
            draft.unlink(missing_ok=True)


def _copy(source: Path, draft: Path, stop: threading.Event | None = None) -> str | None:
    state = xxhash.xxh3_64()
    with source.open("rb") as reading, draft.open("wb") as writing:
        while chunk := reading.read(CHUNK):
            if stop is not None and stop.is_set():
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


def _replace(source: Path, path: Path) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_bytes(source.read_bytes())
    draft.rename(path)


def _check_room(target: Path, manifest: Manifest, max_bytes: int | None) -> None:
    num_bytes = manifest.num_bytes
    if max_bytes is not None and num_bytes > max_bytes:
        raise ConfigError(
            f"the folder has {num_bytes:,} bytes, staging may use {max_bytes:,}: stage a part, or "
            "allow more"
        )
    entries = [entry for shard in manifest.shards for entry in shard.files.values()]
    there = sum(entry.num_bytes for entry in entries if (target / entry.path).exists())
    free = shutil.disk_usage(target).free
    if num_bytes - there > free:
        raise ConfigError(f"{target} has {free:,} bytes free, {num_bytes - there:,} are needed")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    # A lock of the kernel: it goes with the process that holds it, however that ends.
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


class Staging:
    """Copying that goes on, until the `with` block, `remove` or the process ends."""

    def __init__(self, source: Path, staged: Staged, manifest: Manifest, limit: int) -> None:
        self.folder, self._staged = staged.folder, staged
        self._source, self._manifest, self._limit = source, manifest, limit
        self._stop, self._done = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="stage-in-background", daemon=True)
        self._thread.start()
        self._pid = os.getpid()
        atexit.register(self.remove)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until all that has room is there; say whether it is."""
        return self._done.wait(timeout_s)

    def remove(self) -> None:
        """Stop copying; the copies are deleted unless another process of the node uses them."""
        atexit.unregister(self.remove)
        if os.getpid() != self._pid:
            return  # a forked worker that ends in the usual way
        self._stop.set()
        self._thread.join()
        self._staged.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.remove()

    def _run(self) -> None:
        lock = os.open(self.folder / ".stager", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
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
        arrived, used, left_out = _arrived(self.folder), 0, 0
        for shard in self._manifest.shards:
            files = list(_files(self._source, self._manifest, shard))
            num_bytes = sum(file.num_bytes for file in files)
            is_there = shard.name in arrived
            if used + num_bytes > self._limit or not (is_there or self._has_room(num_bytes)):
                left_out += 1
                continue
            used += num_bytes
            for file in files:
                copy_file(self.folder, file, self._stop)
            if self._stop.is_set():
                return
            if not is_there:
                self._announce(shard)
        if left_out:
            log.info("%d shards found no room in %s and stay where they are", left_out, self.folder)

    def _has_room(self, num_bytes: int) -> bool:
        return num_bytes + SPARE_BYTES <= shutil.disk_usage(self.folder).free

    def _announce(self, shard: ShardEntry) -> None:
        with (self.folder / LOG_NAME).open("a") as log_file:
            log_file.write(f"{shard.name}\n")


def stage_in_background(
    folder: AnyPath, staged_dir: AnyPath, *, max_bytes: int | None = None
) -> Staging:
    """Begin to copy the shards of a finished folder; all processes of a node may call this."""
    source = as_path(folder)
    manifest = open_manifest(source)
    limit = max_bytes if max_bytes is not None else 1 << 63
    staged = use_folder(Path(staged_dir), manifest.num_bytes)
    return Staging(source, staged, manifest, limit)


def _files(source: Path, manifest: Manifest, shard: ShardEntry) -> Iterator[FileCopy]:
    for entry in shard.files.values():
        yield FileCopy(source / entry.path, entry.path, entry.num_bytes, entry.checksum)
    if manifest.content == "samples" and "tar" not in shard.files:
        # A tar that was indexed where it lies: its size is known, but nobody has summed it up.
        index = entry_index(source, shard)
        url, relative = tar_place(source, shard, index)
        yield FileCopy(as_path(url), relative, index.num_bytes, None)


def _arrived(folder: Path) -> set[str]:
    path = folder / LOG_NAME
    return set(path.read_text().split()) if path.exists() else set()


def _try_lock(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
