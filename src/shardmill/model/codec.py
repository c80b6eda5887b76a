"""Specs to plain JSON values and back, checked field by field; and digests of them.

A plugin becomes `{"kind": "template/chat", field: value, ...}`, at every level, so that two specs
of different classes with equal fields never share a digest; a class from outside of shardmill is
named as "package.module:Class". A dataclass of ours that is no plugin needs no kind: the field that
holds it says what it is.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import types
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from math import isfinite
from pathlib import Path
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

import orjson

from shardmill.errors import ConfigError
from shardmill.plugins import Table, resolve, resolve_stored, stored_names
from shardmill.storage.path import as_path

# A comma that is not inside [...], {...} or "...": splits 'kind,names=["a","b"],size=3'.
COMMA = re.compile(r""",(?=(?:[^"]*"[^"]*")*[^"]*$)(?![^\[]*\])(?![^{]*\})""")

Plain: TypeAlias = bool | int | float | str | list["Plain"] | dict[str, "Plain"] | None


def to_plain(value: object) -> Plain:
    """Return `value` as plain JSON values; a plugin names its class under "kind"."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float) and isfinite(value):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
        kind = stored_kind(type(value))
        return fields if kind is None else {"kind": kind, **fields}
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    raise ConfigError(f"cannot store a {type(value).__name__} in a spec: {value!r}")


def from_plain(plain: object, expected: Any = object, *, where: str = "spec") -> Any:
    """Return the value that `to_plain` stored, checked against the annotation `expected`.

    `where` names the place in messages: "ingest.per_shard must be int, got 'many'".
    """
    origin, choices = get_origin(expected), get_args(expected)
    if origin in (Union, types.UnionType):
        return _from_union(plain, get_args(expected), where)
    if origin is Literal:
        if plain not in get_args(expected):
            raise ConfigError(
                f"{where} must be one of {_listed(get_args(expected))}, got {plain!r}"
            )
        return plain
    if origin is tuple:
        return _from_tuple(plain, get_args(expected), where)
    if origin in (list, Sequence):
        items = _need(plain, list, where)
        return [from_plain(item, choices[0], where=f"{where}[{i}]") for i, item in enumerate(items)]
    if origin in (dict, Mapping):
        _, value_type = choices
        items = _need(plain, dict, where)
        return {k: from_plain(v, value_type, where=f"{where}.{k}") for k, v in items.items()}
    if isinstance(plain, dict) and "kind" in plain:
        return _build(plain, expected, where)
    if isinstance(expected, type) and dataclasses.is_dataclass(expected):
        # A field annotated `Plain` (a job's stage) was read before its owner: then this is done.
        if isinstance(plain, expected):
            return plain
        return _build_class(expected, _need(plain, dict, where), where)
    if expected is Path:
        return as_path(_need(plain, str, where))
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


def differences(old: Plain, new: Plain, where: str = "") -> list[str]:
    """Return one line for each field in which two plain values differ: 'per_shard: 500 -> 1000'."""
    if isinstance(old, dict) and isinstance(new, dict):
        lines = []
        for key in sorted(old.keys() | new.keys()):
            lines += differences(old.get(key), new.get(key), f"{where}.{key}" if where else key)
        return lines
    if old == new:
        return []
    return [f"{where or 'value'}: {json.dumps(old)} -> {json.dumps(new)}"]


def build(table: Table, plain: Mapping[str, Any], *, where: str = "spec") -> Any:
    """Return the plugin that `{"kind": name, field: value, ...}` describes, as a user wrote it."""
    kind = plain.get("kind")
    if not isinstance(kind, str):
        raise ConfigError(f"{where} needs a kind: one of {', '.join(sorted(table))}")
    return from_plain({**plain, "kind": resolve(table, kind)}, where=where)


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


def stored_kind(cls: type) -> str | None:
    """Return how a stored spec names a class; None for a class of ours that is no plugin."""
    path = f"{cls.__module__}:{cls.__qualname__}"
    return stored_names().get(path, None if path.startswith("shardmill.") else path)


def load_class(path: str) -> type:
    """Return the class that 'package.module:Class' names."""
    module_name, colon, name = path.partition(":")
    if not colon or not module_name or not name:
        raise ConfigError(f"{path!r} is not of the form 'package.module:Class'")
    try:
        found = getattr(import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"cannot load {path!r}: {error}") from error
    if not isinstance(found, type):
        raise ConfigError(f"{path!r} is not a class")
    return found


@cache
def field_types(cls: type) -> dict[str, Any]:
    """Return the annotation of each field of a dataclass that its constructor takes."""
    hints = get_type_hints(cls)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls) if f.init}


# Plain values are encoded in C; only what is not plain yet comes back to `to_plain`.
_ENCODER = json.JSONEncoder(
    sort_keys=True,
    separators=(",", ":"),
    ensure_ascii=False,
    allow_nan=False,
    default=to_plain,
)


def _build(plain: dict[str, Any], expected: Any, where: str) -> Any:
    kind = _need(plain["kind"], str, f"{where}.kind")
    cls = load_class(resolve_stored(kind) or kind)
    if not dataclasses.is_dataclass(cls):
        raise ConfigError(f"{where}: {kind!r} is not a dataclass, so it cannot be a spec")
    if isinstance(expected, type) and not issubclass(cls, expected):
        raise ConfigError(f"{where} must be a {expected.__name__}, got {kind!r}")
    return _build_class(cls, plain, where)


def _build_class(cls: Any, plain: dict[str, Any], where: str) -> Any:
    types_ = field_types(cls)
    unknown = sorted(plain.keys() - types_.keys() - {"kind"})
    if unknown:
        raise ConfigError(f"{where} has no field {unknown[0]!r}: use {_listed(sorted(types_))}")
    values = {
        name: from_plain(plain[name], types_[name], where=f"{where}.{name}")
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


def _from_union(plain: object, options: tuple[Any, ...], where: str) -> Any:
    if plain is None and type(None) in options:
        return None
    problems = []
    for option in options:
        if option is type(None):
            continue
        try:
            return from_plain(plain, option, where=where)
        except ConfigError as error:
            problems.append(str(error))
    # The first option is the usual form of a field, so its problem helps most.
    raise ConfigError(problems[0])


def _from_tuple(plain: object, items: tuple[Any, ...], where: str) -> tuple[Any, ...]:
    values = _need(plain, list, where)
    if len(items) == 2 and items[1] is Ellipsis:
        items = (items[0],) * len(values)
    if len(items) != len(values):
        raise ConfigError(f"{where} must have {len(items)} values, got {len(values)}")
    return tuple(
        from_plain(value, item, where=f"{where}[{i}]")
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
