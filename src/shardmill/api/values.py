"""What users write for plugins, sizes, parts, engines and places, as the objects they mean.

A plugin may be given as the string of the command line ("t2i,bos=true"), as the table of a recipe
({"kind": "t2i", "bos": True}) or as the spec itself; all three mean the same object.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from shardmill.errors import ConfigError
from shardmill.model.codec import build, from_plain, parse_plugin
from shardmill.model.plan import Prices
from shardmill.plugins import CODE_SOURCES, ENGINES, GEOMETRIES, Table, resolve
from shardmill.storage.path import absolute, as_path, is_remote, near_path
from shardmill.storage.text import read_json, read_toml

if TYPE_CHECKING:
    from shardmill.running.engine import Engine

# A folder, a file or a url; data that a verb returned stands for its place.
Place: TypeAlias = str | os.PathLike[str]
# Marks an option whose place is written, so that it need not exist.
WRITTEN = "written"
# "kind,field=value", {"kind": ..., field: value}, or the object itself.
Plugin: TypeAlias = str | Mapping[str, Any] | object

Spec = TypeVar("Spec")

# "1.5 GiB" is 1.5, G and i: powers of 1024; without the i they are of 1000.
SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kMGT]?i?)B?")
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")  # Qwen/Qwen2-7B
POWERS = {"": 0, "k": 1, "M": 2, "G": 3, "T": 4}


def to_path(place: Place) -> Path:
    """Return the absolute path of a place, or the path of its url."""
    if isinstance(place, list | tuple):
        raise ConfigError(f"expected one path, got a list: {place}")
    # A url path refuses `os.fspath`, so that nobody takes it for a local file.
    name = str(place) if isinstance(place, Path) else os.fspath(place)
    # Absolute at once: a recipe changes the working folder while its steps run.
    return as_path(absolute(name))


def to_texts(places: Place | Sequence[Place]) -> list[str]:
    """Return places as they were written: patterns and urls, too; "~" is one's own folder."""
    texts = (str(one) if isinstance(one, Path) else os.fspath(one) for one in many(places))
    return [os.path.expanduser(text) for text in texts]  # noqa: PTH111 (may be a pattern)


