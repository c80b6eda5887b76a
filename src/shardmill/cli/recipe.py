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

Which values of a step name files and folders; the same word elsewhere in the step means nothing.

Places are `in` and `out`, the flags that take a path, and the fields `folder` and `samples` of a
plugin's table (`codes = {kind = "shards", folder = "codes"}`).
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import click
import orjson

from shardmill.errors import ConfigError
from shardmill.storage.text import read_toml
from shardmill.storage.url import is_remote

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


PLACE_FIELDS = ("folder", "samples")
PATTERN_MARKS = "*?[{"
MAX_NEIGHBOURS = 10_000


def moved(step: Step, places: Mapping[str, str], command: click.Command) -> Step:
    """Return the step with each place that has another in `places` replaced by it."""

    def move(name: str) -> str:
        return places.get(os.path.normpath(name), name)

    return replace(
        step,
        inputs=tuple(map(move, step.inputs)),
        out=None if step.out is None else move(step.out),
        flags={name: _moved_flag(name, step.flags[name], move, command) for name in step.flags},
    )


def check_inputs(steps: Sequence[Step], find: Find) -> None:
    """Refuse a step that reads what neither exists nor is the output of a step before it."""
    outputs: list[str] = []
    for number, step in enumerate(steps, 1):
        command = find(step.verb)
        assert command is not None
        for name in _read_by(step, command):
            if not _will_be_there(name, outputs):
                raise ConfigError(f"step {number} ({step.title}): {_absence(name, outputs)}")
        if step.out is not None:
            outputs.append(os.path.normpath(step.out))


def _moved_flag(flag: str, value: Any, move: Callable[[str], str], command: click.Command) -> Any:
    if isinstance(value, list):
        return [_moved_flag(flag, one, move, command) for one in value]
    if isinstance(value, dict):
        fields = {name: value[name] for name in PLACE_FIELDS if isinstance(value.get(name), str)}
        return {**value, **{name: move(place) for name, place in fields.items()}}
    return move(value) if isinstance(value, str) and _path_type(flag, command) else value


def _read_by(step: Step, command: click.Command) -> Iterator[str]:
    arguments = [param for param in command.params if isinstance(param, click.Argument)]
    if arguments and arguments[0].nargs == -1:
        yield from step.inputs
    else:
        yield from (name for name, one in zip(step.inputs, arguments) if _must_exist(one.type))
    for flag, value in step.flags.items():
        if isinstance(value, str) and _must_exist(_path_type(flag, command)):
            yield value
        elif isinstance(value, dict):
            yield from (str(value[name]) for name in PLACE_FIELDS if name in value)


def _path_type(flag: str, command: click.Command) -> click.Path | None:
    """Return what a flag takes, if that is a path."""
    types = (param.type for param in command.params if f"--{flag}" in param.opts)
    return next((one for one in types if isinstance(one, click.Path)), None)


def _must_exist(kind: object) -> bool:
    return isinstance(kind, click.Path) and kind.exists


def _will_be_there(name: str, outputs: Sequence[str]) -> bool:
    if is_remote(name) or any(mark in name for mark in PATTERN_MARKS):
        return True
    name = os.path.normpath(name.removeprefix("file://"))
    inside = any(name == out or name.startswith(f"{out}/") for out in outputs)
    # Megatron's data is named without the endings of its two files.
    return inside or Path(name).exists() or Path(f"{name}.idx").exists()


def _absence(name: str, outputs: Sequence[str]) -> str:
    folder = Path(name).parent
    neighbours = islice(folder.iterdir(), MAX_NEIGHBOURS) if folder.is_dir() else ()
    known = [*outputs, *map(str, neighbours)]
    close = difflib.get_close_matches(os.path.normpath(name), known, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"{name!r} does not exist, and no step before writes it{hint}"
