"""How files get into an output folder: each is there whole or not at all.

The folder lies on a disk or in an object store, and `Backend` is the one interface for both: of two
that `create` the same file one succeeds, and a file lasts once a call returns.

On a disk, after a power cut, a file system may have lost everything that was not fsynced, in any
combination: the bytes of a file (unless the file was), a new, removed or renamed name (unless its
folder was). So what must not be believed too early is written in this order: bytes, fsync of the
files, rename, fsync of the folder; and only then the receipt that lists them, in the same way.

In a store an object appears when all of it has arrived. But a run that was taken for dead, and
wakes up, cannot be kept from putting its files. Three things make that harmless. The same unit of
the same stage gives the same bytes, so what it puts is what is there already. Before it puts
anything it looks whether the unit has a receipt, and then puts nothing. And a receipt is created,
never replaced: if two runs did one unit differently (as two kinds of GPU may), the second finds the
other's receipt, withdraws it and fails, so that the unit is done again; and every receipt holds the
checksums by which `shardmill check` finds a mix.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol, TypeAlias, TypeVar

from shardmill.errors import StoreError
from shardmill.storage import objects
from shardmill.storage.path import UrlPath
from shardmill.storage.prefetch import map_ahead

NUM_SYNC_THREADS = 8
NUM_UPLOADS = 8
# Receipts are small, so a request is nearly all waiting: ask for many at once.
NUM_READS = 32
READS_AHEAD = 1024
NOT_OFFERED = frozenset({errno.EINVAL, errno.ENOTSUP, errno.ENOSYS})
NO_LINKS = NOT_OFFERED | {errno.EPERM, errno.EMLINK, errno.EXDEV}
DRAFT_NAME = re.compile(r"\..+\.[0-9a-f]{16}")
T = TypeVar("T")
Moves: TypeAlias = Sequence[tuple[Path, Path]]


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
        """Return when the names in the folder are on the disk, as far as its file system offers it.

        Some (FUSE, SMB) refuse to sync a folder: there a name lasts when the call that makes it
        returns, or it is theirs to say when. No order of our calls could promise more.
        """
        try:
            _sync(path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            if error.errno not in NOT_OFFERED:
                raise

    def rename(self, source: Path, target: Path) -> None:
        """Give a file its final name, in place of whatever had it."""
        before = os.stat(source)  # noqa: PTH116
        try:
            os.rename(source, target)  # noqa: PTH104
        except FileNotFoundError:
            # A server whose first reply was lost is asked again, and finds that it is done.
            if not _is_same(before, target):
                raise

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
            objects.put_file(str(path), Path(folder) / path.name)
        return
    draft_path = _draft_of(path, draft_dir or path.parent)
    with removed_on_error(disk, draft_path):
        yield draft_path
        disk.sync_file(draft_path)
        disk.rename(draft_path, path)
    disk.sync_dir(path.parent)


def _draft_of(path: Path, folder: Path) -> Path:
    return folder / f".{path.name}.{secrets.token_hex(8)}"


def is_file_draft(path: Path) -> bool:
    """Say whether a path has the name of a file that is not in its place yet."""
    return DRAFT_NAME.fullmatch(path.name) is not None


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


def _is_same(before: os.stat_result, path: Path) -> bool:
    try:
        now = path.stat()
    except OSError:
        return False
    return all(
        getattr(before, name) == getattr(now, name) for name in ("st_ino", "st_size", "st_mtime_ns")
    )


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


class Backend(Protocol):
    """What the ledger and the locks need of the place where a folder lies."""

    def make_folder(self, path: Path) -> None:
        """Make a folder and those above it, where folders are made."""

    def put(self, path: Path, content: bytes) -> None:
        """Create or replace a file."""

    def create(self, path: Path, content: bytes) -> bool:
        """Create a file unless it exists; say whether it was us."""

    def renew(self, path: Path, is_mine: Callable[[bytes], bool], content: bytes) -> bool:
        """Replace a small file if it is ours, and say whether it was; its length stays."""

    def sync(self, drafts: Sequence[Path]) -> None:
        """Make sure that finished drafts are safe before anything older is removed."""

    def move(self, moves: Moves) -> None:
        """Give drafts their final places."""

    def write_receipts(self, receipts: Sequence[tuple[Path, bytes]]) -> None:
        """Write receipts, now that every file they list is in its place."""

    def remove(self, paths: Iterable[Path]) -> None:
        """Remove files, which may already be gone."""

    def discard(self, paths: Iterable[Path]) -> None:
        """Remove files that do no harm if a crash brings them back."""


def backend_of(folder: Path, draft_dir: Path | None = None, disk: Disk = DISK) -> Backend:
    """Return the backend of a folder; drafts of a local one lie in `draft_dir`."""
    if isinstance(folder, UrlPath):
        return StoreBackend()
    return LocalBackend(draft_dir or folder, disk)


@dataclass(frozen=True, slots=True)
class LocalBackend:
    """A folder of a file system; drafts lie in `draft_dir`, on the same one."""

    draft_dir: Path
    disk: Disk = DISK

    def make_folder(self, path: Path) -> None:
        """Make a folder so that no crash takes it away."""
        make_dirs(path, disk=self.disk)

    def put(self, path: Path, content: bytes) -> None:
        """Replace a file by rename."""
        write_file(path, content, draft_dir=self.draft_dir, disk=self.disk)

    def create(self, path: Path, content: bytes) -> bool:
        """Create a file exclusively; it is no receipt, so a crash may take it away.

        By a second name for a file that is written already: nobody sees a part of it, and where
        the reply to the one who made it is lost, the content says who that was.
        """
        draft_path = _draft_of(path, self.draft_dir)
        try:
            self.disk.write(draft_path, content)
            return self._link(draft_path, path, content)
        finally:
            with suppress(OSError):  # it would hide what came of the link
                self.disk.unlink(draft_path)

    def _link(self, draft_path: Path, path: Path, content: bytes) -> bool:
        try:
            os.link(draft_path, path)
        except FileExistsError:
            return path.read_bytes() == content
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            return _create_exclusively(path, content)
        return True

    def renew(self, path: Path, is_mine: Callable[[bytes], bool], content: bytes) -> bool:
        """Write over the file in place; one that is not ours is never touched."""
        with path.open("r+b", buffering=0) as file:
            if not is_mine(file.read(len(content))):
                return False
            file.seek(0)
            file.write(content)
        return True

    def sync(self, drafts: Sequence[Path]) -> None:
        self.disk.sync_files(drafts)

    def move(self, moves: Moves) -> None:
        """Rename the drafts and sync the folders."""
        for source, target in moves:
            self.disk.rename(source, target)
        for folder in sorted({target.parent for _, target in moves}):
            self.disk.sync_dir(folder)

    def write_receipts(self, receipts: Sequence[tuple[Path, bytes]]) -> None:
        """Write receipts beside the drafts, sync them, and rename them into place."""
        moves = [(self.draft_dir / f"{path.stem}.receipt", path) for path, _ in receipts]
        for (draft_path, _), (_, content) in zip(moves, receipts):
            self.disk.write(draft_path, content)
        self.disk.sync_files([draft_path for draft_path, _ in moves])
        self.move(moves)

    def remove(self, paths: Iterable[Path]) -> None:
        """Remove files so that no crash brings them back."""
        remove_files(paths, disk=self.disk)

    def discard(self, paths: Iterable[Path]) -> None:
        """Remove files without waiting for the disk."""
        for path in paths:
            self.disk.unlink(path)


def _create_exclusively(path: Path, content: bytes) -> bool:
    """Create a file where a file cannot have two names."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        return False
    with os.fdopen(descriptor, "wb", buffering=0) as file, removed_on_error(DISK, path):
        file.write(content)
    return True


