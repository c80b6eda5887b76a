"""`shardmill run RECIPE`: all steps of a recipe in order, or what they will take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import click

from shardmill import humanize
from shardmill.api.recipe import NUM_UNITS, Estimate, Recipe, opened_recipe, quote_steps
from shardmill.api.running import RunFailed
from shardmill.cli import output
from shardmill.cli.check import print_check
from shardmill.cli.diff import print_diff
from shardmill.cli.options import FILE, json_lines_option
from shardmill.cli.plan import print_plan
from shardmill.cli.report import (
    Print,
    print_codes,
    print_data,
    print_ended,
    print_export,
    print_lengths,
    print_removal,
)
from shardmill.errors import NothingKept

COLUMNS = ("tried", "units", "samples", "samples/s", "time", "storage", "cost", "bound by", "step")
# The reports of verbs that print more than their run.
REPORTS: Mapping[str, Print] = {
    "codes": print_codes,
    "export": print_export,
    "measure": print_lengths,
    "plan": print_plan,
    "remove": print_removal,
    "check": print_check,
    "diff": print_diff,
}


@click.command()
@click.argument("recipe", type=FILE)
@click.option("--quote", is_flag=True, help="Try a few units of each step, and tell.")
@click.option(
    "--units",
    type=click.IntRange(1),
    default=NUM_UNITS,
    show_default=True,
    help="How many units of each step --quote tries.",
)
@json_lines_option
def run(recipe: Path, quote: bool, units: int, as_json: bool) -> None:
    """Run all steps of a recipe; --quote tells what they take.

    RECIPE is a TOML file with one [[step]] a command: its verb, in, out and flags. Paths are
    relative to its folder. Each step resumes, so that running it again goes on where it stopped.

    \b
        shardmill run recipe.toml --quote
        shardmill run recipe.toml
    """
    with opened_recipe(recipe) as found:
        if quote:
            _quote(found, units, as_json)
        else:
            _run(found, as_json)


def _run(recipe: Recipe, as_json: bool) -> None:
    for number, step in enumerate(recipe.steps, 1):
        if not as_json:
            output.heading(f"{number}/{len(recipe.steps)}  {step.title}")
        try:
            made = step.call(progress=True)
        except (RunFailed, NothingKept) as error:  # the later steps would read what is not there
            print_ended(error, as_json)
            code = error.exit_code
        else:
            report: Print = REPORTS.get(step.verb, print_data)
            report(made, as_json)
            # Of what is no check there is nothing to doubt.
            code = 0 if getattr(made, "sound", True) else 1
        if code:
            text = f"stopped at step {number}, {step.title}; repair it and run the recipe again"
            output.echo(f"{click.style('✗', fg=output.BAD, bold=True)} {text}", err=True)
            raise click.exceptions.Exit(code)


def _quote(recipe: Recipe, num_units: int, as_json: bool) -> None:
    estimates = []
    for estimate in quote_steps(recipe, num_units=num_units):
        output.echo(f"tried {estimate.step}", err=True)
        estimates.append(estimate)
    if as_json:
        output.print_json({"steps": [_to_plain(estimate) for estimate in estimates]})
    else:
        print_quote(estimates)


def _to_plain(estimate: Estimate) -> dict[str, object]:
    derived = {name: getattr(estimate, name) for name in ("rate", "worker_hours", "cost", "bound")}
    return {**asdict(estimate), **derived}


def print_quote(estimates: Sequence[Estimate]) -> None:
    """Print the table of the steps, and what they come to."""
    output.heading("What it will take, from a few units of each step")
    output.table(COLUMNS, map(_row, estimates))
    seconds = sum(estimate.seconds for estimate in estimates)
    num_bytes = sum(estimate.num_bytes for estimate in estimates)
    slowest = max(estimates, key=lambda estimate: estimate.seconds)
    share = humanize.percent(slowest.seconds / max(seconds, 1e-9))
    bound = f", bound by {slowest.bound}" if slowest.bound is not None else ""
    output.facts(
        [
            ("time", f"{humanize.duration(seconds)} on this machine"),
            ("slowest", f"{slowest.step}: {share}{bound}"),
            ("storage", humanize.size(num_bytes)),
            ("cost", _cost(estimates, num_bytes)),
        ]
    )


def _row(estimate: Estimate) -> tuple[str, ...]:
    return (
        humanize.count(estimate.num_tried),
        humanize.count(estimate.num_units),
        humanize.count(estimate.num_samples) if estimate.num_samples else "-",
        humanize.count(estimate.rate) if estimate.num_samples else "-",
        humanize.duration(estimate.seconds),
        humanize.size(estimate.num_bytes),
        f"{estimate.cost:,.2f}" if estimate.prices else "-",
        estimate.bound or "unknown",
        estimate.step,
    )


def _cost(estimates: Sequence[Estimate], num_bytes: int) -> str:
    prices = estimates[0].prices
    if not prices:
        return "give [prices] with cpu_hour, gpu_hour, gb_month to see it"
    work = sum(estimate.cost for estimate in estimates)
    month = num_bytes / 1e9 * prices.get("gb_month", 0.0)
    return f"{work:,.2f} for the work, {month:,.2f} a month for what it leaves"
