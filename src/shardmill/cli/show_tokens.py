"""Prints rows of tokens, decoded: what is learned in green, control tokens and media marked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from shardmill.cli import console
from shardmill.errors import ConfigError
from shardmill.io.tokenset import TokenSet, open_token_set
from shardmill.model.manifest import Manifest
from shardmill.model.tokenrow import TokenRow
from shardmill.stages.checkmakers import tokens_behind
from shardmill.tokens.paint import Run, open_painter

COLOURS = {"text": None, "control": "magenta", "media": "cyan"}
MAX_CHARS = 4000


def show_tokens(
    folder: Path, manifest: Manifest, wanted: Sequence[str], count: int, as_json: bool
) -> None:
    """Print the rows with these numbers or keys, or the first `count`."""
    rows = open_token_set(folder, manifest)
    paint = open_painter(tokens_behind(folder, manifest)[1])
    numbers = [_find(rows, name) for name in wanted] or range(min(count, len(rows)))
    for number in numbers:
        row = rows[number]
        if as_json:
            console.print_json({"number": number, **row_as_plain(row, paint(row))})
        else:
            _print_row(number, len(rows), row, paint(row))


def row_as_plain(row: TokenRow, runs: Sequence[Run]) -> dict[str, Any]:
    """Return what `--json` prints of a row: its ids, the spans that are learned, and its runs."""
    return {
        "key": row.key,
        "ids": row.ids.tolist(),
        "loss": row.loss.tolist(),
        "runs": [{"text": r.text, "kind": r.kind, "learned": r.learned} for r in runs],
    }


def _find(rows: TokenSet, name: str) -> int:
    number = rows.find(name)
    if number is not None:
        return number
    if name.isdigit() and int(name) < len(rows):
        return int(name)
    raise ConfigError(f"no row has the key or number {name!r}: there are {len(rows):,}")


def _print_row(number: int, total: int, row: TokenRow, runs: Sequence[Run]) -> None:
    console.heading(row.key)
    console.facts(
        [
            ("row", f"{number:,} of {total:,}"),
            ("tokens", f"{len(row.ids):,}: {row.num_visual:,} visual, {row.num_loss:,} learned"),
        ]
    )
    print_runs(runs)


def print_runs(runs: Sequence[Run]) -> None:
    """Print the runs of a row in their colours, indented."""
    painted = "".join(
        click.style(
            run.text[:MAX_CHARS],
            fg="green" if run.learned and run.kind != "media" else COLOURS[run.kind],
            bold=run.learned,
            dim=run.kind == "control" and not run.learned,
        )
        for run in runs
    )
    click.echo("\n".join(f"    {line}" for line in painted.splitlines()))
