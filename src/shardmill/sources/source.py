"""The contract of a source: it lists its parts without reading the data, and reads one part.

A part is a slice of the source as plain JSON; it becomes the input of a unit, so it holds all that
identifies the slice: the name of a file, a range, a checksum ("xxh3") or a size. Where its file is
stands under "raw", which identifies nothing; workers take the checksum of one whose part has none.
A row is one sample as the source stores it, before a shape makes a document of it. Memory is
bounded by a part.

Keys of rows are made from paths or columns: no dot, no climbing, nothing that a tar cannot hold.

Files come in an order that no filesystem decides: folders walked by name, globs sorted. A folder of
an object store is listed in one go, and comes in the same order as a local one. Each folder is
walked once, whatever links to it. A folder that cannot be listed is an error, because what it holds
would be lost; so is a link that leads out of the folder that is walked, unless the user allows it,
and a table or tar that is no regular file.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import islice, takewhile
from pathlib import Path, PurePath
from typing import Any, Protocol, TypeAlias, runtime_checkable

import xxhash

from shardmill.errors import ConfigError, FormatError, SampleError
from shardmill.model.codec import Plain
from shardmill.model.sample import Origin, SegmentKind
from shardmill.model.tokenrow import sample_key
from shardmill.shards.tar.header import MAX_KEY_BYTES, check_key, is_note
from shardmill.sources.allowed import Allowed
from shardmill.storage.objects import ObjectInfo, list_all, look
from shardmill.storage.path import UrlPath, as_path, expand, is_remote, near_path

ROWS_PER_PART = 1000
MAX_LOOK_BYTES = 16 << 20
WILD = frozenset("*?[{")
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePart:
    """A slice of a source; `num_rows` counts what reading it yields, or is None if unknown."""

    input: Mapping[str, Plain]
    num_rows: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row: its fields as stored, and what is needed to find its media.

    `media` holds bytes that came with the row, by name (members of a tar); `media_dir` is where
    relative paths in the fields begin. The fields may name files below it and below the places that
    the user wants to `allow`. A row that cannot be read carries its `problem` instead. The first
    row of a file counts in `passed` what of the file is no row at all, such as folders of a tar.
    """

    key: str
    origin: Origin
    fields: Mapping[str, Any] = field(default_factory=dict)
    media: Mapping[str, bytes | memoryview] = field(default_factory=dict)
    media_dir: str = ""
    allow: tuple[str, ...] = ()
    problem: SampleError | None = None
    passed: Mapping[str, int] = field(default_factory=dict)


Read: TypeAlias = Callable[[Mapping[str, Any]], Iterator[Row]]


@runtime_checkable
class Source(Protocol):
    """A frozen dataclass that lists parts in an order that no filesystem decides."""

    def places(self) -> tuple[str, ...]:
        """Return the folders, files and urls that it was given."""

    def parts(self, per_shard: int | None) -> Iterator[SourcePart]:
        """Yield the parts, of `per_shard` rows each; None means the source's own way to cut."""

    def open(self) -> AbstractContextManager[Read]:
        """Open what reading needs, once a process, and yield `read(part.input)`."""

    def inputs(self) -> Mapping[str, Any]:
        """Return a cheap fingerprint of the input: path -> `stamp`."""


@runtime_checkable
class FileParts(Protocol):
    """A source whose parts name files below a folder that the source has."""

    def files_of(self, part: Mapping[str, Any]) -> list[str]:
        """Return the paths of all files that a part reads."""


MEDIA_KINDS: dict[str, SegmentKind] = {
    **dict.fromkeys(("jpg", "jpeg", "jfif", "png", "gif", "webp", "bmp"), "image"),
    **dict.fromkeys(("tif", "tiff", "avif"), "image"),
    **dict.fromkeys(("mp4", "m4v", "mov", "webm", "mkv", "avi", "mpg", "mpeg"), "video"),
    **dict.fromkeys(("ts", "flv", "wmv", "ogv"), "video"),
    **dict.fromkeys(("wav", "mp3", "flac", "ogg", "m4a", "opus"), "audio"),
}


def media_kind(name: str) -> SegmentKind | None:
    """Return the kind that the last suffix of a name promises, or None; the bytes decide later."""
    return MEDIA_KINDS.get(name.rpartition(".")[2].lower())


# A plus behind "~" too: K~+1 is a row of tokens that was cut off a sample K.
UNSAFE = re.compile(r"[.\\\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]|(?<=~)\+")
# A row number, a number of copies or "~2" may follow a name.
MAX_NAME_BYTES = MAX_KEY_BYTES - 24


