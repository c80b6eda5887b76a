"""A recipe: the steps of a pipeline in one TOML file, in order, to be run or quoted.

    [run]                          options for every step whose verb knows them
    workers = 8

    [prices]                       what an hour or a month costs, for quotes
    cpu_hour = 0.04

    [mix]                          what a loader mixes of all that: see `train.mix`

    [[step]]
    verb = "tokenize"
    in = "shards"                  an input or a list of them, in the order of the command line
    out = "tokens"
    template = {kind = "chat"}     every other name is an option of the verb

A step is a call of the front door's function: a recipe has no setting that the function lacks, and
the function itself reads and checks it. Which values name places is in its signature, and in the
fields of the plugins that it takes.

A quote says what a recipe will take, from a few units of each step worked for real. A step runs on
what the step before it made of a few units, in a folder that is removed afterwards. What it took is
scaled by how much more there is: more units of this step, and more of everything before it.
"""

from __future__ import annotations

import keyword
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

from shardmill.api import check, verbs
from shardmill.api.running import RunOptions, is_simple, options_of, run_settings
from shardmill.api.values import WRITTEN, Place, to_path
from shardmill.errors import ConfigError, ShardmillError, near
from shardmill.machine import count_cpus
from shardmill.model.codec import PlaceName, field_types, from_plain, load_class, parse_plugin
from shardmill.model.stage import Stage
from shardmill.plugins import resolve
from shardmill.running.progress import RunReport
from shardmill.running.runner import Tried, try_units
from shardmill.storage.path import is_remote, near_path
from shardmill.storage.text import read_toml
from shardmill.train.mix import parse_mix

