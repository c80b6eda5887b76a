"""Urls that read like paths: `as_path("s3://bucket/out") / "shards"`.

Code that takes a `Path` takes a `UrlPath` as well: names, joining and comparing are those of paths,
and looking, listing and reading go to the store. Whatever is not defined here (renaming, linking,
opening to write) ends in `__fspath__`, which refuses, so no url is ever taken for a local file.

An object of a store as a file to read: seekable, in windows that grow while it is read on.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path, PosixPath
from typing import Any, BinaryIO

from shardmill.errors import ConfigError
from shardmill.storage import objects
from shardmill.storage.client import Object, call, find_object
from shardmill.storage.url import WEB_SCHEMES, is_remote, split_url

FIRST_WINDOW = 256 << 10
LARGEST_WINDOW = 8 << 20


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


def open_reader(url: str) -> BinaryIO:
    """Open an object for reading; `FileNotFoundError` if it is not there."""
    return io.BufferedReader(ObjectFile(find_object(url)), 64 << 10)


def as_path(name: str | Path) -> Path:
    """Return a path, a `UrlPath` if the name is a url; "file://" is taken off."""
    if isinstance(name, Path):
        return name
    if is_remote(name):
        split_url(name)
        return UrlPath(name)
    return Path(name.removeprefix("file://"))


class UrlPath(PosixPath):
    """The url of an object, or of a folder: what the objects below it have in common."""

    __slots__ = ()

    def __str__(self) -> str:
        # A path drops the second slash of "s3://bucket".
        return super().__str__().replace(":/", "://", 1)

    def __fspath__(self) -> str:
        raise ConfigError(f"{self} is a url: this needs a local file or folder")

    def __reduce__(self) -> tuple[type[UrlPath], tuple[str]]:
        return UrlPath, (str(self),)

    @property
    def is_web(self) -> bool:
        """Whether a web server is behind it, which can neither be listed nor written to."""
        return self.parts[0].rstrip(":") in WEB_SCHEMES

    def absolute(self) -> UrlPath:
        return self

    def is_absolute(self) -> bool:
        return True

    def exists(self, *, follow_symlinks: bool = True) -> bool:
        return self.is_file() or self.is_dir()

    def is_file(self) -> bool:
        if len(self.parts) <= 2:
            return False
        try:
            objects.look(str(self))
        except FileNotFoundError:
            return False
        return True

    def is_dir(self) -> bool:
        return not self.is_web and next(objects.list_all(str(self), limit=1), None) is not None

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return objects.look(str(self)).stat()

    def iterdir(self) -> Iterator[UrlPath]:  # type: ignore[override]
        self._check_listable()
        folders, infos = objects.list_here(str(self))
        yield from (self / name for name in [*folders, *(info.path for info in infos)])

    def glob(self, pattern: str, **_: Any) -> Iterator[UrlPath]:  # type: ignore[override]
        """Yield what is directly below and has such a name."""
        return (path for path in self.iterdir() if fnmatchcase(path.name, pattern))

    def open(self, mode: str = "r", *_: Any, **__: Any) -> Any:
        if mode == "rb":
            return open_reader(str(self))
        if mode == "r":
            return io.TextIOWrapper(open_reader(str(self)), "utf-8")
        raise ConfigError(f"{self} is a url: it cannot be opened with mode {mode!r}")

    def read_bytes(self) -> bytes:
        return objects.get(str(self))

    def unlink(self, missing_ok: bool = False) -> None:
        objects.delete([str(self)])

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        """Do nothing: a folder of a store is there when something lies in it."""

    def _check_listable(self) -> None:
        if self.is_web:
            raise ConfigError(f"{self}: a web server does not list its files, so name each file")
