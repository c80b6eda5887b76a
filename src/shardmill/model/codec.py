"""Specs to plain JSON values and back, checked field by field; and digests of them.

A plugin becomes `{"kind": "template/chat", field: value, ...}`, at every level, so that two specs
of different classes with equal fields never share a digest; a class from outside of shardmill is
named as "package.module:Class". A dataclass of ours that is no plugin needs no kind: the field that
holds it says what it is.

Here is the gate between data and code. A spec in memory was written by the user, or came through
`from_plain`, which lets data name only what stands in our tables, or what the user has named in
this process: in a flag, a recipe, a job or a program, or by `trust`.

A field that says where something is (a `Path`, a `PlaceName` or a `RootName`) is stored as
`{"$place": "..."}` or `{"$root": "..."}`: so whoever stores a spec knows its places without knowing
its classes. A digest of a spec leaves them out (`without_places`), because what is there has
digests of its own; of what is read below a root nobody has, so that roots are compared by
themselves (`roots_of`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    TypeAlias,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import orjson

from shardmill.errors import ConfigError, near
from shardmill.plugins import Table, resolve, resolve_stored, stored_names
from shardmill.storage.path import as_path

# A comma that is not inside [...], {...} or "...": splits 'kind,names=["a","b"],size=3'.
COMMA = re.compile(r""",(?=(?:[^"]*"[^"]*")*[^"]*$)(?![^\[]*\])(?![^{]*\})""")

Plain: TypeAlias = bool | int | float | str | list["Plain"] | dict[str, "Plain"] | None
# A field whose text names code: a name of a table or 'package.module:Name', perhaps with fields.
Named: TypeAlias = Annotated[str, "names code"]
# A field whose text is a path, url or pattern of what is read, and known by its content.
PlaceName: TypeAlias = Annotated[str, "$place"]
# The same for a folder, store or web server below which rows may name what is read.
RootName: TypeAlias = Annotated[str, "$root"]
PLACES = ("$place", "$root")

# What data may name besides our own tables.
_NAMED: set[str] = set()


def trust(*names: str) -> None:
    """Let folders and plans that are read from now on name these classes and functions of yours.

    Each is written as "package.module:Class". A class that you gave to a verb of this process is
    trusted already.

        sm.trust("my_formats:Lines")
        sm.open("export")
    """
    for name in names:
        _split_name(name)
    _NAMED.update(names)


def to_plain(value: object) -> Plain:
    """Return `value` as plain JSON values; a plugin names its class under "kind"."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float) and isfinite(value):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        marks = _marked_fields(type(value))
        fields = {
            f.name: _marked(to_plain(getattr(value, f.name)), marks.get(f.name))
            for f in dataclasses.fields(value)
        }
        kind = stored_kind(type(value))
        return fields if kind is None else {"kind": kind, **fields}
    if isinstance(value, Path):
        return {"$place": str(value)}
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    raise ConfigError(f"cannot store a {type(value).__name__} in a spec: {value!r}")


def from_plain(
    plain: object, expected: Any = object, *, where: str = "spec", trusted: bool = False
) -> Any:
    """Return the value that `to_plain` stored, checked against the annotation `expected`.

    `where` names the place in messages: "ingest.per_shard must be int, got 'many'". `trusted` says
    that the user wrote it, so that it may name any class: never say so of what was read from data.
    """
    origin, choices = get_origin(expected), get_args(expected)
    if origin in (Union, types.UnionType):
        return _from_union(plain, get_args(expected), where, trusted)
    if origin is Annotated and choices[1] in PLACES:
        return place_in(plain) or _need(plain, str, where)
    if origin is Annotated:
        for name in names_in(parse_plugin(_need(plain, str, where))):
            _admit(name, where, trusted)
        return plain
    if origin is Literal:
        if plain not in get_args(expected):
            raise ConfigError(
                f"{where} must be one of {_listed(get_args(expected))}, got {plain!r}"
            )
        return plain
    if origin is tuple:
        return _from_tuple(plain, get_args(expected), where, trusted)
    if origin in (list, Sequence):
        items = _need(plain, list, where)
        return [
            from_plain(item, choices[0], where=f"{where}[{i}]", trusted=trusted)
            for i, item in enumerate(items)
        ]
    if origin in (dict, Mapping):
        _, value_type = choices
        items = _need(plain, dict, where)
        return {
            k: from_plain(v, value_type, where=f"{where}.{k}", trusted=trusted)
            for k, v in items.items()
        }
    if isinstance(plain, dict) and "kind" in plain:
        return _build(plain, expected, where, trusted)
    if isinstance(expected, type) and dataclasses.is_dataclass(expected):
        # A field annotated `Plain` (a job's stage) was read before its owner: then this is done.
        if isinstance(plain, expected):
            return plain
        return _build_class(expected, _need(plain, dict, where), where, trusted)
    if expected is Path:
        return as_path(place_in(plain) or _need(plain, str, where))
    if expected is float and isinstance(plain, int) and not isinstance(plain, bool):
        return float(plain)
    if isinstance(expected, type) and expected is not object:
        return _need(plain, expected, where)
    return plain


def digest(value: object) -> str:
    """Return 32 hex digits that depend on every field of `value` and on every class in it."""
    return hashlib.blake2b(canonical(value), digest_size=16).hexdigest()


def canonical(value: object) -> bytes:
    """Return the one JSON text of `value`: sorted keys, no spaces, UTF-8."""
    try:
        return _ENCODER.encode(value).encode("utf-8", "surrogatepass")
    except ValueError as error:
        raise ConfigError(f"cannot store {value!r} in a spec: {error}") from error


def place_in(plain: object) -> str | None:
    """Return the place that a stored value is, None if it is none."""
    if isinstance(plain, dict) and len(plain) == 1:
        (mark, place), *_ = plain.items()
        return place if mark in PLACES and isinstance(place, str) else None
    return None


def change_places(plain: Any, change: Callable[[str], str]) -> Any:
    """Return a stored spec with each of its places changed."""
    place = place_in(plain)
    if place is not None:
        return {mark: change(place) for mark in plain}
    if isinstance(plain, dict):
        return {name: change_places(value, change) for name, value in plain.items()}
    return [change_places(item, change) for item in plain] if isinstance(plain, list) else plain


def places_of(plain: Any) -> list[str]:
    """Return all places of a stored spec."""
    found: list[str] = []
    change_places(plain, lambda place: found.append(place) or place)  # type: ignore[func-returns-value]
    return found


def without_places(plain: Any) -> Any:
    """Return a stored spec without the fields that are places: its settings."""
    if isinstance(plain, dict):
        return {n: without_places(v) for n, v in plain.items() if not _is_placed(v)}
    return [without_places(item) for item in plain] if isinstance(plain, list) else plain


def roots_of(plain: Any, where: str = "") -> dict[str, list[str]]:
    """Return the roots of a stored spec by the names of their fields: "source.media_root"."""
    if isinstance(plain, dict) and "$root" in plain and place_in(plain) is not None:
        return {where: [plain["$root"]]}
    found: dict[str, list[str]] = {}
    for name, value in plain.items() if isinstance(plain, dict) else ():
        found |= roots_of(value, f"{where}.{name}" if where else name)
    for item in plain if isinstance(plain, list) else ():
        for name, roots in roots_of(item, where).items():
            found.setdefault(name, []).extend(roots)
    return found


def differences(old: Plain, new: Plain, where: str = "") -> list[str]:
    """Return one line for each field in which two plain values differ: 'per_shard: 500 -> 1000'.

    Two places are no difference.
    """
    if _is_placed(old) and _is_placed(new):
        return []
    if isinstance(old, dict) and isinstance(new, dict):
        lines = []
        for key in sorted(old.keys() | new.keys()):
            lines += differences(old.get(key), new.get(key), f"{where}.{key}" if where else key)
        return lines
    if old == new:
        return []
    before, after = (json.dumps(place_in(value) or value) for value in (old, new))
    return [f"{where or 'value'}: {before} -> {after}"]


def build(
    table: Table, plain: Mapping[str, Any], *, where: str = "spec", trusted: bool = True
) -> Any:
    """Return the plugin that `{"kind": name, field: value, ...}` describes, as a user wrote it."""
    kind = plain.get("kind")
    if not isinstance(kind, str):
        raise ConfigError(f"{where} needs a kind: one of {', '.join(sorted(table))}")
    preset = parse_plugin(table.get(kind, ""))
    named = {**preset, **plain, "kind": resolve(table, kind, where)}
    return from_plain(named, where=where, trusted=trusted)


def parse_plugin(text: str) -> dict[str, Any]:
    """'aspect_ratio,max_ratio=2' -> {"kind": "aspect_ratio", "max_ratio": 2}.

    Values are JSON where they can be read as such, and text otherwise.
    """
    kind, *fields = COMMA.split(text)
    plain: dict[str, Any] = {"kind": kind.strip()}
    for field in fields:
        name, equals, value = field.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"{text!r}: expected name=value after the kind, got {field!r}")
        try:
            plain[name.strip()] = orjson.loads(value.strip())
        except orjson.JSONDecodeError:
            plain[name.strip()] = value.strip()
    return plain


def names_in(plain: Any) -> Iterator[str]:
    """Yield every 'package.module:Name' that a plugin and the plugins in it name."""
    if isinstance(plain, Mapping):
        kind = plain.get("kind")
        if isinstance(kind, str) and ":" in kind:
            yield kind
    if isinstance(plain, Mapping | list):
        for value in plain.values() if isinstance(plain, Mapping) else plain:
            yield from names_in(value)


def stored_kind(cls: type) -> str | None:
    """Return how a stored spec names a class; None for a class of ours that is no plugin."""
    path = f"{cls.__module__}:{cls.__qualname__}"
    return stored_names().get(path, None if path.startswith("shardmill.") else path)


def load_class(path: str) -> type:
    """Return the class that 'package.module:Class' names."""
    found = load_named(path)
    if not isinstance(found, type):
        raise ConfigError(f"{path!r} is not a class")
    return found


def load_named(path: str) -> Any:
    """Return what 'package.module:Name' names; the name is one of ours, or the user's own.

    A module that is installed nowhere is looked for in the working folder, which becomes the last
    place of the search path only then.
    """
    module_name, name = _split_name(path)
    try:
        _look_beside(module_name.partition(".")[0])
        return getattr(import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"cannot load {path!r}: {error}") from error


def texts_of(plain: Any) -> Iterator[str]:
    """Yield every text in a spec."""
    if isinstance(plain, str):
        yield plain
    elif isinstance(plain, Mapping | list):
        for value in plain.values() if isinstance(plain, Mapping) else plain:
            yield from texts_of(value)


def named_in(plain: Plain) -> list[str]:
    """Return the names of the user's own code in a spec, for other processes to trust."""
    return sorted({text.partition(",")[0] for text in texts_of(plain)} & _NAMED)


def code_path(plain: Plain) -> list[str]:
    """Return the folders of the modules that `named_in` names, for other processes to search."""
    folders: dict[str, None] = {}
    for top in [name.partition(":")[0].partition(".")[0] for name in named_in(plain)]:
        _look_beside(top)
        spec = None if top == "__main__" else find_spec(top)
        if spec is not None and (spec.submodule_search_locations or spec.has_location):
            places = spec.submodule_search_locations or [str(spec.origin)]
            folders |= {str(Path(place).absolute().parent): None for place in places}
    return list(folders)


@cache
def field_types(cls: type) -> dict[str, Any]:
    """Return the annotation of each field of a dataclass that its constructor takes."""
    hints = get_type_hints(cls, include_extras=True)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls) if f.init}


@cache
def _marked_fields(cls: type) -> dict[str, str]:
    """Return the fields of a spec whose texts are places, and of which kind."""
    return {name: mark for name, hint in field_types(cls).items() if (mark := _mark_in(hint))}


def _mark_in(hint: Any) -> str | None:
    if get_origin(hint) is Annotated:
        return get_args(hint)[1] if get_args(hint)[1] in PLACES else None
    return next((mark for part in get_args(hint) if (mark := _mark_in(part))), None)


def _marked(plain: Plain, mark: str | None) -> Plain:
    if mark is not None and isinstance(plain, list):
        return [_marked(item, mark) for item in plain]
    return {mark: plain} if mark is not None and isinstance(plain, str) else plain


def _is_placed(plain: Any) -> bool:
    """Say whether a value is a place, or a list of them."""
    if isinstance(plain, list):
        return bool(plain) and all(place_in(item) is not None for item in plain)
    return place_in(plain) is not None


# Plain values are encoded in C; only what is not plain yet comes back to `to_plain`.
_ENCODER = json.JSONEncoder(
    sort_keys=True,
    separators=(",", ":"),
    ensure_ascii=False,
    allow_nan=False,
    default=to_plain,
)


def _split_name(path: str) -> tuple[str, str]:
    module_name, colon, name = path.partition(":")
    if not colon or not module_name or not name:
        raise ConfigError(f"{path!r} is not of the form 'package.module:Class'")
    return module_name, name


def _look_beside(top: str) -> None:
    here = str(Path.cwd())
    if top in sys.modules or here in sys.path or find_spec(top) is not None:
        return
    if PathFinder.find_spec(top, [here]) is not None:
        sys.path.append(here)


def _admit(name: str, where: str, trusted: bool) -> None:
    """Let a name pass that is ours or the user's own; `trusted` makes it the user's own."""
    if name in stored_names() or name in _NAMED:
        return
    if not trusted:
        raise ConfigError(
            f"{where} names {name!r}, which is not part of shardmill, and data alone may not load "
            f"code. If you know and want it: shardmill --trust {name} VERB ..., or in Python "
            f"sm.trust({name!r})"
        )
    _NAMED.add(name)


def _build(plain: dict[str, Any], expected: Any, where: str, trusted: bool) -> Any:
    kind = _need(plain["kind"], str, f"{where}.kind")
    path = resolve_stored(kind) or kind
    _split_name(path)
    _admit(path, where, trusted)
    cls = load_class(path)
    if not dataclasses.is_dataclass(cls):
        raise ConfigError(f"{where}: {kind!r} is not a dataclass, so it cannot be a spec")
    if isinstance(expected, type) and not issubclass(cls, expected):
        raise ConfigError(f"{where} must be a {expected.__name__}, got {kind!r}")
    return _build_class(cls, plain, where, trusted)


def _build_class(cls: Any, plain: dict[str, Any], where: str, trusted: bool) -> Any:
    types_ = field_types(cls)
    unknown = sorted(plain.keys() - types_.keys() - {"kind"})
    if unknown:
        raise ConfigError(
            f"{where} has no field {unknown[0]!r}{near(unknown[0], types_)}\n"
            f"Use {_listed(sorted(types_))}"
        )
    values = {
        name: from_plain(plain[name], types_[name], where=f"{where}.{name}", trusted=trusted)
        for name in types_
        if name in plain
    }
    missing = [
        f.name
        for f in dataclasses.fields(cls)
        if f.init
        and f.name not in values
        and f.default is dataclasses.MISSING
        and f.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise ConfigError(f"{where} needs {_listed(missing)}")
    return cls(**values)


def _from_union(plain: object, options: tuple[Any, ...], where: str, trusted: bool) -> Any:
    if plain is None and type(None) in options:
        return None
    problems = []
    for option in options:
        if option is type(None):
            continue
        try:
            return from_plain(plain, option, where=where, trusted=trusted)
        except ConfigError as error:
            problems.append(str(error))
    # The first option is the usual form of a field, so its problem helps most.
    raise ConfigError(problems[0])


def _from_tuple(
    plain: object, items: tuple[Any, ...], where: str, trusted: bool
) -> tuple[Any, ...]:
    # What a user types for one name: text=caption means text=["caption"].
    is_one = trusted and isinstance(plain, str) and items == (str, Ellipsis)
    values = [plain] if is_one else _need(plain, list, where)
    if len(items) == 2 and items[1] is Ellipsis:
        items = (items[0],) * len(values)
    if len(items) != len(values):
        raise ConfigError(f"{where} must have {len(items)} values, got {len(values)}")
    return tuple(
        from_plain(value, item, where=f"{where}[{i}]", trusted=trusted)
        for i, (value, item) in enumerate(zip(values, items))
    )


def _need(plain: object, expected: type, where: str) -> Any:
    # bool is an int in Python, but `per_shard = true` is a mistake.
    if isinstance(plain, expected) and not (isinstance(plain, bool) and expected is int):
        return plain
    if expected is list and isinstance(plain, tuple):
        return list(plain)
    raise ConfigError(f"{where} must be {expected.__name__}, got {plain!r}")


def _listed(names: Sequence[object]) -> str:
    return ", ".join(str(name) for name in names)
