"""One call of the front door by a command, and the one report that it prints.

Every verb prints its report through a function `(result, as_json) -> None`; those that run a stage
begin with `print_run`. A recipe prints the same reports, one after the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from shardmill import humanize
from shardmill.api.data import Data
from shardmill.api.running import RunFailed, RunOptions, run_settings
from shardmill.api.values import to_engine
from shardmill.cli import output
from shardmill.model.manifest import Manifest
from shardmill.model.stage import Stage, listed
from shardmill.running.engine import Engine
from shardmill.running.progress import RunReport
from shardmill.running.runner import preview_stage

MAX_LISTED = 5
Print = Callable[[Any, bool], None]


@dataclass(frozen=True, slots=True)
class DryRun:
    """A runner that prints what an engine would submit, and ends the command."""

    engine: Engine

    @property
    def is_local(self) -> bool:
        """Whether the engine works on this machine."""
        return self.engine.is_local

    def run(self, stage: Stage, out: Path, options: RunOptions) -> RunReport:
        """Print the preview, and exit."""
        settings = run_settings(options)
        del settings["part"]  # tasks share the units, whichever part a user would do
        click.echo(preview_stage(stage, out, on=self.engine, **settings), nl=False)
        raise click.exceptions.Exit(0)


def call(
    verb: Callable[..., Any],
    *places: Any,
    as_json: bool,
    next_step: str = "",
    report: Print | None = None,
    dry_run: bool = False,
    **options: Any,
) -> Any:
    """Call a verb that runs a stage, print its report, and return what it made.

    Exits with 1 if units failed. `next_step` is the hint that follows when the folder is complete.
    """
    if dry_run:
        options["on"] = DryRun(to_engine(options["on"]))
    try:
        made = verb(*places, progress=True, **options)
    except RunFailed as error:
        print_run(error.report, as_json)
        raise click.exceptions.Exit(1) from error
    (report or print_data)(made, as_json)
    if next_step and made.complete and not as_json:
        output.hint(next_step)
    return made


def print_data(made: Data[Any], as_json: bool) -> None:
    """Print the run that made a folder."""
    assert made.report is not None
    print_run(made.report, as_json)


def print_run(report: RunReport, as_json: bool) -> None:
    """Print how a run ended: complete, in part, or failed, and the counts."""
    if as_json:
        output.print_json(run_to_plain(report))
    else:
        _print_end(report)
    manifest = report.manifest
    if manifest is not None and manifest.num_in and not manifest.num_kept:
        mark = click.style("warning:", fg=output.BAD, bold=True)
        samples = humanize.plural(manifest.num_in, "sample")
        reasons = listed(Counter(manifest.skipped))
        # On the stream of errors, which leaves --json alone.
        click.echo(f"{mark} nothing was kept of {samples}: {reasons}", err=True)


def run_to_plain(report: RunReport) -> dict[str, Any]:
    """Return what `--json` prints of a run."""
    manifest = report.manifest
    plain: dict[str, Any] = {
        "out": str(report.out_dir),
        "complete": report.complete,
        "units": report.num_units,
        "done_before": report.num_done_before,
        "done_now": report.num_done,
        "failures": dict(report.failures),
        "samples_in": report.num_in,
        "samples_kept": report.num_kept,
        "bytes": report.num_bytes,
        "seconds": round(report.seconds, 3),
    }
    if manifest is not None:
        plain["total"] = {
            "shards": len(manifest.shards),
            "samples_in": manifest.num_in,
            "samples_kept": manifest.num_kept,
            "skipped": dict(manifest.skipped),
        }
    return plain


def print_failures(report: RunReport) -> None:
    """Print which units failed and why."""
    count = humanize.plural(len(report.failures), "unit")
    output.say("✗", f"{count} failed, {report.num_done} done now", colour=output.BAD)
    output.listed((f"{unit}: {message}" for unit, message in report.failures), MAX_LISTED)
    output.hint("the tracebacks are in failures/; run the same command again to try those units")


def _print_end(report: RunReport) -> None:
    out = humanize.place(report.out_dir)
    if report.failures:
        print_failures(report)
    elif report.manifest is None:
        done = humanize.plural(report.num_done, "unit")
        text = f"this part is done: {done}; others are not yet"
        others = f"{out} is not complete yet; others work on it"
        output.say("…", text if report.num_done else others, colour=output.HINT)
        output.hint(f"shardmill status {out}")
    elif report.num_done == 0:
        output.say("✓", f"nothing to do: {out} is complete")
        _print_counts(report.manifest)
    else:
        rate = report.num_in / max(report.seconds, 1e-9)
        took = humanize.duration(report.seconds)
        output.say("✓", f"{out} is complete: {took}, {humanize.count(rate)} samples/s")
        _print_counts(report.manifest)


def _print_counts(manifest: Manifest) -> None:
    shards = humanize.plural(len(manifest.shards), "shard")
    size = humanize.size(manifest.num_bytes)
    output.facts(
        [
            ("in", humanize.plural(manifest.num_in, "sample")),
            ("kept", f"{humanize.count(manifest.num_kept)} in {shards}, {size}"),
            *(
                ("skipped", f"{humanize.count(n)} x {reason}")
                for reason, n in sorted(manifest.skipped.items(), key=lambda item: -item[1])
            ),
        ]
    )
