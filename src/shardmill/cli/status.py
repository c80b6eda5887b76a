"""`shardmill status PLACE`: what is done, what failed, what was skipped and why.

Of a folder that holds several, a line each; of a plan or a table, what it says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

import shardmill as sm
from shardmill import humanize
from shardmill.api.data import Data, Project
from shardmill.api.values import to_engine
from shardmill.cli import output
from shardmill.cli.options import json_option, place_argument
from shardmill.cli.output import print_statistics
from shardmill.running.engine import Engine, QueueState, find_queue
from shardmill.running.status import Status, UnitTime, read_status
from shardmill.shards.places import is_stage
from shardmill.stages.ingest import taken_as

MAX_FAILURES = 3
MAX_PROCESSES = 4
MAX_UNITS = 12


@click.command()
@place_argument("folder")
@click.option(
    "--on",
    metavar="ENGINE",
    callback=lambda _ctx, _param, text: to_engine(text) if text else None,
    help="Ask this engine what is queued.  [default: those that shardmill knows]",
)
@json_option
def status(folder: Path, on: Engine | None, as_json: bool) -> None:
    """Tell what is done, failed, skipped and why.

    PLACE is a folder of ours, one that holds several, a plan, an export, or tokens of another
    program.
    """
    if not is_stage(folder):
        opened = sm.open(folder)
        if isinstance(opened, Project):
            _print_project(opened, as_json)
        elif as_json:
            output.print_json(_data_to_plain(opened))
        else:
            _print_data(opened)
        return
    found = read_status(folder)
    queue = None if found.complete else find_queue(folder, on)
    if as_json:
        waiting = None
        if queue is not None and queue.answers:
            waiting = {"num_tasks": queue.num_waiting, "why": queue.why}
        output.print_json({**output.to_plain(found), "queued": waiting})
        return
    _print_summary(folder, found)
    if queue is not None:
        _print_queue(queue)
    _print_activity(found)
    _print_skipped(found)
    print_statistics(found.stats, found.num_kept)
    _print_failures(found)


def _print_project(project: Project, as_json: bool) -> None:
    """Print a line for each stage, plan and table."""
    found = {
        name: read_status(path) if is_stage(path) else sm.open(path)
        for name, path in project.places.items()
    }
    if as_json:
        stages = [
            {"name": name, **(output.to_plain(s) if isinstance(s, Status) else _data_to_plain(s))}
            for name, s in found.items()
        ]
        output.print_json(
            {"path": str(project.path), "complete": project.complete, "stages": stages}
        )
        return
    for name, one in found.items():
        if isinstance(one, Status):
            _print_stage(name, one)
        else:
            output.say("✓", repr(one))


def _print_stage(name: str, found: Status) -> None:
    samples = f"{humanize.count(found.num_kept)} of {humanize.plural(found.num_in, 'sample')}"
    kept = f"{_kind(found)}, {samples}"
    if found.complete:
        output.say("✓", f"{name}: {kept}, {humanize.size(found.num_bytes)}")
        return
    units = f"{found.num_done:,} of {found.num_units:,} units done"
    failed = f", {found.num_failed:,} failed" if found.failures else ""
    mark, colour = ("✗", output.BAD) if found.failures else ("…", output.HINT)
    output.say(mark, f"{name}: {kept}, {units}{failed}", colour=colour)


def _print_data(opened: Data[Any]) -> None:
    output.say("✓", repr(opened))
    output.facts([("skipped", f"{n:,} x {reason}") for reason, n in opened.skipped.items()])


def _data_to_plain(opened: Data[Any]) -> dict[str, Any]:
    counts = opened.counts
    return {
        "path": str(opened.path),
        "complete": opened.complete,
        "num_in": counts.num_in,
        "num_kept": counts.num_kept,
        "skipped": opened.skipped,
        "what": type(opened).__name__.lower(),
    }


def _kind(found: Status) -> str:
    return found.stage_kind.removeprefix("stage/").rpartition(":")[2]


def _print_summary(folder: Path, found: Status) -> None:
    kind = _kind(found)
    if found.complete:
        output.say("✓", f"{folder} is complete, made by {kind}")
    elif found.failures:
        output.say("✗", f"{folder} has failed units, made by {kind}", colour=output.BAD)
    else:
        output.say("…", f"{folder} is not complete yet, made by {kind}", colour=output.HINT)
    taken = taken_as(found.stage, found.stats)
    share = found.num_done / found.num_units if found.num_units else 1.0
    units = f"{found.num_done:,} of {found.num_units:,} done"
    output.facts(
        [
            ("units", f"{units}, {found.num_failed:,} failed" if found.failures else units),
            ("", output.bar(share, 40))
            if not found.complete
            else ("shards", f"{found.num_shards:,}"),
            ("samples", f"{found.num_in:,} in, {found.num_kept:,} kept"),
            ("size", humanize.size(found.num_bytes)),
            *(() if taken is None else [("shape", f"{taken.shape}: {taken.why}")]),
        ]
    )


def _print_queue(queue: QueueState) -> None:
    if not queue.answers:
        output.echo(f"  {queue.scheduler} does not answer: whether tasks are queued is not known")
    elif queue.num_waiting:
        why = f": {queue.why}" if queue.why else ""
        tasks = humanize.plural(queue.num_waiting, "task")
        output.echo(f"  {tasks} queued in {queue.scheduler}{why}")


def _print_activity(found: Status) -> None:
    _print_processes(found)
    if found.samples_per_s is not None:
        left = "?" if found.seconds_left is None else humanize.duration(found.seconds_left)
        output.echo(f"  {humanize.count(found.samples_per_s)} samples/s, {left} left")
    _print_times("at work, the longest first", found.running)
    if not found.complete:
        _print_times("slow units", found.slow_units)


def _print_processes(found: Status) -> None:
    if len(found.locks) <= MAX_PROCESSES:
        for lock in found.locks:
            where = f"process {lock.owner.pid} on {lock.owner.host}"
            output.echo(f"  {where} {'is at work' if lock.alive else 'gives no sign of life'}")
        return
    alive = Counter(lock.owner.host for lock in found.locks if lock.alive)
    machines = humanize.plural(len(alive), "machine")
    output.echo(f"  {alive.total()} processes on {machines} are at work")
    num_silent = len(found.locks) - alive.total()
    if num_silent:
        output.echo(f"  {num_silent} give no sign of life: killed, or their machines are gone")


def _print_times(title: str, units: Sequence[UnitTime]) -> None:
    if not units:
        return
    output.heading(title)
    longest = sorted(units, key=lambda unit: -unit.seconds)
    rows = [
        (u.unit, humanize.duration(u.seconds), f"{u.num_in:,}", f"{u.host} ({u.pid})")
        for u in longest
    ]
    output.table(("unit", "for", "samples", "on"), rows[:MAX_UNITS])
    if len(rows) > MAX_UNITS:
        output.echo(f"  and {len(rows) - MAX_UNITS:,} more")


def _print_skipped(found: Status) -> None:
    if not found.skipped:
        return
    output.heading("skipped")
    for reason, number in sorted(found.skipped.items(), key=lambda item: -item[1]):
        share = humanize.percent(number / max(found.num_in, 1))
        output.echo(f"  {humanize.count(number)} x {reason}, {share}")
        for reject in found.examples.get(reason, ()):
            output.echo(click.style(f"      {reject.key}: {reject.detail}", dim=True))


def _print_failures(found: Status) -> None:
    if not found.failures:
        return
    output.heading("failed units")
    for failure in found.failures[:MAX_FAILURES]:
        output.echo(click.style(f"  {failure.unit}: {failure.message}", fg=output.BAD))
        output.echo(
            click.style("\n".join(f"    {line}" for line in failure.tail.splitlines()), dim=True)
        )
    if len(found.failures) > MAX_FAILURES:
        output.echo(f"  and {len(found.failures) - MAX_FAILURES:,} more, in failures/")
    output.hint("run the command that makes this folder again: it tries only these units")
