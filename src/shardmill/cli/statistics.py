"""Prints the statistics that stages count: groups of counts, and histograms of powers of two."""

from __future__ import annotations

from collections.abc import Mapping

import click

from shardmill import wording
from shardmill.cli import console
from shardmill.model.statgroups import group_stats, power_bars

MAX_ROWS = 12
# Groups that count samples: their shares are of all samples, those of others of the group.
OF_SAMPLES = ("samples", "source", "missing")


def print_statistics(stats: Mapping[str, int], num_samples: int) -> None:
    """Print "tokens" as a fact, "source|web" in a table "source", "text chars|<=64" as bars."""
    groups = group_stats(stats)
    console.facts((name, wording.count(n)) for name, n in groups.pop("", {}).items())
    for group, values in groups.items():
        if "sum" in values and power_bars(values):
            _print_histogram(group, values)
        else:
            _print_counts(group, values, num_samples if group in OF_SAMPLES else None)


def _print_counts(group: str, values: Mapping[str, int], num_samples: int | None) -> None:
    console.heading(group)
    whole = sum(values.values()) if num_samples is None else num_samples
    rows = sorted(values.items(), key=lambda item: -item[1])
    console.table(
        ("", "count", "share"),
        [
            (name, wording.count(n), wording.percent(n / whole) if whole else "-")
            for name, n in rows[:MAX_ROWS]
        ],
    )
    if len(rows) > MAX_ROWS:
        click.echo(f"  and {len(rows) - MAX_ROWS} more")


def _print_histogram(group: str, values: Mapping[str, int]) -> None:
    rows = power_bars(values)
    total = sum(n for _, n in rows)
    console.heading(f"{group}: {wording.count(values['sum'] / max(total, 1))} on average")
    most = max(n for _, n in rows)
    width = len(wording.count(rows[-1][0]))
    for limit, n in rows:
        size = wording.count(limit).rjust(width)
        click.echo(f"  up to {size}  {console.bar(n / most)} {wording.count(n)}")