def many(value: Any) -> list[Any]:
    """Return a list of values as it is, and one value as a list of one."""
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def to_table(value: Plugin, *, where: str) -> dict[str, Any]:
    """Return a plugin that is a string or a table as a table."""
    if isinstance(value, str):
        return parse_plugin(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise ConfigError(f"{where} must be 'kind,field=value' or a table, got {value!r}")


def to_plugin(table: Table, value: Plugin, *, where: str) -> Any:
    """Return the plugin that a value means; `where` is the option's name, for messages."""
    if is_dataclass(value) and not isinstance(value, type):
        return value
    plain = to_table(value, where=where)
    kind = str(plain.get("kind", ""))
    if kind:
        resolve(table, kind, where)
    return build(table, plain, where=f"{where} {kind}".strip())


def to_plugins(table: Table, values: Iterable[Plugin] | Plugin, *, where: str) -> tuple[Any, ...]:
    """Return the plugins of an option that may be given more than once."""
    return tuple(to_plugin(table, value, where=where) for value in many(values))


def to_spec(value: str | Mapping[str, Any] | Spec, spec: type[Spec], *, where: str) -> Spec:
    """'layers=32,hidden=4096' -> a spec with these fields, the others at their defaults."""
    if isinstance(value, spec):
        return value
    if isinstance(value, str):
        value = parse_plugin(f"fields,{value}" if value else "fields")
        del value["kind"]
    made: Spec = from_plain(value, spec, where=where, trusted=True)
    return made


def to_prices(prices: Place | Mapping[str, float] | None) -> Prices | None:
    """Return measured prices: those of a file that `calibrate` wrote, or a table of them."""
    if prices is None:
        return None
    plain: Any = prices
    if not isinstance(prices, Mapping):
        content = read_json(to_path(prices))
        plain = content.get("prices") if isinstance(content, dict) else None
        if not isinstance(plain, dict):
            raise ConfigError(f"{prices} holds no prices: give a file that `calibrate` wrote")
    found: Prices = from_plain(plain, Prices, where="prices")
    return found


def to_bytes(size: int | str) -> int:
    """'500MB' -> 500000000, '1GiB' -> 1073741824, '4096' -> 4096."""
    if isinstance(size, int):
        return size
    match = SIZE.fullmatch(size.strip())
    if match is None:
        raise ConfigError(f"{size!r} is not a size: write 500MB, 1GiB or a number of bytes")
    unit = match[2]
    base = 1024 if unit.endswith("i") else 1000
    return int(float(match[1]) * base ** POWERS[unit.rstrip("i")])


def refuse_hub_name(text: str, flag: str) -> None:
    """Raise `ConfigError` if a text looks like a model's name on a hub, and is no path here."""
    if HUB_NAME.fullmatch(text) and not Path(text).exists():
        raise ConfigError(
            f"{text} is no folder here{near_path(text)}. If it is the name of a model on a hub: "
            f"nothing is downloaded; run hf download {text} --local-dir {text}, and say {flag} "
            f"{text} again"
        )


def to_clip(clip: str | tuple[float, float] | None) -> tuple[float, float] | None:
    """'2.5,10' -> (2.5, 10.0), in seconds."""
    if not isinstance(clip, str):
        return clip
    try:
        start, end = (float(part) for part in clip.split(","))
    except ValueError:
        raise ConfigError(f"clip must be START,END in seconds, got {clip!r}") from None
    return start, end


def to_geometry(geometry: Plugin | None, resolution: int | None) -> Any:
    """Return the geometry that images are brought to; a resolution alone is the middle square."""
    if geometry is not None and not isinstance(geometry, str | Mapping):
        if resolution is None:
            return geometry
        if not hasattr(geometry, "resolution"):
            raise ConfigError(
                f"{type(geometry).__name__} has no resolution: leave --resolution out"
            )
        return replace(geometry, resolution=resolution)  # type: ignore[type-var]
    plain = {"kind": "square"} if geometry is None else to_table(geometry, where="geometry")
    size = {} if resolution is None else {"resolution": resolution}
    return to_plugin(GEOMETRIES, {**plain, **size}, where="geometry")


def to_codes(codes: Plugin | Place | None) -> Any:
    """Return a source of codes; what is no plugin's name is the folder of codes."""
    if isinstance(codes, str):
        kind = codes.partition(",")[0]
        if kind in CODE_SOURCES or (":" in kind and not is_remote(kind)):
            return codes
    if isinstance(codes, str | os.PathLike):
        return {"kind": "shards", "folder": str(to_path(codes))}
    return codes


def to_part(part: str | tuple[int, int]) -> tuple[int, int]:
    """'3/8' -> (3, 8): the third of eight parts."""
    if not isinstance(part, str):
        return part
    first, slash, second = part.partition("/")
    if not slash or not first.isdigit() or not second.isdigit():
        raise ConfigError(f"a part must look like 3/8, got {part!r}")
    if not 1 <= int(first) <= int(second):
        raise ConfigError(f"part {part}: it must lie between 1 and {int(second)}")
    return int(first), int(second)


def to_engine(on: str | Engine) -> Engine:
    """Return the engine of 'local', 'cluster.toml', 'ray,gpus=0.5', 'ray://host:port' and so on.

    What is before '://' names an engine, which then gets the whole as its `address`.
    """
    if not isinstance(on, str):
        return on
    if on.endswith(".toml"):
        plain = read_toml(Path(on))
    elif "://" in on:
        address = on.partition(",")[0]
        kind = address.partition("://")[0]
        plain = parse_plugin(kind + on.removeprefix(address)) | {"address": address}
    else:
        plain = parse_plugin(on)
    engine: Engine = build(ENGINES, plain, where="on")
    return engine
