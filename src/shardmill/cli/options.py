"""The flags that verbs share, and how those of a run become one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import click

from shardmill.cli.engines import parse_engine
from shardmill.cli.places import PlaceType
from shardmill.cli.values import parse_plugin
from shardmill.errors import ConfigError
from shardmill.plugins import FILTERS, build
from shardmill.run.engine import Engine

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
