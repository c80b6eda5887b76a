"""`shardmill run RECIPE`: all steps of a recipe in order, or what they will take."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import chdir
from dataclasses import asdict
from pathlib import Path

import click

from shardmill import humanize as wording
from shardmill.cli import output as console
from shardmill.cli.main import cli
from shardmill.cli.options import json_lines_option
from shardmill.cli.quote import NUM_UNITS, Estimate, quote
from shardmill.cli.recipe import Recipe, Step, call, check_inputs, read_recipe
from shardmill.errors import ConfigError

COLUMNS = ("tried", "units", "samples", "samples/s", "time", "storage", "cost", "bound by", "step")


@click.command()
@click.argument("recipe", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--quote", "quoting", is_flag=True, help="Try a few units of each step, and tell.")
@click.option(
    "--units",
    type=click.IntRange(1),
    default=NUM_UNITS,
    show_default=True,
    help="How many units of each step --quote tries.",
)
@json_lines_option
def run(recipe: Path, quoting: bool, units: int, as_json: bool) -> None:
    """Run all steps of a recipe; --quote tells what they take.

    RECIPE is a TOML file with one [[step]] a command: its verb, in, out and flags. Paths are
    relative to its folder. Each step resumes, so that running it again goes on where it stopped.

    \b
        shardmill run recipe.toml --quote
        shardmill run recipe.toml
    """
    found = read_recipe(recipe, _command)
    with chdir(recipe.absolute().parent):
        check_inputs(found.steps, _command)
        if quoting:
            _quote(found, units, as_json)
        else:
            _run_all(found.steps, as_json)


def _command(verb: str) -> click.Command | None:
    return cli.get_command(click.Context(cli), verb) if verb != "run" else None


def _run_all(steps: Sequence[Step], as_json: bool) -> None:
    for number, step in enumerate(steps, 1):
        command = _command(step.verb)
        assert command is not None
        if not as_json:
            console.heading(f"{number}/{len(steps)}  {step.title}")
        words = [*(["--json"] if as_json else []), *step.words()]
        code = call(command, words)
        if code:
            console.say("✗", f"stopped at step {number}; mend it and run the recipe again")
            click.get_current_context().exit(code)


def _quote(recipe: Recipe, num_units: int, as_json: bool) -> None:
    estimates = []
    for estimate in quote(recipe, _command, num_units=num_units):
        click.echo(f"tried {estimate.step}", err=True)
        estimates.append(estimate)
    if not estimates:
        raise ConfigError("no step of the recipe writes anything: there is nothing to try")
    if as_json:
        console.print_json({"steps": [_plain(estimate) for estimate in estimates]})
    else:
        print_quote(estimates)


def _plain(estimate: Estimate) -> dict[str, object]:
    derived = {name: getattr(estimate, name) for name in ("rate", "worker_hours", "cost", "bound")}
    return {**asdict(estimate), **derived}


def print_quote(estimates: Sequence[Estimate]) -> None:
    """Print the table of the steps, and what they come to."""
    console.heading("What it will take, from a few units of each step")
    console.table(COLUMNS, map(_row, estimates))
    seconds = sum(estimate.seconds for estimate in estimates)
    num_bytes = sum(estimate.num_bytes for estimate in estimates)
    slowest = max(estimates, key=lambda estimate: estimate.seconds)
    share = wording.percent(slowest.seconds / max(seconds, 1e-9))
    bound = f", bound by {slowest.bound}" if slowest.bound is not None else ""
    console.facts(
        [
            ("time", f"{wording.duration(seconds)} on this machine"),
            ("slowest", f"{slowest.step}: {share}{bound}"),
            ("storage", wording.size(num_bytes)),
            *_money(estimates, num_bytes),
        ]
    )


def _row(estimate: Estimate) -> tuple[str, ...]:
    return (
        wording.count(estimate.num_tried),
        wording.count(estimate.num_units),
        wording.count(estimate.num_samples) if estimate.num_samples else "-",
        wording.count(estimate.rate) if estimate.num_samples else "-",
        wording.duration(estimate.seconds),
        wording.size(estimate.num_bytes),
        f"{estimate.cost:,.2f}" if estimate.prices else "-",
        estimate.bound or "unknown",
        estimate.step,
    )


def _money(estimates: Sequence[Estimate], num_bytes: int) -> list[tuple[str, str]]:
    prices = estimates[0].prices
    if not prices:
        return [("cost", "give [prices] with cpu_hour, gpu_hour, gb_month to see it")]
    work = sum(estimate.cost for estimate in estimates)
    month = num_bytes / 1e9 * prices.get("gb_month", 0.0)
    return [("cost", f"{work:,.2f} for the work, {month:,.2f} a month for what it leaves")]
