"""Runs a stage for a verb: progress while it works, the books at the end, an exit code.

What stands in for the runner while a recipe is quoted; a verb finds it in its context.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from shardmill import humanize as wording
from shardmill.cli import output as console
from shardmill.cli.options import RunOptions
from shardmill.model.manifest import Manifest
from shardmill.model.stage import Stage, listed
from shardmill.run.progress import RunReport, show_progress
from shardmill.run.runner import Tried, preview_stage, run_stage, try_units


@dataclass(slots=True)
class Trial:
    """Tries a few units where all would be run, and notes what they took."""

    num_units: int
    tried: list[Tried] = field(default_factory=list)

    def run(self, stage: Stage, out: Path, options: RunOptions) -> Manifest:
        """Try a few units, and return the manifest of what they made."""
        found = try_units(
            stage,
            out,
            num_units=self.num_units,
            workers=options.workers,
            max_skip_rate=options.max_skip_rate,
        )
        self.tried.append(found)
        return found.manifest


MAX_LISTED = 5


def run_and_report(stage: Stage, out: Path, options: RunOptions, *, next_step: str) -> Manifest:
    """Run a stage into `out` and print its report; exit with 1 if it is not complete.

    `next_step` is the hint that is printed when all is done; returns the manifest.
    """
    trial = click.get_current_context().find_object(Trial)
    if trial is not None:
        return trial.run(stage, out, options)
    if options.dry_run:
        text = preview_stage(
            stage,
            out,
            on=options.on,
            workers=options.workers,
            retries=options.retries,
            max_skip_rate=options.max_skip_rate,
        )
        click.echo(text, nl=False)
        click.get_current_context().exit(0)
    with show_progress(sys.stderr) as on_event:
        report = run_stage(
            stage,
            out,
            on=options.on if options.wait else options.on.without_waiting(),
            workers=options.workers,
            retries=options.retries,
            max_skip_rate=options.max_skip_rate,
            part=options.part,
            on_event=on_event,
        )
    if options.as_json:
        console.print_json(report_to_plain(report))
    else:
        print_report(report, out)
    if report.manifest is not None:
        _warn_of_nothing(report.manifest)
    if report.failures or report.manifest is None:
        click.get_current_context().exit(1 if report.failures else 0)
    if not options.as_json:
        console.hint(next_step)
    return report.manifest


def report_to_plain(report: RunReport) -> dict[str, Any]:
    """Return what `--json` prints."""
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


def print_report(report: RunReport, out: Path) -> None:
    """Print how the run ended: complete, in part, or failed, and the books."""
    if report.failures:
        print_failures(report)
    elif report.manifest is None and report.num_done == 0:
        console.say("…", f"{out} is not complete yet; others work on it", colour=console.HINT)
        console.hint(f"shardmill status {out}")
    elif report.manifest is None:
        done = wording.plural(report.num_done, "unit")
        console.say("…", f"this part is done: {done}; others are not yet", colour=console.HINT)
        console.hint(f"shardmill status {out}")
    elif report.num_done == 0:
        console.say("✓", f"nothing to do: {out} is complete")
        _print_books(report.manifest)
    else:
        rate = report.num_in / max(report.seconds, 1e-9)
        took = wording.duration(report.seconds)
        console.say("✓", f"{out} is complete: {took}, {wording.count(rate)} samples/s")
        _print_books(report.manifest)


def print_failures(report: RunReport) -> None:
    """Print which units failed and why."""
    count = wording.plural(len(report.failures), "unit")
    console.say("✗", f"{count} failed, {report.num_done} done now", colour=console.BAD)
    console.listed((f"{unit}: {message}" for unit, message in report.failures), MAX_LISTED)
    console.hint("the tracebacks are in failures/; run the same command again to try those units")


def _warn_of_nothing(manifest: Manifest) -> None:
    """Say it if a step kept nothing of what it got; its stream leaves --json alone."""
    if manifest.num_in and not manifest.num_kept:
        mark = click.style("warning:", fg=console.BAD, bold=True)
        samples = wording.plural(manifest.num_in, "sample")
        reasons = listed(Counter(manifest.skipped))
        click.echo(f"{mark} nothing was kept of {samples}: {reasons}", err=True)


def _print_books(manifest: Manifest) -> None:
    shards = wording.plural(len(manifest.shards), "shard")
    size = wording.size(manifest.num_bytes)
    console.facts(
        [
            ("in", wording.plural(manifest.num_in, "sample")),
            ("kept", f"{wording.count(manifest.num_kept)} in {shards}, {size}"),
            *(
                ("skipped", f"{wording.count(n)} x {reason}")
                for reason, n in sorted(manifest.skipped.items(), key=lambda item: -item[1])
            ),
        ]
    )
