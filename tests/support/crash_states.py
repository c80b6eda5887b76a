"""A disk that remembers every call, and all states in which a crash may leave it.

The model is as hard as POSIX allows. Until a file is fsynced its bytes may be missing, short or
whole. Until a folder is fsynced each of its names may stand as after any earlier call: a rename is
a new name in one folder and a lost one in another, and each of the two may survive alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shardmill.storage.files import Disk

Inode = int


@dataclass
class TracingDisk(Disk):
    """Does the real calls, except fsync, and keeps what each name may be after a crash.

    `names[path]` lists what the name may refer to: an inode, or None for nothing. The last entry
    is what a running program sees; fsync of the folder forgets all others.
    """

    names: dict[Path, list[Inode | None]] = field(default_factory=dict)
    contents: dict[Inode, bytes] = field(default_factory=dict)
    synced: set[Inode] = field(default_factory=set)
    moments: list[CrashMoment] = field(default_factory=list)
    skip: frozenset[str] = frozenset()
    held: dict[Inode, int] = field(default_factory=dict)

    def __del__(self) -> None:
        for descriptor in self.held.values():
            os.close(descriptor)

    def write(self, path: Path, content: bytes) -> None:
        super().write(path, content)
        self.adopt(path)

    def adopt(self, path: Path) -> None:
        """Take note of a file that was written behind our back, and of a name for it."""
        inode = os.stat(path).st_ino
        # While it is open its number is not given to another file.
        if inode not in self.held:
            self.held[inode] = os.open(path, os.O_RDONLY)
        self.contents[inode] = path.read_bytes()
        self.synced.discard(inode)
        self._name(path, inode)
        self._remember()

    def sync_file(self, path: Path) -> None:
        if "sync_file" not in self.skip:
            inode = os.stat(path).st_ino
            if inode not in self.contents:
                self.adopt(path)
            self.contents[inode] = path.read_bytes()
            self.synced.add(inode)
        self._remember()

    def sync_files(self, paths: Sequence[Path]) -> None:
        for path in paths:
            self.sync_file(path)

    def sync_dir(self, path: Path) -> None:
        if f"sync_dir {path.name}" not in self.skip:
            for name, values in self.names.items():
                if name.parent == path:
                    del values[:-1]
        self._remember()

    def rename(self, source: Path, target: Path) -> None:
        inode = os.stat(source).st_ino
        if inode not in self.contents:
            self.adopt(source)
        super().rename(source, target)
        self._name(target, inode)
        self._name(source, None)
        self._remember()

    def unlink(self, path: Path) -> None:
        super().unlink(path)
        self._name(path, None)
        self._remember()

    def _name(self, path: Path, inode: Inode | None) -> None:
        self.names.setdefault(path, [None]).append(inode)

    def _remember(self) -> None:
        names = {path: tuple(set(values)) for path, values in self.names.items()}
        self.moments.append(CrashMoment(names, dict(self.contents), frozenset(self.synced)))


@dataclass(frozen=True)
class CrashMoment:
    """One moment at which the power may go."""

    names: dict[Path, tuple[Inode | None, ...]]
    contents: dict[Inode, bytes]
    synced: frozenset[Inode]

    def possible(self, path: Path) -> Iterator[bytes | None]:
        """Yield every content that the file may have after the crash, None for no file.

        Names are independent of each other, so what holds for all possibilities of each pair of
        names holds for every state.
        """
        for inode in self.names.get(path, (None,)):
            if inode is None:
                yield None
                continue
            content = self.contents[inode]
            yield content
            if inode not in self.synced:
                yield b""
                yield content[: len(content) // 2]
                yield bytes(len(content))
