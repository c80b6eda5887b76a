"""Files in an order that no filesystem decides: folders walked by name, globs sorted.

A folder of an object store is listed in one go, and comes in the same order as a local one.

Symbolic links are followed; a link to a folder that is being walked already is left out, so that a
loop ends. A folder that cannot be listed is an error, because what it holds would be lost.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path, PurePath
from typing import Protocol

from shardmill.errors import ConfigError, FormatError
from shardmill.sources.part import name_from_path, unique
from shardmill.storage.objects import ObjectInfo, list_all
from shardmill.storage.path import UrlPath, as_path, expand, is_remote

WILD = frozenset("*?[{")


@dataclass(frozen=True, slots=True)
class Listed:
    """A file: its path, its path below the input that named it, and a name of its own."""

    path: Path
    relative: str
    name: str


class Entry(Protocol):
    """A file of a folder that is walked: an `os.DirEntry`, or an object of a store."""

    @property
    def name(self) -> str:
        """Its name in the folder."""

    def stat(self) -> os.stat_result:
        """Return its size and time."""


@dataclass(frozen=True, slots=True)
class _Object:
    name: str
    info: ObjectInfo

    def stat(self) -> os.stat_result:
        return self.info.stat()


def list_files(inputs: Iterable[str], wanted: Callable[[str], str | None]) -> Iterator[Listed]:
    """Yield each file of the inputs once; `wanted` gives the stem of a file name, or None.

    An input is a file, a folder (all wanted files below it) or a glob. A file that is named
    itself is taken even if its suffix says nothing.
    """
    taken: set[str] = set()
    seen: set[str] = set()
    for given in inputs:
        for root, relative, is_named in _expand(given, wanted):
            path = _joined(root, relative)
            if path in seen:
                continue
            seen.add(path)
            file = PurePath(relative)
            stem = wanted(file.name) or (file.stem if is_named else None)
            if stem is not None:
                name = unique(name_from_path(f"{file.parent}/{stem}"), taken)
                yield Listed(as_path(path), relative, name)


def walk(root: Path) -> Iterator[tuple[str, list[Entry]]]:
    """Yield (relative folder, its files sorted by name) for a folder and all below it."""
    return _walk_remote(root) if isinstance(root, UrlPath) else _walk_local(root)


def _walk_remote(root: Path) -> Iterator[tuple[str, list[Entry]]]:
    folders: dict[tuple[str, ...], list[Entry]] = {(): []}
    for info in list_all(str(root)):
        *above, name = info.path.split("/")
        if not any(part.startswith(".") for part in above):
            folders.setdefault(tuple(above), []).append(_Object(name, info))
    for folder in sorted(folders):
        yield "/".join(folder), sorted(folders[folder], key=lambda entry: entry.name)


def _walk_local(root: Path) -> Iterator[tuple[str, list[Entry]]]:
    info = root.stat()
    # (relative path, the folders on the way to it), the next one at the end
    waiting: list[tuple[str, tuple[tuple[int, int], ...]]] = [("", ((info.st_dev, info.st_ino),))]
    while waiting:
        relative, above = waiting.pop()
        entries = _sorted_entries(root / relative)
        yield relative, [entry for entry in entries if not _is_folder(entry)]
        for entry in reversed(entries):
            if _is_folder(entry) and not entry.name.startswith("."):
                info = entry.stat()
                here = (info.st_dev, info.st_ino)
                if here not in above:
                    below = f"{relative}/{entry.name}" if relative else entry.name
                    waiting.append((below, (*above, here)))


def fingerprint(paths: Iterable[Path]) -> dict[str, list[int]]:
    """Return path -> [size, mtime_ns] of each file."""
    return {str(path): size_and_time(path) for path in paths}


def size_and_time(path: Path) -> list[int]:
    """Return [size, mtime_ns] of a file."""
    try:
        info = path.stat()
    except OSError as error:
        raise FormatError(f"cannot be looked at: {error.strerror}", path=path) from error
    return [info.st_size, info.st_mtime_ns]


def _expand(given: str, wanted: Callable[[str], str | None]) -> Iterator[tuple[str, str, bool]]:
    """Yield (root, path below it, whether the file itself was named) of the files of one input."""
    path = as_path(given)
    if path.is_dir():
        for folder, entries in walk(path):
            for entry in entries:
                if wanted(entry.name) is not None:
                    yield given, f"{folder}/{entry.name}" if folder else entry.name, False
    elif is_remote(given):
        yield from _expand_remote(given)
    elif os.path.lexists(given):
        yield str(path.parent), path.name, True
    else:
        root = _fixed_folder(given)
        for found in map(Path, expand(given)):
            if found.is_dir():
                yield from _expand(str(found), wanted)
            elif not found.exists():
                raise ConfigError(f"{str(found)!r} does not exist: give a file, folder or glob")
            else:
                yield str(root), str(found.relative_to(root)), True


def _expand_remote(given: str) -> Iterator[tuple[str, str, bool]]:
    root = "".join(takewhile(lambda letter: letter not in WILD, given)).rpartition("/")[0]
    for url in expand(given):
        if not as_path(url).is_file():
            raise ConfigError(f"{url!r} does not exist: give an object, folder or glob")
        yield root, url[len(root) + 1 :], True


def _joined(root: str, relative: str) -> str:
    return f"{root}/{relative}" if is_remote(root) else os.path.normpath(f"{root}/{relative}")


def _fixed_folder(pattern: str) -> Path:
    """Return the folders of a pattern before its first wildcard or brace."""
    return Path(*takewhile(lambda part: not WILD.intersection(part), Path(pattern).parts[:-1]))


def _sorted_entries(path: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as scan:
            return sorted(scan, key=lambda entry: entry.name)
    except OSError as error:
        raise FormatError(f"cannot be listed: {error.strerror}", path=path) from error


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return stat.S_ISDIR(entry.stat().st_mode) if entry.is_symlink() else entry.is_dir()
    except OSError:
        return False
