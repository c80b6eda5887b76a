"""Which values of a step name files and folders; the same word elsewhere in the step means nothing.

Places are `in` and `out`, the flags that take a path, and the fields `folder` and `samples` of a
plugin's table (`codes = {kind = "shards", folder = "codes"}`).
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import click

from shardmill.cli.recipe import Find, Step
from shardmill.errors import ConfigError
from shardmill.io.urls import is_remote

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
