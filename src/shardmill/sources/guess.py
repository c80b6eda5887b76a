"""From what a user types to a source, and from its first rows to their shape; a spec stores both.

The input may be a folder, table files, tars, globs, braces, urls or a meta file. The shape follows
from the names of the fields.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from itertools import islice
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import orjson

from shardmill import humanize
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
    MessagesShape,
    PairShape,
    TextShape,
)
from shardmill.sources.shapes.instructions import ANSWERS, QUESTIONS, EditShape
from shardmill.sources.shapes.shape import Shape, first_of, is_missing
from shardmill.sources.source import (
    WILD,
    Row,
    Source,
    few_rows,
    media_kind,
    name_from_path,
    not_there,
    walk,
)
from shardmill.sources.tables import SUFFIXES, split_suffixes, table_stem
from shardmill.sources.tars import tar_stem
from shardmill.storage.path import as_path, expand, expand_braces, is_remote

MAX_META_BYTES = 16 << 20
HEAD_BYTES = 4096
WRITTEN_OUT = re.compile(r"""\{\s*["'].*\}|\[\s*[\["'{].*\]""", re.DOTALL)
LOOK_AT_MATCHES = 100  # of a glob
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
    kinds = {kind: inputs[0]} if kind else _kinds_of(inputs, allow)
    if len(kinds) > 1:
        listed = ", ".join(f"{kind} ({place})" for kind, place in sorted(kinds.items()))
        raise ConfigError(f"the inputs are of different kinds: {listed}: ingest them apart")
    return _build(next(iter(kinds)), [_shards_of(place) for place in places], options)


class Head(NamedTuple):
    """The first rows of a file that was looked at, and why none can be read, if so."""

    place: str
    rows: list[Row]
    problem: Exception | None


def first_rows(source: Source) -> list[Head]:
    """Return the first rows of some files of a source, the first and the last among them."""
    each: list[Source] = list(source.apart()) if hasattr(source, "apart") else [source]
    # A tar is walked as a whole, which for remote ones takes requests.
    most = LOOK_AT_REMOTE if any(map(is_remote, source.places())) else LOOK_AT_TABLES
    last = len(each) - 1
    chosen = sorted({last * n // (most - 1) for n in range(most)}) if each else []
    return [_head(each[number]) for number in chosen]


def _head(source: Source) -> Head:
    place = ", ".join(humanize.place(as_path(place)) for place in source.places())
    rows: list[Row] = []
    try:
        with source.open() as read:
            for part in source.parts(LOOK_AT_ROWS):
                rows = few_rows(read(part.input), LOOK_AT_ROWS)
                if not all(row.problem for row in rows):
                    break
    except FormatError as error:  # its unit will say so, the others can be done
        return Head(place, [], error)
    return Head(place, rows, next((row.problem for row in rows if row.problem), None))


def shape_of(
    source: Source,
    shape: Shape | None = None,
    *,
    heads: Sequence[Head] | None = None,
    extra: Collection[str] = (),
    known: Collection[str] = (),
) -> Shape:
    """Return the shape of the rows of a source, after a look at the first rows of some files.

    It is the given one, or the one that the source names in a class attribute `shape`, or what the
    rows look like. Files of different shapes, files without rows and content that the shape leaves
    out are a `ConfigError`. `extra` are columns that the shape is not shown, `known` those that
    have another use.
    """
    if shape is None and (kind := getattr(source, "shape", None)) is not None:
        shape = build(SHAPES, {"kind": kind})
    heads = first_rows(source) if heads is None else heads
    found: dict[str, tuple[Shape, str]] = {}  # by its kind a shape and the first file that has it
    for head in heads:
        good = [row.fields for row in head.rows if not row.problem]
        shown = [{n: v for n, v in fields.items() if n not in extra} for fields in good]
        if shown:
            taken = shape or guess_shape(shown, head.place)
            if shape is None:
                _check_texts(taken, shown, head.place)
            found.setdefault(shape_kind(taken), (taken, head.place))
            _check_columns(taken, shown, head.place, known)
    if len(found) > 1:
        listed = ", ".join(f"{kind} ({place})" for kind, (_, place) in found.items())
        raise ConfigError(f"the files hold rows of different shapes, {listed}: ingest them apart")
    if not found:
        place = heads[0].place if heads else ", ".join(source.places())
        problem = next((head.problem for head in heads if head.problem), None)
        if isinstance(problem, FormatError):
            raise problem
        first = f"; the first says: {problem}" if problem else ""
        raise ConfigError(f"{place} holds no row that can be read{first}")
    return shape or next(iter(found.values()))[0]


def _check_texts(shape: Shape, rows: list[dict[str, Any]], place: str) -> None:
    """Raise `ConfigError` if the text of all rows is JSON, or a list as Python prints it."""
    texts: dict[str, list[str]] = {}
    for row in rows:
        with suppress(SampleError, RecursionError), plugin(shape, place):
            uses = shape.shape(row).uses
            for name in uses:
                if uses[name] == "text" and isinstance(row.get(name), str):
                    texts.setdefault(name, []).append(row[name])
    for name, found in texts.items():
        if all(map(WRITTEN_OUT.fullmatch, found)):
            raise ConfigError(
                f"{place}: {name!r} is not text but a value written out as one: {found[0]!r:.60}. "
                f"Write what it holds into columns, or take it as it is by --shape "
                f"{shape_kind(shape)}"
            )


def _check_columns(
    shape: Shape, rows: list[dict[str, Any]], place: str, known: Collection[str]
) -> None:
    unused: dict[str, tuple[str, Any]] = {}
    for row in rows:
        try:
            with plugin(shape, place):
                document = shape.shape(row)
        except (SampleError, RecursionError):
            continue
        for name, looks in unused_content(row, document, known, weak=True).items():
            unused.setdefault(name, (looks, row[name]))
    kind = shape_kind(shape)
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
    if field == "meta" and len(places) > 1:
        raise ConfigError(f"give one {kind} at a time, got {len(places)}")
    if "media_root" in given:
        given["media_root"] = _absolute(given["media_root"])
        if not is_remote(given["media_root"]) and not Path(given["media_root"]).is_dir():
            raise ConfigError(f"--media-root {given['media_root']} is no folder")
    if field == "dir":
        given |= _folder_of(places)
    else:
        given[field] = places[0] if field == "meta" else tuple(places)
    if "name" in known:
        given.setdefault("name", _name_of(given[field] if field == "dir" else places[0]))
    source: Source = build(SOURCES, {"kind": kind, **given}, where=kind)
    return source


def _folder_of(places: list[str]) -> dict[str, Any]:
    """Return the folder of media that these places mean, and what in it, if not all."""
    if len(places) == 1 and as_path(places[0]).is_dir():
        return {"dir": places[0]}
    # The folders before the first wildcard or brace.
    roots = [os.path.dirname(re.split(r"[*?[{]", place)[0]) for place in places]  # noqa: PTH120
    dir = os.path.commonpath(roots)
    dir = dir.replace(":/", "://", 1) if is_remote(places[0]) else dir
    return {"dir": dir, "only": tuple(place[len(dir.rstrip("/")) + 1 :] for place in places)}


def _kinds_of(inputs: Sequence[str], allow: tuple[str, ...]) -> dict[str, str]:
    """Return the kinds of input that these are, each with the first that is one."""
    kinds: dict[str, str] = {}
    for given in inputs:
        place = _absolute(given)
        is_pattern = bool(WILD.intersection(place)) and not os.path.lexists(place)
        if is_pattern and _kind_by_name(place) not in ("table", "tars"):
            for match in expand(place)[:LOOK_AT_MATCHES]:
                kinds.setdefault(_kind_of(match, allow, match), given)
        else:
            kinds.setdefault(_kind_of(place, allow, given), given)
    return kinds


def _kind_of(place: str, allow: tuple[str, ...], given: str) -> str:
    path = as_path(place)
    if _is_named_object(place) or not path.is_dir():
        return _kind_of_file(place, given)
    if _is_output(path):  # an export may hold tables
        return "table" if "table" in _kinds_below(path / "shards", allow) else "tars"
    found = _kinds_below(path, allow)
    if len(found) == 1:
        return next(iter(found))
    if not found:
        raise ConfigError(f"{given} holds no media, tables or tars")
    listed = ", ".join(f"{kind} ({name})" for kind, name in sorted(found.items()))
    flags = " or ".join(f"--source {kind}" for kind in sorted(found))
    raise ConfigError(
        f"{given} holds more than one kind of input: {listed}. Name the files that hold the rows, "
        f"or say which kind is meant by {flags}"
    )


def _kind_of_file(place: str, given: str) -> str:
    kind = _kind_by_name(place)
    if kind is not None and not (kind == "folder" and not as_path(place).exists()):
        is_json = kind == "table" and PurePath(place).name.endswith(".json")
        return "nemo" if is_json and _holds_meta(as_path(place)) else kind
    if not as_path(place).exists():
        raise ConfigError(not_there(given))
    raise ConfigError(
        f"cannot tell what {given} is: give a folder, a .tar, an image, a video, a table "
        f"({', '.join(SUFFIXES)}), or say which is meant by --source"
    )


def _kind_by_name(place: str) -> str | None:
    name = PurePath(next(expand_braces(place))).name
    if tar_stem(name) is not None:
        return "tars"
    if split_suffixes(name)[0] in SUFFIXES:
        return "table"
    return "folder" if media_kind(name) is not None else None


def _is_named_object(place: str) -> bool:
    """Say whether the name of an object tells what it is, so that no store has to be asked."""
    name = PurePath(place).name
    return _kind_by_name(name) is not None and is_remote(place)


def _kinds_below(folder: Path, allow: tuple[str, ...]) -> dict[str, str]:
    """Return the kinds of the first files below a folder, and a file of each.

    A json beside media is a sidecar.
    """
    found: dict[str, str] = {}
    names = (entry.name for _, entries in walk(folder, allow) for entry in entries)
    for name in islice(names, LOOK_AT_FILES):
        if tar_stem(name) is not None:
            found.setdefault("tars", name)
        elif media_kind(name) is not None:
            found.setdefault("folder", name)
        elif table_stem(name) is not None:
            found.setdefault("json" if name.endswith(".json") else "table", name)
    json = found.pop("json", None)
    return found or ({} if json is None else {"table": json})


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
    if media is None and (file := first_of(row, PairShape().file)) is not None:
        return media_kind(str(row[file])) is not None
    if media != "url":
        return media is not None
    # Web text has a url too: a pair needs a medium that is not just the page's address.
    is_page = media_kind(str(row["url"]).partition("?")[0]) is None
    return not is_page or first_of(row, TEXT_FIELDS[1:]) is not None


def _holds(*names: str) -> Test:
    return lambda row: not any(is_missing(row.get(name)) for name in names)


def _is_interleaved(row: Mapping[str, Any]) -> bool:
    images, texts = row.get("images"), row.get("texts")
    if not isinstance(images, list) or not isinstance(texts, list) or len(images) != len(texts):
        return False
    return all(is_missing(i) or is_missing(t) for i, t in zip(images, texts))


def _is_edit(row: Mapping[str, Any]) -> bool:
    shape = EditShape()
    pair = (first_of(row, names) for names in (shape.source, shape.target, shape.instruction))
    return _holds(shape.images, shape.instructions)(row) or None not in tuple(pair)


def _has_prompt(row: Mapping[str, Any]) -> bool:
    return first_of(row, ("value", "prompt")) is not None


# The first that fits wins, so the more particular ones come first.
TESTS: tuple[tuple[str, str, Test], ...] = (
    ("document", "`segments` is a list", lambda row: isinstance(row.get("segments"), list)),
    ("llava", "`conversations` are turns with `from`", _has_turns("conversations", "from")),
    (
        "messages",
        "`messages` are turns with `role`",
        lambda row: any(_has_turns(name, "role")(row) for name in MessagesShape().messages),
    ),
    ("finevision", "`texts` are turns of `user` and `assistant`", _has_turns("texts", "assistant")),
    (
        "interleaved",
        "`images` and `texts` are lists of one length, one of which is empty at each place",
        _is_interleaved,
    ),
    ("edit", "there are an image, an edit and the image that it gives", _is_edit),
    (
        "points",
        "there are an image, a `label` and `points` with x and y",
        lambda row: (
            first_of(row, MEDIA_FIELDS) is not None
            and (_has_turns("points", "x")(row) or (row.get("points") == [] and "label" in row))
        ),
    ),
    ("videochat2", "`QA` are questions with answers `a`", _has_turns("QA", "a")),
    ("howto-interlink", "`clips` are a list with `clip_path`", _has_turns("clips", "clip_path")),
    ("prompt", "there are `prompt` and `txt`", _holds("prompt", "txt")),
    (
        "merlin",
        "`text_list` is one text, beside `image_info`",
        lambda row: isinstance(row.get("text_list"), str) and "image_info" in row,
    ),
    (
        "instruction",
        "a column asks and another answers",
        lambda row: first_of(row, QUESTIONS) is not None and first_of(row, ANSWERS) is not None,
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
