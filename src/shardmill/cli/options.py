"""The options and arguments that commands share. Values are read by the front door, not here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeAlias

import click

from shardmill.plugins import FILTERS, Table
from shardmill.sources.source import WILD
from shardmill.storage.path import UrlPath, as_path, expand, is_remote, near_path

Option: TypeAlias = Callable[[Any], Any]


class PlaceType(click.Path):
    """What `click.Path` takes, checked as it does; and urls, which must exist if paths must.

    Of a web server only files can be looked at, so there it is left to whoever reads. Braces and
    globs mean what they mean to `ingest`, and must name one place.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(path_type=Path, **options)

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        text = str(value)
        if self.exists and WILD.intersection(text):
            found = expand(text)
            if len(found) > 1:
                self.fail(f"{text!r} names {len(found)} places, and one is wanted", param, ctx)
            text = found[0]
        if is_remote(text):
            path = as_path(text)
            if self.exists and isinstance(path, UrlPath) and not (path.is_web or path.exists()):
                self.fail(f"{self.name.title()} {text!r} does not exist.", param, ctx)
            return path
        text = str(as_path(text))
        if self.exists and not Path(text).exists():
            self.fail(f"{text!r} does not exist{near_path(text)}", param, ctx)
        return super().convert(text, param, ctx)


Complete: TypeAlias = Callable[[click.Context, click.Parameter, str], list[str]]


def kinds(table: Table) -> Complete:
    """Return what completes 'kind,field=value' in a shell: the kinds, then the fields of one."""

    def complete(_ctx: click.Context, _param: click.Parameter, typed: str) -> list[str]:
        kind, comma, _ = typed.partition(",")
        if not comma:
            return [name for name in table if name.startswith(typed)]
        if kind not in table:
            return []
        from shardmill.model.codec import field_types, load_class

        given, _, begun = typed.rpartition(",")
        fields = [f"{name}=" for name in field_types(load_class(table[kind]))]
        return [f"{given},{name}" for name in fields if name.startswith(begun)]

    return complete


def names(known: Iterable[str]) -> Complete:
    """Return what completes 'name,name' in a shell."""

    def complete(_ctx: click.Context, _param: click.Parameter, typed: str) -> list[str]:
        given, comma, begun = typed.rpartition(",")
        return [f"{given}{comma}{name}" for name in known if name.startswith(begun)]

    return complete


FILE = PlaceType(exists=True, dir_okay=False)
FOLDER = PlaceType(exists=True, file_okay=False)
PLACE = PlaceType(exists=True)


def all_of(*options: Option) -> Option:
    """Return the option that adds all these, which the help lists in their order."""

    def add(command: Any) -> Any:
        # Decorators apply from the innermost out, so the last one comes first.
        for option in reversed(options):
            command = option(command)
        return command

    return add


def folder_argument(name: str, metavar: str | None = None) -> Option:
    """Add the argument of an existing folder of ours."""
    return click.argument(name, type=FOLDER, metavar=metavar)


def place_argument(name: str, metavar: str = "PLACE") -> Option:
    """Add the argument of whatever `sm.open` takes: a folder, one of several, a plan, an export."""
    return click.argument(name, type=PLACE, metavar=metavar)


json_option: Option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object instead of a report."
)

json_lines_option: Option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON, an object a line, instead of a report."
)

limit_option: Option = click.option(
    "--limit", type=click.IntRange(0), help="Take only the first samples or rows."
)

filter_option: Option = click.option(
    "--filter",
    multiple=True,
    shell_complete=kinds(FILTERS),
    metavar="KIND,FIELD=VALUE",
    help=f"Leave out what does not pass: {', '.join(FILTERS)} or package.module:Class.",
)

raw_allow_option: Option = click.option(
    "--allow",
    multiple=True,
    metavar="DIR|URL",
    help="Also read what lies here, if rows or links lead to it: a folder, a store, a web server.",
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
        metavar="WHERE",
        help="Where to work: local, CLUSTER.toml, ray or ray://HOST:PORT.",
    ),
    click.option(
        "--workers",
        type=click.IntRange(0),
        help="Worker processes; 0 works inside this one.  [default: the CPUs it may use]",
    ),
    click.option(
        "--retries",
        type=click.IntRange(0),
        help="How often a failed unit is tried again.",
    ),
    click.option(
        "--max-skip-rate",
        type=click.FloatRange(0, 1),
        help="Share of samples that may be broken, in a unit and in all; 0 allows none.",
    ),
    click.option(
        "--part",
        metavar="I/N",
        help="Do only the Ith of N parts: for machines without a scheduler.",
    ),
    click.option(
        "--wait/--no-wait",
        help="Watch the tasks that --on submitted until all is done.",
    ),
    click.option("--allow-empty", is_flag=True, help="Nothing kept is success, not exit code 3."),
    click.option("--dry-run", is_flag=True, help="Print what --on would submit, and stop."),
    json_option,
)
