"""A folder of media with sidecar captions: `a/1.jpg` beside `a/1.txt`, `a/1.caption` or `a/1.json`.

Each medium is a row: its path is the field `image`, `video` or `audio`, the caption is `text`, and
the fields of a json sidecar are added. The key is the relative path without suffix; where that is
not unique (1.jpg beside 1.png) the suffix joins it. A sidecar without its medium is a reject; files
of other kinds and hidden files are no rows.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import PurePath
from typing import Any

import orjson
import xxhash

from shardmill.errors import ConfigError, SampleError
from shardmill.model.codec import Plain
from shardmill.model.sample import Origin
from shardmill.sources.allowed import Allowed
from shardmill.sources.fetch import read_file, read_object
from shardmill.sources.source import (
    ROWS_PER_PART,
    Entry,
    Read,
    Row,
    SourcePart,
    media_kind,
    name_from_path,
    unique,
    walk,
)
from shardmill.sources.text import decode_text, json_object
from shardmill.storage.path import as_path, is_remote

CAPTIONS = (".txt", ".caption", ".json")
MAX_CAPTION_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderSource:
    """The media below a folder, in the order of their names; links may lead to `allow`."""

    dir: str
    name: str = "folder"
    allow: tuple[str, ...] = ()

    def places(self) -> tuple[str, ...]:
        return (self.dir,)

    def parts(self, per_shard: int | None) -> Iterator[SourcePart]:
        """Yield lists of `per_shard` rows: key, files with size and time."""
        rows = self._rows()
        while chunk := list(islice(rows, per_shard or ROWS_PER_PART)):
            yield SourcePart(input={"rows": chunk}, num_rows=len(chunk))

    @contextmanager
    def open(self) -> Iterator[Read]:
        yield self._read

    def inputs(self) -> Mapping[str, Any]:
        """Return the number of files below the folder and a hash of their names, sizes, times."""
        checksum, count = xxhash.xxh3_64(), 0
        for folder, entries in self._walk():
            for entry in entries:
                checksum.update(orjson.dumps([_path(folder, entry), _size_and_time(entry)]))
                count += 1
        return {self.dir: [count, checksum.hexdigest()]}

    def _walk(self) -> Iterator[tuple[str, list[Entry]]]:
        path = as_path(self.dir)
        if not path.is_dir():
            raise ConfigError(f"{self.dir!r} is not a folder")
        return walk(path, self.allow)

    def _rows(self) -> Iterator[Plain]:
        # A folder is renamed where its safe name is taken, so keys of different folders differ.
        folders: set[str] = set()
        for folder, entries in self._walk():
            rows = list(_group(entries))
            prefix = unique(name_from_path(_decoded(folder)), folders) if folder and rows else ""
            stems: set[str] = set()
            for stem, files in rows:
                key = unique(name_from_path(f"{prefix}/{_decoded(stem)}"), stems)
                stamps = {_path(folder, file): _size_and_time(file) for file in files}
                yield {"key": key, "files": stamps}  # type: ignore[dict-item]

    def _read(self, part: Mapping[str, Any]) -> Iterator[Row]:
        with closing(Allowed.below(self.dir, self.allow)) as allowed:
            yield from self._all_rows(part, allowed)

    def _all_rows(self, part: Mapping[str, Any], allowed: Allowed) -> Iterator[Row]:
        for entry in part["rows"]:
            # The medium first: JSON, in which a unit travels, sorts its names among the captions'.
            paths = sorted(entry["files"], key=lambda path: media_kind(path) is None)
            fields: Mapping[str, Any] = {}
            problem = None
            try:
                fields = _fields(self.dir, paths, allowed)
            except SampleError as error:
                problem = error
            yield Row(
                key=entry["key"],
                origin=Origin(source=self.name, path=paths[0], row=0),
                fields=fields,
                media_dir=self.dir,
                allow=self.allow,
                problem=problem,
            )


def _group(entries: list[Entry]) -> Iterator[tuple[str, list[Entry]]]:
    """Yield (stem, files) of each row: a medium with all captions that share its stem."""
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        path = PurePath(entry.name)
        is_wanted = media_kind(entry.name) is not None or path.suffix.lower() in CAPTIONS
        if is_wanted and not entry.name.startswith("."):
            groups.setdefault(path.stem, []).append(entry)
    for stem, files in groups.items():
        media = [file for file in files if media_kind(file.name) is not None]
        captions = [file for file in files if media_kind(file.name) is None]
        for medium in media:
            yield stem if len(media) == 1 else medium.name, [medium, *captions]
        if not media:
            yield stem, captions


def _fields(dir: str, paths: list[str], allowed: Allowed) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for path in paths:
        # Units travel as JSON, so a name that is not UTF-8 was written down with \xff in it.
        if "\\x" in path and not os.path.lexists(f"{dir}/{path}"):
            raise SampleError("file name is not UTF-8", path)
        kind = media_kind(path)
        if kind is not None:
            fields[kind] = path
        elif path.lower().endswith(".json"):
            fields = {**json_object(_read_sidecar(dir, path, allowed), path), **fields}
        else:
            fields["text"] = decode_text(_read_sidecar(dir, path, allowed), path)
    if media_kind(paths[0]) is None:
        raise SampleError("caption without medium", paths[0])
    return fields


def _read_sidecar(dir: str, path: str, allowed: Allowed) -> bytes:
    place = f"{dir}/{path}"
    if is_remote(dir):
        return read_object(place, MAX_CAPTION_BYTES)
    return read_file(place, allowed, MAX_CAPTION_BYTES)


def _path(folder: str, entry: Entry) -> str:
    return _decoded(f"{folder}/{entry.name}" if folder else entry.name)


def _decoded(name: str) -> str:
    r"""Return a file name as text; bytes that are not UTF-8 are written as \xff."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _size_and_time(entry: Entry) -> list[int]:
    try:
        info = entry.stat()
    except OSError:  # a link that leads nowhere: reading it says so
        return [0, 0]
    return [info.st_size, info.st_mtime_ns]
