"""An object of a store as a file to read: seekable, in windows that grow while it is read on."""

from __future__ import annotations

import io
from typing import Any, BinaryIO

from shardmill.remote.client import Object, call, find_object

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
