"""Shards near the GPU: copied once a node to local disk or shared memory before training.

`stage(folder, "/dev/shm/data")` makes the same folder there, file by file. A file is copied under a
private name, compared with the manifest's checksum and renamed, so that what is there is whole; the
processes of a node share the work by a lock for each file. The manifest comes last: a folder that
has it is complete. `Staged.remove` (or leaving a `with` block) deletes what the last user leaves.
"""

from __future__ import annotations

import fcntl
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

from shardmill.errors import ConfigError, FormatError
from shardmill.io.receipts import open_manifest
from shardmill.model.manifest import Manifest
from shardmill.remote.path import as_path

CHUNK = 8 << 20
USERS = ".users"


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
class Copying:
    """A file to copy: where it is, its path in the copy, its size and perhaps its checksum."""

    source: Path
    path: str
    num_bytes: int
    checksum: str | None


def stage(folder: Path | str, near: Path | str, *, max_bytes: int | None = None) -> Staged:
    """Copy a finished folder to `near`, or use the copy that is there; returns it in use.

    All processes of a node may call this at once. The copy must fit into `max_bytes`, and into
    what is free there.
    """
    source, target = as_path(folder), Path(near)
    manifest = open_manifest(source)
    staged = use_folder(target, manifest.num_bytes)
    with ExitStack() as unless_copied:
        unless_copied.callback(staged.leave)
        _check_room(target, manifest, max_bytes)
        for shard in manifest.shards:
            for entry in shard.files.values():
                found = source / entry.path
                copy_file(target, Copying(found, entry.path, entry.num_bytes, entry.checksum))
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


def copy_file(target: Path, file: Copying, stop: threading.Event | None = None) -> None:
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


def _check_copy(file: Copying, draft: Path, checksum: str) -> None:
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
