"""How the verbs run a stage: the options that they share, and what becomes of a failure."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import cache, wraps
from inspect import Parameter, signature
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Any,
    Literal,
    Protocol,
    TypedDict,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    runtime_checkable,
)

import numpy as np

from shardmill import humanize
from shardmill.api.values import Place, to_engine, to_part, to_path
from shardmill.errors import ConfigError, ShardmillError, near
from shardmill.model.codec import from_plain
from shardmill.model.stage import Stage, TriedStage, listed
from shardmill.running.engine import Engine
from shardmill.running.progress import RunReport, show_progress
from shardmill.running.runner import run_stage
from shardmill.storage.path import is_remote

MAX_LISTED = 5


@runtime_checkable
class Runner(Protocol):
    """Runs stages in another way than an engine does: in a trial, or not at all."""

    @property
    def is_local(self) -> bool:
        """Whether it works on this machine."""

    def run(self, stage: Stage, out: Path, options: RunOptions) -> RunReport:
        """Return what was done in the folder `out`."""


class RunOptions(TypedDict, total=False):
    """How a stage is run; none of this changes what it writes.

    `on` is where: "local", "cluster.toml", "ray", "ray://host:port" or an engine. `workers` is the
    number of processes, by default the CPUs that this one may use; 0 works inside of this one.
    `retries` is how often a failed unit is tried again (1), `max_skip_rate` the share of samples
    that may be broken in a unit and in all (0.1; 0 allows none). `part` does only the Ith of N
    parts, "3/8"; `wait=False` returns when the tasks are submitted. `allow_empty` takes it as
    success that nothing was kept. `progress` shows the progress on stderr.
    """

    on: str | Engine | Runner
    workers: int | None
    retries: int
    max_skip_rate: float
    part: str | tuple[int, int]
    wait: bool
    allow_empty: bool
    progress: bool


# What is meant where an option is not given, here and on the command line.
RUN_DEFAULTS: RunOptions = {
    "on": "local",
    "workers": None,
    "retries": 1,
    "max_skip_rate": 0.1,
    "part": "1/1",
    "wait": True,
    "allow_empty": False,
}


Verb = TypeVar("Verb", bound=Callable[..., Any])


def checked(verb: Verb) -> Verb:
    """Return the verb with its options checked first, as those of a recipe and of a command are.

    An option that nobody knows would go down with those of the run, and a number that is written as
    text would raise where it is first compared.
    """

    @wraps(verb)
    def call(*places: Any, **options: Any) -> Any:
        known = options_of(verb)
        for name, value in options.items():
            if name not in known and name not in signature(verb).parameters:
                use = near(name, known) or f"; use {', '.join(known)}"
                raise ConfigError(f"{verb.__name__} has no option {name!r}{use}")
            if is_simple(known.get(name)):
                plain = value.item() if isinstance(value, np.generic) else value
                from_plain(plain, known[name], where=name)
        return verb(*places, **options)

    return cast(Verb, call)


@cache
def options_of(verb: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotation of each option of a verb, those of a run among them."""
    hints = get_type_hints(verb, include_extras=True)
    parameters = signature(verb).parameters.values()
    known = {p.name: hints[p.name] for p in parameters if p.kind is Parameter.KEYWORD_ONLY}
    if any(p.kind is Parameter.VAR_KEYWORD for p in parameters):
        known |= get_type_hints(RunOptions)
    return known


def is_simple(hint: Any) -> bool:
    """Say whether an option takes only numbers, texts and the like, which can be checked early."""
    if get_origin(hint) in (Union, UnionType):
        return all(map(is_simple, get_args(hint)))
    return hint in (int, float, bool, str, NoneType) or get_origin(hint) is Literal


class RunFailed(ShardmillError):
    """Some units failed; the others are done. `report` names each of them and why."""

    exit_code = 1

    def __init__(self, report: RunReport) -> None:
        self.report = report
        causes = report.causes()
        lines = [f"\n  {cause.describe(report.out_dir)}" for cause in causes[:MAX_LISTED]]
        more = len(causes) - len(lines)
        super().__init__(
            f"{humanize.plural(len(report.failures), 'unit')} of {humanize.place(report.out_dir)} "
            f"failed, {report.num_done} done now:"
            + "".join(lines)
            + (f"\n  and {more:,} more causes" if more else "")
            + "\nRun it again to try those units"
        )


def run_report(stage: Stage, out: Place, options: RunOptions) -> RunReport:
    """Run a stage into a folder, and return what was done.

    Raises `RunFailed` if a unit failed, and whatever `run_stage` raises.
    """
    check_before(stage, to_path(out), options)
    where = options.get("on", "local")
    if isinstance(where, Runner):
        report = where.run(stage, to_path(out), options)
    else:
        engine = to_engine(where)
        # Silent by default: a function that is called in a notebook or a test prints nothing.
        shown = show_progress(sys.stderr) if options.get("progress") else nullcontext()
        with shown as on_event:
            report = run_stage(
                stage,
                to_path(out),
                on=engine if options.get("wait", True) else engine.without_waiting(),
                on_event=on_event,
                **run_settings(options),
            )
    if report.failures:
        raise RunFailed(report)
    return report


def check_before(stage: Stage, out: Path, options: RunOptions) -> None:
    """Raise `ConfigError` for what is known to be wrong before anything is written."""
    refuse_inside(out, (place for places in stage.reads().values() for place in places))
    may_lose_all = options.get("max_skip_rate", 0) >= 1 or options.get("allow_empty", False)
    # What was begun has worked for some units already.
    if isinstance(stage, TriedStage) and not may_lose_all and not (out / "stage.json").exists():
        tally = stage.try_first()
        if tally.num_in and not tally.num_kept and len(tally.rejects) == tally.broken.total():
            first = tally.rejects[0]
            places = ", ".join(next(iter(stage.reads().values())))
            raise ConfigError(
                f"none of the first {tally.num_in} samples of {places} can be used: "
                f"{listed(tally.broken)}; the first is {first.key}: {first.detail}. Nothing was "
                "written. If later ones are better, say --max-skip-rate 1"
            )


def refuse_inside(out: Path, places: Iterable[str]) -> None:
    """Refuse to write into a folder that is read: its shards would be input of the next run."""
    if is_remote(str(out)):
        return
    for place in places:
        if not is_remote(place) and Path(place).is_dir():
            read, written = Path(place).resolve(), out.resolve()
            if read in written.parents:
                where = humanize.place(Path(place))
                raise ConfigError(
                    f"{out} lies inside of the input {where}: name a folder beside it"
                )


def is_local(options: RunOptions) -> bool:
    """Say whether a run works on this machine, so that its GPUs are those that count."""
    where = options.get("on", "local")
    return where.is_local if isinstance(where, Runner) else to_engine(where).is_local


def run_settings(options: RunOptions) -> dict[str, Any]:
    """Return the options that do not say where, each with its default."""
    given: RunOptions = {**RUN_DEFAULTS, **options}
    return {
        "workers": given["workers"],
        "retries": given["retries"],
        "max_skip_rate": given["max_skip_rate"],
        "allow_empty": given["allow_empty"],
        "part": to_part(given["part"]),
    }
