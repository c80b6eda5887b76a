"""What a user types, as values: plugins with their fields, and sizes in bytes."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import click
import orjson

from shardmill.errors import ConfigError
from shardmill.model.codec import from_plain

Spec = TypeVar("Spec")

# A comma that is not inside [...], {...} or "...": splits 'kind,names=["a","b"],size=3'.
COMMA = re.compile(r""",(?=(?:[^"]*"[^"]*")*[^"]*$)(?![^\[]*\])(?![^{]*\})""")
SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kMGT]?i?)B?")
POWERS = {"": 0, "k": 1, "M": 2, "G": 3, "T": 4}


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
        plain[name.strip()] = _value(value.strip())
    return plain


def parse_spec(text: str, spec: type[Spec], *, where: str) -> Spec:
    """'layers=32,hidden=4096' -> a spec with these fields, the others at their defaults."""
    fields = parse_plugin(f"fields,{text}" if text else "fields")
    del fields["kind"]
    made: Spec = from_plain(fields, spec, where=where)
    return made


def parse_size(text: str) -> int:
    """'500MB' -> 500000000, '1GiB' -> 1073741824, '4096' -> 4096."""
    match = SIZE.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"{text!r} is not a size: write 500MB, 1GiB or a number of bytes")
    unit = match[2]
    base = 1024 if unit.endswith("i") else 1000
    return int(float(match[1]) * base ** POWERS[unit.rstrip("i")])


class SizeType(click.ParamType[int]):
    """A size in bytes with an optional unit."""

    name = "SIZE"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        return value if isinstance(value, int) else parse_size(value)


def _value(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