VERBS: Mapping[str, Callable[..., Any]] = {
    verb.__name__: verb
    for verb in (
        verbs.ingest,
        verbs.index,
        verbs.filter,
        verbs.frames,
        verbs.codes,
        verbs.tokenize,
        verbs.measure,
        verbs.plan,
        verbs.pack,
        verbs.export,
        verbs.remove,
        check.check,
        check.diff,
    )
}
# Units that a quote tries of each step: enough for a mean, few enough to wait for.
NUM_UNITS = 4
CROWD = 1.5  # processes that want a processor, for each there is
BUSY = 0.7  # share of the time in which a process computes, above which processors bind
# A trial runs here and at once, whatever the recipe says of clusters and parts.
HERE_ONLY = ("on", "part", "wait")
PRICES = ("cpu_hour", "gpu_hour", "gb_month")
PATTERN_MARKS = "*?[{"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One call: a verb, its places and its options, by the names of the function's parameters."""

    verb: str
    inputs: tuple[str, ...]
    out: str | None
    options: Mapping[str, Any]

    @property
    def title(self) -> str:
        """What a heading says of the step."""
        arrow = f" → {self.out}" if self.out else ""
        return f"{self.verb} {' '.join(self.inputs)}{arrow}"

    def call(self, **more: Any) -> Any:
        """Call the verb, with more options where it knows them, and return what it made."""
        *inputs, last = _place_names(self.verb)
        if last != "out":
            inputs.append(last)
        # Three tables of ingest are one argument, tokens and plan of pack are two.
        given: Any = [[*self.inputs]] if len(inputs) == 1 < len(self.inputs) else self.inputs
        places = [*given, *([self.out] if self.out is not None else [])]
        known = options_of(VERBS[self.verb])
        more = {name: value for name, value in more.items() if name in known}
        try:
            return VERBS[self.verb](*places, **{**self.options, **more})
        except ShardmillError as error:
            error.add_note(f"in the step {self.title}")
            raise

    def moved(self, places: Mapping[str, str]) -> Step:
        """Return the step with each place that has another in `places` replaced by it."""

        def move(name: str) -> str:
            return places.get(os.path.normpath(name), name)

        return replace(
            self,
            inputs=tuple(map(move, self.inputs)),
            out=None if self.out is None else move(self.out),
            options={n: _change_places(self.verb, n, v, move) for n, v in self.options.items()},
        )

    def reads(self) -> list[str]:
        """Return the places that must be there before the step starts."""
        found = list(self.inputs)

        def note(name: str) -> str:
            found.append(name)
            return name

        for name, value in self.options.items():
            if WRITTEN not in get_args(options_of(VERBS[self.verb])[name]):
                _change_places(self.verb, name, value, note)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The steps in order, and what is paid for an hour of a processor or a month of storage."""

    path: Path
    steps: tuple[Step, ...]
    prices: Mapping[str, float]


def run(recipe: Place, *, progress: bool = False) -> list[Any]:
    """Run all steps of a recipe, and return what each of them made.

    Places are relative to the recipe's folder. Each step goes on where it stopped, so that running
    a recipe again does only what is left.
    """
    with opened_recipe(recipe) as found:
        return [step.call(progress=progress) for step in found.steps]


@contextmanager
def opened_recipe(recipe: Place) -> Iterator[Recipe]:
    """Yield a recipe whose names and places are checked, inside of its folder."""
    found = read_recipe(to_path(recipe))
    with chdir(found.path.parent):
        check_places(found.steps)
        yield found


def read_recipe(path: Path) -> Recipe:
    """Return a recipe whose verbs, options and simple values can be."""
    values = read_toml(path)
    _check_names(values, ("run", "step", "prices", "mix"), where=str(path))
    if "mix" in values:
        parse_mix(values["mix"], path)
    tables = values.get("step")
    if not isinstance(tables, list) or not tables:
        raise ConfigError(f"{path} has no steps: write one [[step]] a command")
    shared = _named(values.get("run", {}), where=f"{path}, [run]")
    steps = [_step(table, shared, f"{path}, step {n}") for n, table in enumerate(tables, 1)]
    known = set().union(*(options_of(VERBS[step.verb]) for step in steps))
    _check_names(shared, known, where=f"{path}, [run]")
    prices = _named(values.get("prices", {}), where=f"{path}, [prices]")
    _check_names(prices, PRICES, where=f"{path}, [prices]")
    costs = {name: float(value) for name, value in prices.items()}
    return Recipe(path=path, steps=tuple(steps), prices=costs)


def check_places(steps: Sequence[Step]) -> None:
    """Refuse a step that reads what neither exists nor is made before it, or writes what is."""
    outputs: list[str] = []
    for number, step in enumerate(steps, 1):
        for name in step.reads():
            if not _will_be_there(name, outputs):
                raise ConfigError(f"step {number} ({step.title}): {_absence(name, outputs)}")
        if step.out is not None:
            out = os.path.normpath(step.out)
            if out in outputs:
                raise ConfigError(f"step {number} ({step.title}): a step before it writes {out!r}")
            outputs.append(out)


def _step(table: Any, shared: Mapping[str, Any], where: str) -> Step:
    given = _named(table, where=where)
    verb, out, inputs = given.pop("verb", None), given.pop("out", None), given.pop("in_", None)
    if verb not in VERBS:
        raise ConfigError(f"{where}: there is no verb {verb!r}: use {', '.join(VERBS)}")
    where = f"{where} ({verb})"
    inputs = [inputs] if isinstance(inputs, str) else inputs
    if not isinstance(inputs, list) or not all(isinstance(name, str) for name in inputs):
        raise ConfigError(f"{where}: `in` must be a path or a list of paths")
    known = options_of(VERBS[verb])
    _check_names(given, known, where=where)
    options = {name: value for name, value in shared.items() if name in known} | given
    for name, value in options.items():
        # Plugins are left to the verb: to check one is to import it, with all that it needs.
        if is_simple(known[name]):
            from_plain(value, known[name], where=f"{where}: {_dashed(name)}")
    has_out = "out" in _place_names(verb)
    if has_out != isinstance(out, str):
        raise ConfigError(f"{where}: {'give' if has_out else 'it takes no'} `out`")
    return Step(verb=verb, inputs=tuple(inputs), out=out, options=options)


def _named(table: Any, *, where: str) -> dict[str, Any]:
    """Return a table by the names of parameters: `per-shard` is per_shard, `from` is from_."""
    if not isinstance(table, dict):
        raise ConfigError(f"{where}: expected a table of options, got {table!r}")
    names = {name: name.replace("-", "_") for name in table}
    return {n + "_" if keyword.iskeyword(n) else n: table[name] for name, n in names.items()}


def _dashed(name: str) -> str:
    return name.rstrip("_").replace("_", "-")


@cache
def _place_names(verb: str) -> list[str]:
    """Return the names of a verb's positional arguments: its inputs, and `out` if it has one."""
    parameters = signature(VERBS[verb]).parameters.values()
    return [p.name for p in parameters if p.kind is Parameter.POSITIONAL_OR_KEYWORD]


