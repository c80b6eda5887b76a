"""What is done with objects of a store: look at, get, open, put, create, exchange, list, delete.

Puts are whole or not at all, by the promise of every store. Large files go up in parts.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from stat import S_IFREG
from typing import Any, BinaryIO

from shardmill.errors import StoreError, need
from shardmill.storage.client import NotOffered, Object, call, find_object, patient

FILE_MODE = S_IFREG | 0o644
PART_BYTES = 16 << 20
PARTS_AT_ONCE = 4
LIST_AT_ONCE = 1000
DELETE_AT_ONCE = 1000
FIRST_WINDOW = 256 << 10
LARGEST_WINDOW = 8 << 20


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object as a listing shows it; `path` is relative to the folder that was listed."""

    path: str
    num_bytes: int
    mtime_ns: int
    tag: str

    def stat(self) -> os.stat_result:
        """Return size and time as files have them."""
        seconds = self.mtime_ns // 1_000_000_000
        values = (FILE_MODE, 0, 0, 1, 0, 0, self.num_bytes, seconds, seconds, seconds)
        return os.stat_result(values, {"st_mtime_ns": self.mtime_ns})


def look(url: str) -> ObjectInfo:
    """Return what is known of an object; `FileNotFoundError` if it is not there."""
    found = find_object(url)
    try:
        meta = call(found, "head")
    except StoreError as error:
        if not error.passing:
            # The answer to a HEAD has no body that could say why.
            call(found, "get_range", start=0, length=1)
        raise
    return _info(meta, found.path.rpartition("/")[2])


def get(url: str) -> bytes:
    """Return the whole content of an object; `FileNotFoundError` if it is not there."""
    return _fetch(find_object(url))[0]


def open_reader(url: str) -> BinaryIO:
    """Open an object for reading; `FileNotFoundError` if it is not there."""
    return io.BufferedReader(ObjectFile(find_object(url)), 64 << 10)


def put(url: str, content: bytes) -> None:
    """Create or replace an object."""
    call(find_object(url), "put", verb="write", file=content, use_multipart=False)


def put_file(url: str, path: Path) -> None:
    """Create or replace an object by the content of a local file; a large one goes up in parts."""
    options = {"chunk_size": PART_BYTES, "max_concurrency": PARTS_AT_ONCE}
    call(find_object(url), "put", verb="write", file=path, **options)


def create(url: str, content: bytes) -> bool:
    """Create an object unless there is one; say whether it now has this content."""
    found = find_object(url)
    try:
        call(found, "put", verb="write", file=content, mode="create", use_multipart=False)
    except FileExistsError:
        # The request may have been repeated because only the answer to the first was lost.
        return _content(url) == content
    except NotOffered:
        there = _content(url)
        if there is not None:
            return there == content
        put(url, content)
    return True


def exchange(url: str, is_mine: Callable[[bytes], bool], content: bytes) -> bool:
    """Replace an object if `is_mine` accepts its content; say whether it did.

    Where the store can compare versions, an object that changed in between is looked at again.
    """
    found = find_object(url)
    while True:
        current, meta = _fetch(found)
        if not is_mine(current):
            return False
        version = {name: meta[name] for name in ("e_tag", "version") if meta[name] is not None}
        try:
            call(found, "put", verb="write", file=content, mode=version, use_multipart=False)
        except BlockingIOError:
            # As above: it may have been us who changed it.
            if _content(url) == content:
                return True
            continue
        except NotOffered:
            put(url, content)
        return True


def delete(urls: Iterable[str]) -> None:
    """Remove objects, which may already be gone."""
    by_client: dict[int, list[Object]] = {}
    for found in map(find_object, urls):
        by_client.setdefault(id(found.client), []).append(found)
    for group in by_client.values():
        for first in range(0, len(group), DELETE_AT_ONCE):
            _delete(group[first : first + DELETE_AT_ONCE])


def list_all(url: str, *, limit: int | None = None) -> Iterator[ObjectInfo]:
    """Yield the objects below a folder, however deep, in the order of their names."""
    found = find_object(url)
    prefix = f"{found.path.rstrip('/')}/" if found.path else ""
    entries = patient(lambda: _listed(found.client, prefix, limit), url, verb="read")
    yield from _infos(entries, prefix)


def list_here(url: str) -> tuple[list[str], list[ObjectInfo]]:
    """Return the names of the folders directly below a folder, and the objects in it."""
    found = find_object(url)
    prefix = f"{found.path.rstrip('/')}/" if found.path else ""
    obstore = need("obstore", extra="remote")
    page = patient(
        lambda: obstore.list_with_delimiter(found.client, prefix or None), url, verb="read"
    )
    folders = sorted(str(name)[len(prefix) :].strip("/") for name in page["common_prefixes"])
    return folders, _infos(page["objects"], prefix)


def _infos(entries: Iterable[Any], prefix: str) -> list[ObjectInfo]:
    infos = [_info(entry, entry["path"][len(prefix) :]) for entry in entries]
    # Some stores and tools mark a folder by an empty object with the folder's own name.
    return sorted((info for info in infos if info.path), key=lambda info: info.path)


def _listed(client: Any, prefix: str, limit: int | None) -> list[Any]:
    obstore = need("obstore", extra="remote")
    pages = obstore.list(client, prefix or None, chunk_size=limit or LIST_AT_ONCE)
    return list(islice((entry for page in pages for entry in page), limit))


def _delete(group: list[Object]) -> None:
    obstore = need("obstore", extra="remote")
    client, url = group[0].client, group[0].url
    paths = [found.path for found in group]
    try:
        patient(lambda: obstore.delete(client, paths), url, verb="write")
    except FileNotFoundError:
        # Some stores mind that an object is gone: then the others are removed one by one.
        for path in paths if len(paths) > 1 else ():
            _delete([Object(client, path, url)])


def _fetch(found: Object) -> tuple[bytes, Any]:
    obstore = need("obstore", extra="remote")

    def ask() -> tuple[bytes, Any]:
        answer = obstore.get(found.client, found.path)
        return bytes(answer.bytes()), answer.meta

    return patient(ask, found.url, verb="read")


def _content(url: str) -> bytes | None:
    try:
        return get(url)
    except FileNotFoundError:
        return None


def _info(entry: Any, path: str) -> ObjectInfo:
    modified: datetime = entry["last_modified"]
    mtime_ns = int(modified.timestamp() * 1_000_000) * 1000
    return ObjectInfo(path, int(entry["size"]), mtime_ns, str(entry["e_tag"] or ""))


class ObjectFile(io.RawIOBase):
    """Reads a window at a time; one that follows the last is twice as large, up to 8 MiB."""

    def __init__(self, target: Object) -> None:
        self._target = target
        self._size = int(call(target, "head")["size"])
        self._position = 0
        self._start, self._content, self._window = 0, memoryview(b""), FIRST_WINDOW

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        if self._position >= self._size:
            return 0
        inside = self._position - self._start
        if not 0 <= inside < len(self._content):
            self._fetch(len(buffer))
            inside = 0
        part = self._content[inside : inside + len(buffer)]
        buffer[: len(part)] = part
        self._position += len(part)
        return len(part)

    def _fetch(self, wanted: int) -> None:
        goes_on = self._position == self._start + len(self._content)
        self._window = min(2 * self._window, LARGEST_WINDOW) if goes_on else FIRST_WINDOW
        length = min(max(self._window, wanted), self._size - self._position)
        content = call(self._target, "get_range", start=self._position, length=length)
        self._start, self._content = self._position, memoryview(content)
