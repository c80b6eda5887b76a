"""A recipe: the commands of a pipeline in one TOML file, in order.

    [run]                          flags for every step whose verb knows them
    workers = 8

    [[step]]
    verb = "tokenize"
    in = "shards"                  an input or a list of them, in the order of the command line
    out = "tokens"
    template = {kind = "chat"}     every other name is a flag of the verb

A step is the command that one would type: a recipe has no setting that the command line lacks, and
the verb itself reads and checks it.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import click
import orjson

from shardmill.errors import ConfigError
from shardmill.io.tomltext import read_toml

Find = Callable[[str], click.Command | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One command: a verb, its paths, its flags."""

    verb: str
    inputs: tuple[str, ...]
    out: str | None
    flags: Mapping[str, Any]

    @property
    def title(self) -> str:
        """What a heading says of the step."""
        arrow = f" → {self.out}" if self.out else ""
        return f"{self.verb} {' '.join(self.inputs)}{arrow}"

    def words(self) -> list[str]:
        """Return the words after the verb."""
        flags = chain.from_iterable(_flag_words(name, value) for name, value in self.flags.items())
        return [*flags, "--", *self.inputs, *([self.out] if self.out else [])]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The steps in order, and what is paid for an hour of a processor or a month of storage."""

    steps: tuple[Step, ...]
    prices: Mapping[str, float]


def read_recipe(path: Path, find: Find) -> Recipe:
    """Return a recipe whose verbs and flags all exist; `find` gives the command of a verb."""
    values = read_toml(path)
    _check_names(values, ("run", "step", "prices"), where=str(path))
    tables = values.get("step")
    if not isinstance(tables, list) or not tables:
        raise ConfigError(f"{path} has no steps: write one [[step]] a command")
    shared = _dashed(values.get("run", {}))
    steps = [_step(table, shared, find, f"{path}, step {n}") for n, table in enumerate(tables, 1)]
    _check_shared(shared, [find(step.verb) for step in steps], where=f"{path}, [run]")
    return Recipe(steps=tuple(steps), prices=_prices(values.get("prices", {}), where=str(path)))


def _step(table: Any, shared: Mapping[str, Any], find: Find, where: str) -> Step:
    flags = _dashed(table)
    verb, out = flags.pop("verb", None), flags.pop("out", None)
    command = find(verb) if isinstance(verb, str) else None
    if command is None:
        raise ConfigError(f"{where}: there is no verb {verb!r}; see shardmill --help")
    inputs = flags.pop("in", None)
    inputs = [inputs] if isinstance(inputs, str) else inputs
    if not isinstance(inputs, list) or not all(isinstance(name, str) for name in inputs):
        raise ConfigError(f"{where}: `in` must be a path or a list of paths")
    known = flag_names(command)
    _check_names(flags, known, where=f"{where} ({verb})")
    flags = {name: value for name, value in shared.items() if name in known} | flags
    return Step(verb=str(verb), inputs=tuple(inputs), out=out, flags=flags)


def call(command: click.Command, words: Sequence[str], *, obj: object = None) -> int:
    """Run a command as if its words were typed, and return its exit code."""
    context = click.get_current_context()
    name = f"{context.find_root().info_name} {command.name}"
    try:
        with command.make_context(name, [*words], obj=obj, color=context.color) as inner:
            command.invoke(inner)
    except click.exceptions.Exit as end:
        return end.exit_code
    return 0


def flag_names(command: click.Command) -> set[str]:
    """Return the long names of a command's flags, without the dashes."""
    options = (param for param in command.params if isinstance(param, click.Option))
    names = chain.from_iterable((*option.opts, *option.secondary_opts) for option in options)
    return {name.removeprefix("--") for name in names if name.startswith("--")}


def _flag_words(name: str, value: Any) -> Iterable[str]:
    if isinstance(value, bool):
        return [f"--{name}"] if value else []
    values = value if isinstance(value, list) else [value]
    return chain.from_iterable((f"--{name}", _text(one)) for one in values)


def _text(value: Any) -> str:
    if not isinstance(value, dict):
        return str(value)
    if "kind" not in value:
        raise ConfigError(f"a table needs a kind, such as {{kind = 'chat'}}: {value}")
    fields = (f"{name}={orjson.dumps(one).decode()}" for name, one in value.items())
    return ",".join([value["kind"], *(f for f in fields if not f.startswith("kind="))])


def _dashed(table: Any) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise ConfigError(f"expected a table of flags, got {table!r}")
    return {name.replace("_", "-"): value for name, value in table.items()}


def _check_shared(shared: Mapping[str, Any], commands: Iterable[Any], *, where: str) -> None:
    known = set().union(*(flag_names(command) for command in commands))
    _check_names(shared, known, where=where)


def _check_names(names: Iterable[str], known: Iterable[str], *, where: str) -> None:
    known = sorted(known)
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            use = f"did you mean {close[0]!r}?" if close else f"use {', '.join(known)}"
            raise ConfigError(f"{where}: unknown name {name!r}; {use}")


def _prices(table: Any, *, where: str) -> dict[str, float]:
    _check_names(table, ("cpu_hour", "gpu_hour", "gb_month"), where=f"{where}, [prices]")
    return {name: float(value) for name, value in table.items()}