def _change_places(verb: str, name: str, value: Any, change: Callable[[str], str]) -> Any:
    """Return the value of an option with each place in it changed."""
    hint = options_of(VERBS[verb])[name]
    table = next((one for one in get_args(hint)[1:] if isinstance(one, Mapping)), None)
    kinds = get_args(hint)[0] if get_origin(hint) is Annotated else hint

    def changed(one: Any) -> Any:
        if isinstance(one, str) and table is not None:
            kind = one.partition(",")[0]
            is_plugin = kind in table or ":" in kind
            if os.PathLike[str] in get_args(kinds) and not is_plugin:
                return change(one)
            one = parse_plugin(one) if is_plugin and "," in one else one
        if isinstance(one, Mapping) and table is not None:
            types = field_types(load_class(resolve(table, str(one.get("kind")), _dashed(name))))
            return {n: change(v) if _is_path(types.get(n), v) else v for n, v in one.items()}
        is_place = table is None and os.PathLike[str] in get_args(kinds)
        return change(one) if is_place and isinstance(one, str) else one

    return [changed(one) for one in value] if isinstance(value, list) else changed(value)


def _is_path(hint: Any, value: Any) -> bool:
    is_place = hint is Path or hint == PlaceName or {Path, PlaceName} & {*get_args(hint)}
    return isinstance(value, str) and bool(is_place)


def _check_names(names: Iterable[str], known: Iterable[str], *, where: str) -> None:
    listed = sorted(map(_dashed, known))
    for name in map(_dashed, names):
        if name not in listed:
            use = near(name, listed) or f"; use {', '.join(listed)}"
            raise ConfigError(f"{where}: unknown name {name!r}{use}")


def _will_be_there(name: str, outputs: Sequence[str]) -> bool:
    if is_remote(name) or any(mark in name for mark in PATTERN_MARKS):
        return True
    name = os.path.normpath(name.removeprefix("file://"))
    inside = any(name == out or name.startswith(f"{out}/") for out in outputs)
    # Megatron's data is named without the endings of its two files.
    return inside or Path(name).exists() or Path(f"{name}.idx").exists()


def _absence(name: str, outputs: Sequence[str]) -> str:
    hint = near(os.path.normpath(name), outputs) or near_path(name)
    return f"{name!r} does not exist, and no step before writes it{hint}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What one step will take; the whole of its output is `scale` times what the trial made."""

    step: str
    scale: float
    num_tried: int
    num_units: int
    num_samples: int
    num_workers: int
    seconds: float
    num_bytes: int
    busy: float
    crowded: bool
    on_gpu: bool
    prices: Mapping[str, float]

    @property
    def rate(self) -> float:
        """Samples a second, of all workers."""
        return self.num_samples / max(self.seconds, 1e-9)

    @property
    def worker_hours(self) -> float:
        """Hours of a processor, or of a GPU, that are paid for."""
        return self.seconds * self.num_workers / 3600

    @property
    def cost(self) -> float:
        """The price of the work; what is stored costs by the month."""
        kind = "gpu_hour" if self.on_gpu else "cpu_hour"
        return self.worker_hours * self.prices.get(kind, 0.0)

    @property
    def bound(self) -> str | None:
        """What limits the step, None if it cannot be told."""
        if self.busy >= BUSY:
            return "processors"
        if self.crowded:  # others took the processors, so waiting for them tells nothing
            return None
        return "GPU" if self.on_gpu else "disk or network"