def name_from_path(path: str) -> str:
    """Return a relative path as a name: unsafe characters become `_`, a long one ends in a hash.

    Different paths may give one name ("a.b" and "a_b"); `unique` tells them apart. A name is a
    valid key, alone and with a number or another name behind it.
    """
    parts = [UNSAFE.sub("_", part) for part in path.split("/") if part not in ("", ".")]
    name = "".join(c if c.isprintable() else "_" for c in "/".join(parts))
    if is_note(name) or not name:
        # A folder such as __pycache__: stock readers of tars would pass over what it holds.
        name = f"_{name.lstrip('_')}"
    raw = name.encode()
    if len(raw) <= MAX_NAME_BYTES:
        return name
    # "~" and 16 digits; a letter that the cut splits is left out.
    head = raw[: MAX_NAME_BYTES - 17].decode(errors="ignore").rstrip("/")
    return f"{head}~{xxhash.xxh3_64_hexdigest(raw)}"


def unique(name: str, taken: set[str]) -> str:
    """Return `name`, or `name~2`, `name~3`, ... if it is taken, and take it."""
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{name}~{number}"
    taken.add(found)
    return found


def key_from_value(value: object) -> str:
    """Return a user's own key; only its dots change, anything unsafe is a `SampleError`."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise SampleError("bad key", f"a key must be text or a whole number, got {value!r:.100}")
    key = str(value).replace(".", "_")
    check_key(key)
    if sample_key(key) != key:
        raise SampleError("bad key", f"{key!r} looks like a row that was cut off a longer sample")
    return key


@dataclass(frozen=True, slots=True)
class Listed:
    """A file: its path, its path below the input that named it, and a name of its own."""

    path: Path
    relative: str
    name: str


def few_rows(rows: Iterable[Row], count: int) -> list[Row]:
    """Return the first rows, so many or as many as hold so many bytes of text or media."""
    found: list[Row] = []
    num_bytes = 0
    for row in islice(rows, count):
        found.append(row)
        values = (value for value in row.fields.values() if isinstance(value, str | bytes))
        num_bytes += sum(map(len, values))
        if num_bytes > MAX_LOOK_BYTES:
            break
    return found


class Entry(Protocol):
    """A file of a folder that is walked: an `os.DirEntry`, or an object of a store."""

    @property
    def name(self) -> str:
        """Its name in the folder."""

    def stat(self) -> os.stat_result:
        """Return its size and time."""


@dataclass(frozen=True, slots=True)
class RemoteEntry:
    """An object of a store that is walked."""

    name: str
    info: ObjectInfo

    @property
    def tag(self) -> str:
        """What changes with its content, "" if the store does not say."""
        return self.info.tag

    def stat(self) -> os.stat_result:
        return self.info.stat()


def list_files(
    inputs: Iterable[str], wanted: Callable[[str], str | None], allow: tuple[str, ...] = ()
) -> Iterator[Listed]:
    """Yield each file of the inputs once; `wanted` gives the stem of a file name, or None.

    An input is a file, a folder (all wanted files below it) or a glob. A file that is named
    itself is taken even if its suffix says nothing; one that is named twice is refused. Links in a
    folder may lead to `allow`.
    """
    taken: set[str] = set()
    named = Named()
    for given in inputs:
        for root, relative, is_named in _expand(given, wanted, allow):
            path = _joined(root, relative)
            named.add(path, given)
            file = PurePath(relative)
            stem = wanted(file.name) or (file.stem if is_named else None)
            if stem is not None:
                _check_regular(as_path(path))
                name = unique(name_from_path(f"{file.parent}/{stem}"), taken)
                yield Listed(as_path(path), relative, name)


@dataclass(slots=True)
class Named:
    """The files that inputs name so far, by where they really are."""

    seen: dict[str, tuple[str, str]] = field(default_factory=dict)

    def add(self, path: str, given: str) -> None:
        """Note a file and what named it; the second time it is a `ConfigError`."""
        real = path if is_remote(path) else os.path.realpath(path)
        if real in self.seen:
            first, by = self.seen[real]
            ways = f"as {first} and {path}" if first != path else f"by {by!r} and {given!r}"
            raise ConfigError(f"{path} is named twice, {ways}: name each file once")
        self.seen[real] = (path, given)


def walk(root: Path, allow: tuple[str, ...] = ()) -> Iterator[tuple[str, list[Entry]]]:
    """Yield (relative folder, its files sorted by name) for a folder and all below it.

    A link to a folder may lead to one below the root or below `allow`.
    """
    return _walk_remote(root) if isinstance(root, UrlPath) else _walk_local(root, allow)


def _walk_remote(root: Path) -> Iterator[tuple[str, list[Entry]]]:
    folders: dict[tuple[str, ...], list[Entry]] = {(): []}
    for info in list_all(str(root)):
        *above, name = info.path.split("/")
        if not any(part.startswith(".") for part in above):
            folders.setdefault(tuple(above), []).append(RemoteEntry(name, info))
    for folder in sorted(folders):
        yield "/".join(folder), sorted(folders[folder], key=lambda entry: entry.name)


def _walk_local(root: Path, allow: tuple[str, ...]) -> Iterator[tuple[str, list[Entry]]]:
    allowed = Allowed.below(str(root), allow)
    seen: set[tuple[int, int]] = set()
    waiting = [""]  # relative paths, the next one at the end
    while waiting:
        relative = waiting.pop()
        info = (root / relative).stat()
        if (info.st_dev, info.st_ino) in seen:
            continue
        seen.add((info.st_dev, info.st_ino))
        entries = _sorted_entries(root / relative)
        yield relative, [entry for entry in entries if not _is_folder(entry)]
        for entry in reversed(entries):
            if _is_folder(entry) and not entry.name.startswith("."):
                if entry.is_symlink():
                    check_link(entry.path, allowed)
                waiting.append(f"{relative}/{entry.name}" if relative else entry.name)


def check_link(path: str, allowed: Allowed) -> None:
    """Raise `FormatError` if a file or folder that nobody named really lies somewhere else."""
    try:
        allowed.check_real(path, os.path.realpath(path))
    except SampleError as error:
        raise FormatError(error.detail, path=path) from None


def fingerprint(paths: Iterable[Path]) -> dict[str, list[int | str]]:
    """Return path -> stamp of each file."""
    return {str(path): stamp(path) for path in paths}


def stamp(path: Path) -> list[int | str]:
    """Return what tells that a file is the one of before: [size, mtime_ns], or [size, tag].

    An object of a store has a tag, which follows its content; one of a web server may.
    """
    try:
        if isinstance(path, UrlPath):
            found = look(str(path))
            return [found.num_bytes, found.tag or found.mtime_ns]
        info = path.stat()
    except OSError as error:
        raise FormatError(f"cannot be looked at: {error.strerror}", path=path) from error
    return [info.st_size, info.st_mtime_ns]


def size_or_tag(path: Path) -> list[int | str]:
    """Return what a unit says of a file: its size, and the tag of an object of a store."""
    found = stamp(path)
    return found if isinstance(path, UrlPath) else found[:1]


def check_unchanged(path: Path, listed: list[int | str]) -> None:
    """Raise `FormatError` unless a file has the size or tag that it was listed with."""
    if size_or_tag(path) != listed:
        raise FormatError("was changed after it was listed", path=path)


def _expand(
    given: str, wanted: Callable[[str], str | None], allow: tuple[str, ...]
) -> Iterator[tuple[str, str, bool]]:
    """Yield (root, path below it, whether the file itself was named) of the files of one input."""
    path = as_path(given)
    if path.is_dir():
        allowed = Allowed.below(given, allow)
        for folder, entries in walk(path, allow):
            for entry in entries:
                if wanted(entry.name) is not None:
                    if isinstance(entry, os.DirEntry) and entry.is_symlink():
                        check_link(entry.path, allowed)
                    yield given, f"{folder}/{entry.name}" if folder else entry.name, False
        return
    if not is_remote(given) and os.path.lexists(given):
        yield str(path.parent), path.name, True
        return
    # The folders before the first wildcard or brace are no part of a file's name.
    root = os.path.dirname("".join(takewhile(lambda c: c not in WILD, given)))  # noqa: PTH120
    for place in expand(given):
        found = as_path(place)
        if is_remote(given):
            relative, is_there = place[len(root) + 1 :], found.is_file()
        elif found.is_dir():
            yield from _expand(place, wanted, allow)
            continue
        else:
            relative, is_there = str(found.relative_to(root)), found.exists()
        if not is_there:
            raise ConfigError(not_there(place))
        yield root or ".", relative, True


def not_there(place: str) -> str:
    """Return the message for an input that does not exist, with what may be meant."""
    if HUB_NAME.fullmatch(place) and not Path(place).parent.exists():
        return (
            f"{place!r} does not exist: if it is the name of a data set on a hub, download it "
            f"first, such as by hf download {place} --repo-type dataset --local-dir "
            f"{PurePath(place).name}"
        )
    return f"{place!r} does not exist{near_path(place)}"


def _joined(root: str, relative: str) -> str:
    return f"{root}/{relative}" if is_remote(root) else os.path.normpath(f"{root}/{relative}")


def _check_regular(path: Path) -> None:
    """Raise `FormatError` for a pipe, which would be waited for, or a device."""
    if not isinstance(path, UrlPath) and path.exists() and not path.is_file():
        raise FormatError("is no regular file: only those can be read twice", path=path)


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
