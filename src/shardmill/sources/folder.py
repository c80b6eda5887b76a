"""A folder of media with sidecar captions: `a/1.jpg` beside `a/1.txt`, `a/1.caption` or `a/1.json`.

Each medium is a row: its path is the field `image`, `video` or `audio`, the caption is `text`, and
the fields of a json sidecar are added. The key is the relative path without suffix; where that is
not unique (1.jpg beside 1.png) the suffix joins it. A sidecar without its medium is a reject; files
of other kinds and hidden files are no rows.

`only` names some folders or media below the folder, or patterns of them; captions beside a medium
that is named belong to it. Rows then read below the folder that was named, or below that of a file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import PurePath
from typing import Any

import orjson
import xxhash

from shardmill.errors import ConfigError, SampleError
from shardmill.model.codec import PlaceName, Plain, RootName
from shardmill.model.sample import Origin
from shardmill.sources.allowed import Allowed
from shardmill.sources.fetch import read_file, read_object
from shardmill.sources.source import (
    ROWS_PER_PART,
    Entry,
    Named,
    Read,
    RemoteEntry,
    Row,
    SourcePart,
    media_kind,
    name_from_path,
    unique,
    walk,
)
from shardmill.sources.text import decode_text, json_object
from shardmill.storage.path import as_path, expand, is_remote

CAPTIONS = (".txt", ".caption", ".json")
MAX_CAPTION_BYTES = 64 << 20
WITHOUT_MEDIUM = "caption without medium"


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderSource:
    """The media below a folder, in the order of their names; links may lead to `allow`."""

    dir: PlaceName
    only: tuple[str, ...] = ()
    name: str = "folder"
    allow: tuple[RootName, ...] = ()

    def places(self) -> tuple[str, ...]:
        return tuple(f"{self.dir}/{name}" for name in self.only) or (self.dir,)

    def parts(self, per_shard: int | None) -> Iterator[SourcePart]:
        """Yield lists of `per_shard` rows: key, files with their sizes or tags."""
        rows = self._rows()
        while chunk := list(islice(rows, per_shard or ROWS_PER_PART)):
            yield SourcePart(input={"rows": chunk}, num_rows=len(chunk))

    @contextmanager
    def open(self) -> Iterator[Read]:
        yield self._read

    def inputs(self) -> Mapping[str, Any]:
        """Return the number of files below the folder and a hash of their names, sizes, times."""
        checksum, count = xxhash.xxh3_64(), 0
        for _, folder, entries in self._walk():
            for entry in entries:
                checksum.update(orjson.dumps([_path(folder, entry), *_stamp(entry)]))
                count += 1
        # Times, of which a local listing consists, stand last; tags are as good as checksums.
        found = [count, checksum.hexdigest()]
        return {self.dir: found if is_remote(self.dir) else found[::-1]}

    def _walk(self) -> Iterator[tuple[str, str, list[Entry]]]:
        """Yield (folder that was named, folder, its files), both as paths below `dir`."""
        for top, names in self._tops().items():
            path = as_path(self.dir) / top
            if not path.is_dir():
                raise ConfigError(f"{str(path)!r} is not a folder")
            for folder, entries in walk(path, self.allow):
                if names is None:
                    yield top, "/".join(filter(None, (top, folder))), entries
                    continue
                yield top, top, [entry for entry in entries if _belongs(entry, names)]
                break  # only the first is the folder of the files themselves

    def _tops(self) -> dict[str, set[str] | None]:
        """Return the folders that are meant, with the media in them that are, None for all."""
        if not self.only:
            return {"": None}
        named = Named()
        is_folder: dict[str, bool] = {}
        for pattern in self.only:
            for place in expand(f"{self.dir}/{pattern}"):
                named.add(place, pattern)
                is_folder[place[len(self.dir.rstrip("/")) + 1 :]] = as_path(place).is_dir()
        tops: dict[str, set[str] | None] = {name: None for name in is_folder if is_folder[name]}
        for name in is_folder:
            above = next((str(p) for p in PurePath(name).parents if is_folder.get(str(p))), None)
            if above is not None:
                twice = f"{self.dir}/{name} is named twice, by itself and with {self.dir}/{above}"
                raise ConfigError(f"{twice}: name it once")
            if not is_folder[name]:
                folder, _, file = name.rpartition("/")
                tops[folder] = {*(tops.get(folder) or ()), file}
        return tops

    def _rows(self) -> Iterator[Plain]:
        # A folder is renamed where its safe name is taken, so keys of different folders differ.
        folders: set[str] = set()
        for top, folder, entries in self._walk():
            rows = list(_group(entries))
            prefix = unique(name_from_path(_decoded(folder)), folders) if folder and rows else ""
            stems: set[str] = set()
            for stem, files in rows:
                key = unique(name_from_path(f"{prefix}/{_decoded(stem)}"), stems)
                sizes = {_path(folder, file): _size_or_tag(file) for file in files}
                row: dict[str, Any] = {"key": key, "files": sizes}
                yield {**row, "below": top} if top else row

    def files_of(self, part: Mapping[str, Any]) -> list[str]:
        """Return the paths of the media and captions of a part."""
        return [f"{self.dir}/{path}" for row in part["rows"] for path in row["files"]]

    def _read(self, part: Mapping[str, Any]) -> Iterator[Row]:
        for top, rows in groupby(part["rows"], key=lambda row: row.get("below", "")):
            home = f"{self.dir}/{top}" if top else self.dir
            with closing(Allowed.below(home, self.allow)) as allowed:
                yield from self._all_rows(rows, home, allowed)

    def _all_rows(self, rows: Iterable[Any], home: str, allowed: Allowed) -> Iterator[Row]:
        for entry in rows:
            # The medium first: JSON, in which a unit travels, sorts its names among the captions'.
            paths = sorted(entry["files"], key=lambda path: media_kind(path) is None)
            fields: Mapping[str, Any] = {}
            problem = None
            try:
                fields = _fields(self.dir, paths, home, allowed)
            except SampleError as error:
                problem = error
            yield Row(
                key=entry["key"],
                origin=Origin(source=self.name, path=paths[0], row=0),
                fields=fields,
                media_dir=home,
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


def _belongs(entry: Entry, names: set[str]) -> bool:
    """Say whether a file is one of the media that are named, or a caption of one."""
    if entry.name in names or PurePath(entry.name).suffix.lower() not in CAPTIONS:
        return entry.name in names
    return any(PurePath(name).stem == PurePath(entry.name).stem for name in names)


def _fields(dir: str, paths: list[str], home: str, allowed: Allowed) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for path in paths:
        # Units travel as JSON, so a name that is not UTF-8 was written down with \xff in it.
        if "\\x" in path and not os.path.lexists(f"{dir}/{path}"):
            raise SampleError("file name is not UTF-8", path)
        kind = media_kind(path)
        if kind is not None:
            fields[kind] = f"{dir}/{path}".removeprefix(f"{home}/")
        elif path.lower().endswith(".json"):
            fields = {**json_object(_read_sidecar(dir, path, allowed), path), **fields}
        else:
            fields["text"] = decode_text(_read_sidecar(dir, path, allowed), path)
    if media_kind(paths[0]) is None:
        raise SampleError(WITHOUT_MEDIUM, paths[0])
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


def _stamp(entry: Entry) -> list[int | str]:
    try:
        info = entry.stat()
    except OSError:  # a link that leads nowhere: reading it says so
        return [0, 0]
    tag = entry.tag if isinstance(entry, RemoteEntry) else ""
    return [info.st_size, tag or info.st_mtime_ns]


def _size_or_tag(entry: Entry) -> list[int | str]:
    return _stamp(entry) if isinstance(entry, RemoteEntry) else _stamp(entry)[:1]
