"""From what a user types to a source, and from its first rows to their shape; a spec stores both.

The input may be a folder, table files, tars, globs, braces, urls or a meta file. The shape follows
from the names of the fields.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from itertools import islice
from pathlib import Path, PurePath
from typing import Any

import orjson

from shardmill.errors import ConfigError, FormatError, SampleError, plugin
from shardmill.model.codec import build, load_class, stored_kind
from shardmill.plugins import SHAPES, SOURCES, resolve
from shardmill.sources.columns import unused_content
from shardmill.sources.nemo import is_meta
from shardmill.sources.shapes.general import (
    AUDIO_FIELDS,
    IMAGE_FIELDS,
    TEXT_FIELDS,
    VIDEO_FIELDS,
    TextShape,
)
from shardmill.sources.shapes.shape import Shape, first_of, is_missing
from shardmill.sources.source import Row, Source, media_kind, name_from_path, walk
from shardmill.sources.tables import SUFFIXES, split_suffixes, table_stem
from shardmill.sources.tars import tar_stem
from shardmill.storage.path import as_path, expand_braces, is_remote, near_path

MAX_META_BYTES = 16 << 20
HEAD_BYTES = 4096
LOOK_AT_FILES = 10_000  # a folder of millions must not be walked twice
LOOK_AT_ROWS = 64  # the most common shape wins, so that one odd row decides nothing
LOOK_AT_TABLES, LOOK_AT_REMOTE = 8, 2
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


def shape_of(
    source: Source,
    shape: Shape | None = None,
    *,
    extra: Collection[str] = (),
    known: Collection[str] = (),
) -> Shape:
    """Return the shape of the rows of a source, after a look at the first rows of some files.

    It is the given one, or the one that the source names in a class attribute `shape`, or what the
    rows look like. Files of different shapes, rows of which none can be read, and content that the
    shape leaves out are a `ConfigError`. `extra` are columns that the shape is not shown, `known`
    those that have another use.
    """
    if shape is None and (kind := getattr(source, "shape", None)) is not None:
        shape = build(SHAPES, {"kind": kind})
    found: dict[str, tuple[Shape, str]] = {}  # by its kind a shape and the first file that has it
    problem: Exception | None = None
    for one in _some_files(source):
        place = ", ".join(one.places())
        try:
            rows = _first_rows(one)
        except FormatError as error:  # its unit will say so, the others can be done
            problem = problem or error
            continue
        problem = problem or next((row.problem for row in rows if row.problem), None)
        good = [row.fields for row in rows if not row.problem]
        shown = [{n: v for n, v in fields.items() if n not in extra} for fields in good]
        if shown:
            taken = shape or guess_shape(shown, place)
            found.setdefault(shape_kind(taken), (taken, place))
            _check_columns(taken, shown, place, known)
    if len(found) > 1:
        listed = ", ".join(f"{kind} ({place})" for kind, (_, place) in found.items())
        raise ConfigError(f"the files hold rows of different shapes, {listed}: ingest them apart")
    if not found and shape is None:
        first = f"; the first says: {problem}" if problem else ""
        raise ConfigError(f"the input holds no row that can be read{first}")
    return shape or next(iter(found.values()))[0]


def _some_files(source: Source) -> list[Source]:
    """Return the sources of some files, the first and the last among them."""
    each: list[Source] = list(source.apart()) if hasattr(source, "apart") else [source]
    # A tar is walked as a whole, which for remote ones takes requests.
    most = LOOK_AT_REMOTE if any(map(is_remote, source.places())) else LOOK_AT_TABLES
    last = len(each) - 1
    return [each[n] for n in sorted({last * n // (most - 1) for n in range(most)})] if each else []


def _first_rows(source: Source) -> list[Row]:
    """Return the rows of the first part that has a good one."""
    rows: list[Row] = []
    with source.open() as read:
        for part in source.parts(LOOK_AT_ROWS):
            rows = list(islice(read(part.input), LOOK_AT_ROWS))
            if not all(row.problem for row in rows):
                break
    return rows


def _check_columns(
    shape: Shape, rows: list[dict[str, Any]], place: str, known: Collection[str]
) -> None:
    problems: list[SampleError] = []
    unused: dict[str, tuple[str, Any]] = {}
    for row in rows:
        try:
            with plugin(shape, place):
                document = shape.shape(row)
        except SampleError as error:
            problems.append(error)
            continue
        for name, looks in unused_content(row, document, known, weak=True).items():
            unused.setdefault(name, (looks, row[name]))
    kind = shape_kind(shape)
    if len(problems) == len(rows):
        raise ConfigError(
            f"none of the first rows of {place} can be read as {kind}; the first says: "
            f"{problems[0]}. Name what they are by --shape"
        )
    if unused:
        listed = [f"\n  {n!r} looks like {what}: {v!r:.60}" for n, (what, v) in unused.items()]
        keep = " ".join(f"--extra {shlex.quote(name)}" for name in unused)
        raise ConfigError(
            f"rows of {place} are taken as {kind} ({why(kind)}), and nothing uses"
            + "".join(listed)
            + f"\nUse them by another --shape{_example(shape, unused)}, or keep them beside the "
            f"sample: {keep}"
        )


def _example(shape: Shape, unused: Mapping[str, tuple[str, Any]]) -> str:
    """Return such as " (--shape pair,text=long_caption)", if one can be told from a column."""
    for name, (looks, value) in unused.items():
        first = value[0] if isinstance(value, list) and value else None
        for kind, field, tag in TURNS:
            if looks == "turns" and tag in _keys(first):
                return f" (--shape {kind},{field}={shlex.quote(name)})"
        known = {one.name for one in fields(shape)}  # type: ignore[arg-type]
        wanted = "text" if looks == "labels" and isinstance(value, str) else looks
        for field in (wanted, wanted.removesuffix("s")):
            if field in known:
                return f" (--shape {shape_kind(shape)},{field}={shlex.quote(name)})"
    return ""


def shape_kind(shape: Shape) -> str:
    """Return the name of a shape as a user types it."""
    return str(stored_kind(type(shape))).removeprefix("shape/")


def why(kind: str) -> str:
    """Return what rows have that are taken as a shape of this kind."""
    return next((reason for name, reason, _ in TESTS if name == kind), "it was named")


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


def guess_shape(rows: Iterable[Mapping[str, Any]], place: str = "the input") -> Shape:
    """Return the first shape that fits most of these rows; none is a `ConfigError`."""
    seen = list(rows)
    for name, _, fits in TESTS:
        if seen and 2 * sum(map(fits, seen)) > len(seen):
            shape: Shape = build(SHAPES, {"kind": name})
            return shape
    fields = sorted({str(name) for row in seen for name in row})
    known = ", ".join(sorted(SHAPES))
    raise ConfigError(
        f"cannot tell the shape of the rows of {place}, whose columns are "
        f"{', '.join(fields) or 'none'}: name it by --shape, one of {known}, or the columns, such "
        "as --shape pair,image=COLUMN,text=COLUMN"
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
    if media != "url":
        return media is not None
    # Web text has a url too: a pair needs a medium that is not just the page's address.
    is_page = media_kind(str(row["url"]).partition("?")[0]) is None
    return not is_page or first_of(row, TEXT_FIELDS[1:]) is not None


def _holds(*names: str) -> Test:
    return lambda row: not any(is_missing(row.get(name)) for name in names)


def _has_prompt(row: Mapping[str, Any]) -> bool:
    return first_of(row, ("value", "prompt")) is not None


# The first that fits wins, so the more particular ones come first.
TESTS: tuple[tuple[str, str, Test], ...] = (
    ("document", "`segments` is a list", lambda row: isinstance(row.get("segments"), list)),
    ("llava", "`conversations` are turns with `from`", _has_turns("conversations", "from")),
    ("messages", "`messages` are turns with `role`", _has_turns("messages", "role")),
    ("finevision", "`texts` are turns of `user` and `assistant`", _has_turns("texts", "assistant")),
    ("videochat2", "`QA` are questions with answers `a`", _has_turns("QA", "a")),
    ("howto-interlink", "`clips` are a list with `clip_path`", _has_turns("clips", "clip_path")),
    ("prompt", "there are `prompt` and `txt`", _holds("prompt", "txt")),
    (
        "merlin",
        "`text_list` is one text, beside `image_info`",
        lambda row: isinstance(row.get("text_list"), str) and "image_info" in row,
    ),
    (
        "internvid",
        "there are `YoutubeID`, `Start_timestamp` and `Caption`",
        _holds("YoutubeID", "Start_timestamp", "Caption"),
    ),
    (
        "unicontrol",
        "there are `source`, `target` and a prompt",
        lambda row: _holds("source", "target")(row) and _has_prompt(row),
    ),
    ("video", "there are `video_path` and `value`", _holds("video_path", "value")),
    ("how2link", "there are `clip_path` and `caption`", _holds("clip_path", "caption")),
    (
        "mmc4",
        "`text_list` is a list, beside `image_info`",
        lambda row: isinstance(row.get("text_list"), list) and "image_info" in row,
    ),
    (
        "liquid",
        "there are `image_path` and `text_prompt`",
        lambda row: not is_missing(row.get("image_path")) and "text_prompt" in row,
    ),
    ("pair", "a column names an image, a video or audio", _is_pair),
    ("text", "a column is called text or content, and none names media", _is_text),
)
# How to say that another column holds turns: shape, its field, and what a turn has.
TURNS = (
    ("messages", "messages", "role"),
    ("llava", "messages", "from"),
    ("finevision", "texts", "assistant"),
)
