"""Prints rows of tokens, decoded: what is learned in green, control tokens and media marked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from shardmill.cli import console
from shardmill.errors import ConfigError
from shardmill.io.receipts import open_manifest
from shardmill.io.tokenset import TokenSet, open_token_set
from shardmill.model.manifest import Manifest
from shardmill.model.tokenrow import TokenRow
from shardmill.tokens.paint import Run, open_painter

COLOURS = {"text": None, "control": "magenta", "media": "cyan"}
MAX_CHARS = 4000


def show_tokens(
    folder: Path, manifest: Manifest, wanted: Sequence[str], count: int, as_json: bool
) -> None:
    """Print the rows with these numbers or keys, or the first `count`."""
    rows = open_token_set(folder, manifest)
    paint = open_painter(_maker_of_tokens(manifest))
    numbers = [_find(rows, name) for name in wanted] or range(min(count, len(rows)))
    for number in numbers:
        row = rows[number]
        if as_json:
            console.print_json(
                {
                    "number": number,
                    "key": row.key,
                    "ids": row.ids.tolist(),
                    "loss": row.loss.tolist(),
                    "runs": [
                        {"text": run.text, "kind": run.kind, "learned": run.learned}
                        for run in paint(row)
                    ],
                }
            )
        else:
            _print_row(number, len(rows), row, paint(row))


def _maker_of_tokens(manifest: Manifest) -> Manifest:
    """Return the manifest that knows the tokenizer: of packs it is that of their tokens."""
    tokens_dir = manifest.stage.get("tokens_dir") if isinstance(manifest.stage, dict) else None
    return open_manifest(tokens_dir) if isinstance(tokens_dir, str) else manifest


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