@dataclass(slots=True)
class Trial:
    """A runner that tries a few units where all would be run, and notes what they took."""

    num_units: int
    tried: list[Tried] = field(default_factory=list)
    is_local: bool = True

    def run(self, stage: Stage, out: Path, options: RunOptions) -> RunReport:
        """Try a few units, and return the report of a folder that holds no others."""
        settings = run_settings(options)
        found = try_units(
            stage,
            out,
            num_units=self.num_units,
            workers=settings["workers"],
            max_skip_rate=settings["max_skip_rate"],
        )
        self.tried.append(found)
        manifest = found.manifest
        return RunReport(
            out_dir=out,
            num_units=found.num_tried,
            num_done_before=0,
            num_done=found.num_tried,
            failures=(),
            num_in=manifest.num_in,
            num_kept=manifest.num_kept,
            num_bytes=manifest.num_bytes,
            seconds=found.seconds * found.num_tried,
            manifest=manifest,
        )


def quote(recipe: Place, *, units: int = NUM_UNITS) -> list[Estimate]:
    """Return what each step of a recipe that writes something will take, from a few units of it."""
    with opened_recipe(recipe) as found:
        return list(quote_steps(found, num_units=units))


def quote_steps(recipe: Recipe, *, num_units: int) -> Iterator[Estimate]:
    """Yield the estimates one by one, as they are made."""
    if all(step.out is None for step in recipe.steps):
        raise ConfigError("no step of the recipe writes anything: there is nothing to try")
    # Here and not in /tmp: the trial shall write to the disk that the run will write to.
    with tempfile.TemporaryDirectory(prefix=".quote-", dir=Path.cwd()) as folder:
        places: dict[str, str] = {}
        scales: dict[str, float] = {}
        for number, step in enumerate(recipe.steps):
            if step.out is None:
                continue
            place = f"{folder}/{number}-{Path(step.out).name}"
            places[os.path.normpath(step.out)] = place
            trial = Trial(num_units)
            took = _try(step, places, trial)
            before = [scales.get(os.path.normpath(name), 1.0) for name in step.inputs]
            estimate = _estimate(step, trial, max(before), took, Path(place), recipe.prices)
            scales[os.path.normpath(step.out)] = estimate.scale
            yield estimate


def _try(step: Step, places: Mapping[str, str], trial: Trial) -> float:
    """Call the step on the folders of the trial, and return the seconds that it took."""
    options = {name: value for name, value in step.options.items() if name not in HERE_ONLY}
    began = time.monotonic()
    try:
        replace(step, options=options).moved(places).call(on=trial)
    except ShardmillError as error:
        raise ConfigError(f"the trial of `{step.title}` failed: {error}") from error
    return time.monotonic() - began


def _estimate(
    step: Step,
    trial: Trial,
    scale: float,
    took: float,
    out: Path,
    prices: Mapping[str, float],
) -> Estimate:
    if not trial.tried:  # a plain function over a folder: one process, linear in its input
        return Estimate(
            step=step.title,
            scale=scale,
            num_tried=1,
            num_units=1,
            num_samples=0,
            num_workers=1,
            seconds=took * scale,
            num_bytes=round(out.stat().st_size * scale) if out.is_file() else 0,
            busy=1.0,
            crowded=False,
            on_gpu=False,
            prices=prices,
        )
    tried = trial.tried[-1]
    # A trial of 4 of 40 units (a share of 0.1), on what a step before made of half its input
    # (a scale of 2), stands for a twentieth of the work.
    whole = scale / max(tried.share, 1e-12)
    num_samples = tried.manifest.num_in * whole
    # A limit leaves out what comes after it, however many units there are.
    whole *= min(1.0, step.options.get("limit", num_samples) / max(num_samples, 1e-12))
    num_units = max(1, round(tried.num_tried * whole))
    workers = min(tried.num_workers, num_units)
    return Estimate(
        step=step.title,
        scale=whole,
        num_tried=tried.num_tried,
        num_units=num_units,
        num_samples=round(tried.manifest.num_in * whole),
        num_workers=workers,
        seconds=tried.seconds * num_units / workers,
        num_bytes=round(tried.manifest.num_bytes * whole),
        busy=tried.cpu_seconds / max(tried.seconds, 1e-9),
        crowded=os.getloadavg()[0] > CROWD * count_cpus(),
        on_gpu=step.verb == "codes" and _has_gpu(),
        prices=prices,
    )


def _has_gpu() -> bool:
    from shardmill.tokens.vq.encode import count_devices

    return count_devices() > 0