@dataclass(frozen=True, slots=True)
class StoreBackend:
    """A folder of an object store; drafts are local files that are uploaded."""

    def make_folder(self, path: Path) -> None:
        """Do nothing: a store has no folders."""

    def put(self, path: Path, content: bytes) -> None:
        objects.put(str(path), content)

    def create(self, path: Path, content: bytes) -> bool:
        """Put the object on the condition that there is none."""
        return objects.create(str(path), content)

    def renew(self, path: Path, is_mine: Callable[[bytes], bool], content: bytes) -> bool:
        """Put the object on the condition that it is still what was looked at."""
        return objects.exchange(str(path), is_mine, content)

    def sync(self, drafts: Sequence[Path]) -> None:
        """Do nothing: what makes a file last is its upload."""

    def move(self, moves: Moves) -> None:
        """Upload the drafts, several at a time, and remove them."""

        def upload(move: tuple[Path, Path]) -> None:
            source, target = move
            objects.put_file(str(target), source)
            source.unlink()

        _in_parallel(upload, moves)

    def write_receipts(self, receipts: Sequence[tuple[Path, bytes]]) -> None:
        """Create the receipts; one that exists and differs is withdrawn, and is an error."""

        def create(receipt: tuple[Path, bytes]) -> None:
            path, content = receipt
            if not objects.create(str(path), content):
                objects.delete([str(path)])
                raise StoreError(
                    f"two runs wrote {path} at the same time, with different results: run the "
                    "same command again, which does this unit once more",
                    passing=True,
                )

        _in_parallel(create, receipts)

    def remove(self, paths: Iterable[Path]) -> None:
        objects.delete(map(str, paths))

    def discard(self, paths: Iterable[Path]) -> None:
        self.remove(paths)


def _in_parallel(function: Callable[[T], None], items: Sequence[T]) -> None:
    threads = min(NUM_UPLOADS, len(items))
    for _ in map_ahead(function, items, threads=threads, ahead=len(items)):
        pass


def list_sizes(folder: Path) -> dict[str, int]:
    """Return name -> size of the files in a folder; one that does not exist is empty."""
    if isinstance(folder, UrlPath):
        return {info.path: info.num_bytes for info in objects.list_here(str(folder))[1]}
    sizes = {}
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            # A file may go while the folder is being listed.
            with suppress(FileNotFoundError):
                sizes[entry.name] = entry.stat().st_size
    return sizes


def list_names(folder: Path) -> list[str]:
    """Return the names of the files in a folder, sorted; one that does not exist is empty."""
    if isinstance(folder, UrlPath):
        return [info.path for info in objects.list_here(str(folder))[1]]
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 (names alone, ten times faster)
    except FileNotFoundError:
        return []


def read_all(folder: Path, names: Sequence[str]) -> Iterator[bytes | None]:
    """Yield the content of each file, None for one that is gone; of a store many at a time."""
    # Joined as text: a path object costs as much as opening the file.
    places = [f"{folder}/{name}" for name in names]
    if not isinstance(folder, UrlPath):
        return map(_read_file, places)
    return map_ahead(_read_object, places, threads=NUM_READS, ahead=READS_AHEAD)


def _read_file(path: str) -> bytes | None:
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123
            return file.read()
    except FileNotFoundError:
        return None


def _read_object(url: str) -> bytes | None:
    try:
        return objects.get(url)
    except FileNotFoundError:
        return None
