"""Prints the statistics that stages count: groups of counts, and histograms of powers of two."""

from __future__ import annotations

from collections.abc import Mapping

import click

from shardmill.cli import console, wording

MAX_ROWS = 12


def print_statistics(stats: Mapping[str, int], num_samples: int) -> None:
    """Print "samples|with pictures" under the heading "samples", "text chars|<=64" as bars."""
    groups: dict[str, dict[str, int]] = {}
    for name, amount in stats.items():
        group, _, rest = name.partition("|")
        groups.setdefault(group, {})[rest] = amount
    for group, values in groups.items():
        if "sum" in values:
            _print_histogram(group, values)
        else:
            _print_counts(group, values, num_samples)


def histogram(values: Mapping[str, int]) -> list[tuple[int, int]]:
    """{"<=64": 3, "<=256": 1, "sum": 400} -> [(64, 3), (128, 0), (256, 1)]."""
    counts = {int(name[2:]): n for name, n in values.items() if name.startswith("<=")}
    limits = [min(counts, default=0)]
    while limits[-1] < max(counts, default=0):
        limits.append(max(1, limits[-1] * 2))
    return [(limit, counts.get(limit, 0)) for limit in limits]


def _print_counts(group: str, values: Mapping[str, int], num_samples: int) -> None:
    console.heading(group)
    rows = sorted(values.items(), key=lambda item: -item[1])
    console.table(
        ("", "count", "share"),
        [
            (name, wording.count(n), wording.percent(n / num_samples) if num_samples else "-")
            for name, n in rows[:MAX_ROWS]
        ],
    )
    if len(rows) > MAX_ROWS:
        click.echo(f"  and {len(rows) - MAX_ROWS} more")


def _print_histogram(group: str, values: Mapping[str, int]) -> None:
    rows = histogram(values)
    total = sum(n for _, n in rows)
    console.heading(f"{group}: {wording.count(values['sum'] / max(total, 1))} on average")
    most = max(n for _, n in rows)
    width = len(wording.count(rows[-1][0]))
    for limit, n in rows:
        size = wording.count(limit).rjust(width)
        click.echo(f"  up to {size}  {console.bar(n / most)} {wording.count(n)}")
