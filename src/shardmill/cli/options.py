"""The flags that verbs share, and how those of a run become one.

What a user types, as values: plugins with their fields, and sizes in bytes.

`--on`: where the units of a stage are worked off; and what it would do, with `--dry-run`.

Arguments that name a file or folder, which may be a url of an object store.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import click
import orjson

from shardmill.errors import ConfigError
from shardmill.model.codec import build, from_plain
from shardmill.plugins import ENGINES, FILTERS
from shardmill.run.engine import Engine
from shardmill.storage.path import UrlPath, as_path
from shardmill.storage.text import read_toml
from shardmill.storage.url import is_remote

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


def parse_engine(text: str) -> Engine:
    """Return the engine of 'local', 'cluster.toml', 'ray,gpus=0.5', 'ray://host:port' and so on.

    What is before '://' names an engine, which then gets the whole as its `address`.
    """
    if text.endswith(".toml"):
        plain = read_toml(Path(text))
    elif "://" in text:
        address, *_ = text.split(",")
        kind, _, _ = address.partition("://")
        plain = parse_plugin(kind + text.removeprefix(address)) | {"address": address}
    else:
        plain = parse_plugin(text)
    engine: Engine = build(ENGINES, plain, where=f"--on {text}")
    return engine


class PlaceType(click.Path):
    """What `click.Path` takes, checked as it does; and urls, which must exist if paths must.

    Of a web server only files can be looked at, so there it is left to whoever reads.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(path_type=Path, **options)

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        text = str(value)
        if is_remote(text):
            path = as_path(text)
            if self.exists and isinstance(path, UrlPath) and not (path.is_web or path.exists()):
                self.fail(f"{self.name.title()} {text!r} does not exist.", param, ctx)
            return path
        return super().convert(text.removeprefix("file://"), param, ctx)


Option: TypeAlias = Callable[[Any], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How a stage is run; none of this changes what it writes."""

    workers: int | None
    retries: int
    max_skip_rate: float
    part: tuple[int, int]
    on: Engine
    wait: bool
    dry_run: bool
    as_json: bool

    @classmethod
    def taken_from(cls, flags: dict[str, Any]) -> RunOptions:
        """Remove the flags of `run_options` from a command's flags, and return them."""
        return cls(**{field.name: flags.pop(field.name) for field in fields(cls)})


def all_of(*options: Option) -> Option:
    """Return the option that adds all these, which the help lists in their order."""

    def add(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def parse_part(text: str) -> tuple[int, int]:
    """Return (3, 8) for '3/8'; parts count from 1."""
    first, slash, second = text.partition("/")
    if not slash or not first.isdigit() or not second.isdigit():
        raise ConfigError(f"--part must look like 3/8, got {text!r}")
    part, parts = int(first), int(second)
    if not 1 <= part <= parts:
        raise ConfigError(f"--part {text}: the part must lie between 1 and {parts}")
    return part, parts


def folder_argument(name: str) -> Option:
    """Add the argument of an existing folder of ours."""
    path = PlaceType(exists=True, file_okay=False)
    return click.argument(name, type=path)


json_option: Option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object instead of a report."
)

json_lines_option: Option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON, an object a line, instead of a report."
)

filter_option: Option = click.option(
    "--filter",
    "filters",
    multiple=True,
    metavar="KIND,FIELD=VALUE",
    callback=lambda _ctx, _param, texts: tuple(
        build(FILTERS, parse_plugin(text), where="--filter") for text in texts
    ),
    help=f"Leave out what does not pass: {', '.join(FILTERS)} or package.module:Class.",
)

# The page reads nothing outside of its folder unasked.
allow_option: Option = click.option(
    "--allow",
    "allowed",
    multiple=True,
    metavar="DIR|URL",
    help="Also read what lies here: tars that an index names, links, tokenizers.",
)

run_options: Option = all_of(
    click.option(
        "--on",
        default="local",
        metavar="WHERE",
        callback=lambda _ctx, _param, text: parse_engine(text),
        help="Where to work: local, CLUSTER.toml, ray or ray://HOST:PORT.  [default: local]",
    ),
    click.option(
        "--workers",
        type=click.IntRange(0),
        help="Worker processes; 0 works inside this one.  [default: the CPUs it may use]",
    ),
    click.option(
        "--retries",
        type=click.IntRange(0),
        default=1,
        show_default=True,
        help="How often a failed unit is tried again.",
    ),
    click.option(
        "--max-skip-rate",
        type=click.FloatRange(0, 1),
        default=0.1,
        show_default=True,
        help="Share of samples that may be broken, in a unit and in all; 0 allows none.",
    ),
    click.option(
        "--part",
        default="1/1",
        metavar="I/N",
        callback=lambda _ctx, _param, text: parse_part(text),
        help="Do only the Ith of N parts: for machines without a scheduler.",
    ),
    click.option(
        "--wait/--no-wait",
        default=True,
        help="Watch the tasks that --on submitted until all is done.  [default: wait]",
    ),
    click.option("--dry-run", is_flag=True, help="Print what --on would submit, and stop."),
    json_option,
)
