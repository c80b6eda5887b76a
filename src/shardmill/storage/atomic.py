"""Atomic writes: a file is whole or absent after a crash, and what was removed stays removed.

After a power cut a file system may have lost everything that was not fsynced, in any combination:
the bytes of a file (unless the file was), a new, removed or renamed name (unless its folder was).
So what must not be believed too early is written in this order: bytes, fsync of the files, rename,
fsync of the folder; and only then the receipt that lists them, in the same way.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from shardmill.storage.path import UrlPath
from shardmill.storage.prefetch import map_ahead

NUM_SYNC_THREADS = 8


class Disk:
    """The system calls that decide what survives a crash; a test puts others in their place."""

    def write(self, path: Path, content: bytes) -> None:
        """Create or replace a file, without any promise about a crash."""
        with path.open("wb", buffering=0) as file:
            view = memoryview(content)
            while view:
                view = view[file.write(view) :]

    def sync_file(self, path: Path) -> None:
        """Return when the bytes of the file are on the disk."""
        _sync(path, os.O_RDONLY)

    def sync_files(self, paths: Sequence[Path]) -> None:
        """Return when the bytes of all these files are on the disk.

        At the same time, because a file system makes one flush of many requests that wait.
        """
        threads = min(NUM_SYNC_THREADS, len(paths))
        for _ in map_ahead(self.sync_file, paths, threads=threads, ahead=len(paths)):
            pass

    def sync_dir(self, path: Path) -> None:
        """Return when the names in the folder are on the disk."""
        _sync(path, os.O_RDONLY | os.O_DIRECTORY)

    def rename(self, source: Path, target: Path) -> None:
        """Give a file its final name, in place of whatever had it."""
        os.rename(source, target)  # noqa: PTH104

    def unlink(self, path: Path) -> None:
        """Remove a name, which may already be gone."""
        with suppress(FileNotFoundError):
            path.unlink()


DISK = Disk()


def write_file(
    path: Path, content: bytes, *, draft_dir: Path | None = None, disk: Disk = DISK
) -> None:
    """Replace a file: after a crash it holds the old bytes or the new ones, never a part."""
    if isinstance(path, UrlPath):
        from shardmill.storage import objects

        objects.put(str(path), content)
        return
    with made_file(path, draft_dir=draft_dir, disk=disk) as draft_path:
        disk.write(draft_path, content)


@contextmanager
def made_file(path: Path, *, draft_dir: Path | None = None, disk: Disk = DISK) -> Iterator[Path]:
    """Yield where to write a file; on leaving, it replaces the one at `path`, whole or not at all.

    That is in `draft_dir` (of the same file system), or else beside the file; or in a temporary
    folder, from which it is put into a store.
    """
    if isinstance(path, UrlPath):
        with TemporaryDirectory(prefix="shardmill-") as folder:
            yield Path(folder) / path.name
            from shardmill.storage import objects

            objects.put_file(str(path), Path(folder) / path.name)
        return
    draft_path = (draft_dir or path.parent) / f".{path.name}.{secrets.token_hex(8)}"
    with removed_on_error(disk, draft_path):
        yield draft_path
        disk.sync_file(draft_path)
        disk.rename(draft_path, path)
    disk.sync_dir(path.parent)


def remove_files(paths: Iterable[Path], *, disk: Disk = DISK) -> None:
    """Remove files so that no crash brings them back."""
    existing = [path for path in paths if path.exists()]
    for path in existing:
        disk.unlink(path)
    for folder in {path.parent for path in existing}:
        disk.sync_dir(folder)


def make_dirs(path: Path, *, disk: Disk = DISK) -> None:
    """Create a folder and its parents so that no crash takes them away."""
    if path.is_dir():
        return
    make_dirs(path.parent, disk=disk)
    path.mkdir(exist_ok=True)
    disk.sync_dir(path.parent)


@contextmanager
def removed_on_error(disk: Disk, path: Path) -> Iterator[None]:
    """Leave no half-written file behind, whatever went wrong."""
    with ExitStack() as cleanup:
        cleanup.callback(disk.unlink, path)
        yield
        cleanup.pop_all()


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def link_or_copy(source: Path, target: Path) -> None:
    """Give a file a second name; on another file system, make a copy."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
