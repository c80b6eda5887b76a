"""From what a user types to a source, and from its first rows to their shape; a spec stores both.

The input may be a folder, table files, tars, globs, braces, urls or a meta file. The shape follows
from the names of the fields.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from itertools import islice
from pathlib import Path, PurePath
from typing import Any

import orjson

from shardmill.errors import ConfigError
from shardmill.model.codec import build, load_class
from shardmill.plugins import SHAPES, SOURCES, resolve
from shardmill.sources.nemo import is_meta
from shardmill.sources.shapes.general import (
    AUDIO_FIELDS,
    IMAGE_FIELDS,
    TEXT_FIELDS,
    VIDEO_FIELDS,
    TextShape,
)
from shardmill.sources.shapes.shape import Shape, first_of, is_missing
from shardmill.sources.source import Source, media_kind, name_from_path, walk
from shardmill.sources.tables import SUFFIXES, split_suffixes, table_stem
from shardmill.sources.tars import tar_stem
from shardmill.storage.path import as_path, expand_braces, is_remote, near_path

MAX_META_BYTES = 16 << 20
HEAD_BYTES = 4096
LOOK_AT_FILES = 10_000  # a folder of millions must not be walked twice
LOOK_AT_ROWS = 64  # the most common shape wins, so that one odd row decides nothing
# What each kind calls its input, and whether it takes more than one.
INPUT_FIELDS = {"table": "files", "tars": "tars", "folder": "dir", "nemo": "meta"}


def source_from_input(inputs: Sequence[str], *, kind: str | None = None, **options: Any) -> Source:
    """Return the source that these inputs mean; options are fields of its class, None is unset.

    `kind` names the source where the inputs alone do not tell.
    """
    if not inputs:
        raise ConfigError("no input: give a folder, table files, tars or a meta file")
    places = [_absolute(given) for given in inputs]
    allow = options["allow"] = tuple(_absolute(place) for place in options.get("allow") or ())
    kinds = {kind} if kind else {_kind_of(place, allow) for place in places}
    if len(kinds) > 1:
        raise ConfigError(f"the inputs are of different kinds: {', '.join(sorted(kinds))}")
    return _build(kinds.pop(), [_shards_of(place) for place in places], options)


def shape_of(source: Source) -> Shape:
    """Return the shape that a source names, or that of its first rows.

    A source whose rows all have one shape names it in a class attribute `shape`. One without good
    rows is a `ConfigError`.
    """
    kind = getattr(source, "shape", None)
    if kind is not None:
        named: Shape = build(SHAPES, {"kind": kind})
        return named
    problem = None
    with source.open() as read:
        for part in source.parts(LOOK_AT_ROWS):
            found = list(islice(read(part.input), LOOK_AT_ROWS))
            problem = problem or next((row.problem for row in found if row.problem), None)
            rows = [row.fields for row in found if not row.problem]
            if rows:
                return guess_shape(rows)
    first = f"; the first says: {problem}" if problem else ""
    raise ConfigError(f"the input holds no row that can be read{first}")


def _build(kind: str, places: list[str], options: dict[str, Any]) -> Source:
    source_class = load_class(resolve(SOURCES, kind, "source"))
    known = {field.name for field in fields(source_class)}
    given = {name: value for name, value in options.items() if value not in (None, ())}
    unknown = sorted(given.keys() - known)
    if unknown:
        raise ConfigError(f"{unknown[0]} has no meaning for input of kind {kind!r}")
    field = INPUT_FIELDS.get(kind, "files")
    if field in ("dir", "meta") and len(places) > 1:
        raise ConfigError(f"give one {kind} at a time, got {len(places)}")
    if "media_root" in given:
        given["media_root"] = _absolute(given["media_root"])
    if "name" in known:
        given.setdefault("name", _name_of(places[0]))
    given[field] = places[0] if field in ("dir", "meta") else tuple(places)
    source: Source = build(SOURCES, {"kind": kind, **given}, where=kind)
    return source


def _kind_of(place: str, allow: tuple[str, ...]) -> str:
    path = as_path(place)
    if _is_named_object(place) or not path.is_dir():
        return _kind_of_file(place)
    if _is_output(path):
        return "tars"
    found = _kinds_below(path, allow)
    if len(found) == 1:
        return found.pop()
    if not found:
        raise ConfigError(f"{place} holds no media, tables or tars")
    raise ConfigError(
        f"{place} holds more than one kind of input ({', '.join(sorted(found))}): name the files, "
        "or say which kind is meant"
    )


def _kind_of_file(place: str) -> str:
    name = PurePath(next(expand_braces(place))).name
    if tar_stem(name) is not None:
        return "tars"
    if split_suffixes(name)[0] in SUFFIXES:
        return "nemo" if name.endswith(".json") and _holds_meta(as_path(place)) else "table"
    if not as_path(place).exists():
        raise ConfigError(f"{place!r} does not exist{near_path(place)}")
    raise ConfigError(
        f"cannot tell what {place} is: give a folder, a .tar, a table ({', '.join(SUFFIXES)}) or "
        "say which kind is meant"
    )


def _is_named_object(place: str) -> bool:
    """Say whether the name of an object tells what it is, so that no store has to be asked."""
    name = PurePath(place).name
    known = tar_stem(name) is not None or split_suffixes(name)[0] in SUFFIXES
    return known and is_remote(place)


def _kinds_below(folder: Path, allow: tuple[str, ...]) -> set[str]:
    """Return the kinds of the first files below a folder; json beside media is a sidecar."""
    found: set[str] = set()
    names = (entry.name for _, entries in walk(folder, allow) for entry in entries)
    for name in islice(names, LOOK_AT_FILES):
        if tar_stem(name) is not None:
            found.add("tars")
        elif media_kind(name) is not None:
            found.add("folder")
        elif table_stem(name) is not None:
            found.add("json" if name.endswith(".json") else "table")
    if "json" in found:
        found.remove("json")
        found |= set() if found else {"table"}
    return found


def _holds_meta(path: Path) -> bool:
    if not path.is_file() or path.stat().st_size > MAX_META_BYTES:
        return False
    with path.open("rb") as file:
        if not file.read(HEAD_BYTES).lstrip().startswith(b"{"):
            return False  # an array of rows: never read as a whole
    try:
        return is_meta(orjson.loads(path.read_bytes()))
    except orjson.JSONDecodeError:
        return False


def _is_output(folder: Path) -> bool:
    return (folder / "stage.json").exists() and (folder / "shards").is_dir()


def _shards_of(place: str) -> str:
    """Return the shards of a folder that shardmill made, other places as they are."""
    path = as_path(place)
    if _is_named_object(place) or not _is_output(path):
        return place
    if not (path / "manifest.json").exists():
        raise ConfigError(f"{place} is not finished: run the command that makes it again")
    return f"{place}/shards"


def _absolute(given: str) -> str:
    # Workers may start in another folder, so only absolute paths go into the spec.
    if is_remote(given):
        return given
    return os.path.abspath(given.removeprefix("file://"))  # noqa: PTH100 (braces and globs)


def _name_of(place: str) -> str:
    name = PurePath(place).name
    stem = table_stem(name) or tar_stem(name) or name
    return name_from_path(stem or "input")


Test = Callable[[Mapping[str, Any]], bool]
MEDIA_FIELDS = (*IMAGE_FIELDS, *VIDEO_FIELDS, *AUDIO_FIELDS)


def guess_shape(rows: Iterable[Mapping[str, Any]]) -> Shape:
    """Return the first shape that fits most of these rows; none is a `ConfigError`."""
    seen = list(rows)
    for name, fits in TESTS:
        if seen and 2 * sum(map(fits, seen)) > len(seen):
            shape: Shape = build(SHAPES, {"kind": name})
            return shape
    fields = sorted({str(name) for row in seen for name in row})
    known = ", ".join(sorted(SHAPES))
    raise ConfigError(
        f"cannot tell the shape of these rows, whose fields are {', '.join(fields) or 'none'}: "
        f"say which of {known} it is"
    )


def _has_turns(field: str, tag: str) -> Test:
    def fits(row: Mapping[str, Any]) -> bool:
        turns = row.get(field)
        return isinstance(turns, list) and bool(turns) and tag in _keys(turns[0])

    return fits


def _keys(value: object) -> Iterable[str]:
    return value if isinstance(value, dict) else ()


def _is_text(row: Mapping[str, Any]) -> bool:
    return first_of(row, TextShape().text) is not None


def _is_pair(row: Mapping[str, Any]) -> bool:
    media = first_of(row, MEDIA_FIELDS)
    # Web text has a url too: a pair needs a medium that is not just the page's address.
    return media is not None and (media != "url" or first_of(row, TEXT_FIELDS[1:]) is not None)


def _holds(*names: str) -> Test:
    return lambda row: not any(is_missing(row.get(name)) for name in names)


def _has_prompt(row: Mapping[str, Any]) -> bool:
    return first_of(row, ("value", "prompt")) is not None


def _has_clips(row: Mapping[str, Any]) -> bool:
    clips = row.get("clips")
    return isinstance(clips, list) and bool(clips) and "clip_path" in _keys(clips[0])


# The first that fits wins, so the more particular ones come first.
TESTS: tuple[tuple[str, Test], ...] = (
    ("document", lambda row: isinstance(row.get("segments"), list)),
    ("llava", _has_turns("conversations", "from")),
    ("messages", _has_turns("messages", "role")),
    ("videochat2", _has_turns("QA", "a")),
    ("howto-interlink", _has_clips),
    ("prompt", _holds("prompt", "txt")),
    ("merlin", lambda row: isinstance(row.get("text_list"), str) and "image_info" in row),
    ("internvid", _holds("YoutubeID", "Start_timestamp", "Caption")),
    ("unicontrol", lambda row: _holds("source", "target")(row) and _has_prompt(row)),
    ("video", _holds("video_path", "value")),
    ("how2link", _holds("clip_path", "caption")),
    ("mmc4", lambda row: isinstance(row.get("text_list"), list) and "image_info" in row),
    ("liquid", lambda row: not is_missing(row.get("image_path")) and "text_prompt" in row),
    ("pair", _is_pair),
    ("text", _is_text),
)
