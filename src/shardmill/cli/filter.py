"""`shardmill filter IN OUT`: sample shards without what is not wanted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from shardmill.cli.options import RunOptions, folder_argument, run_options
from shardmill.cli.places import PlaceType
from shardmill.cli.running import run_and_report
from shardmill.cli.values import parse_plugin
from shardmill.plugins import FILTERS, build
from shardmill.stages.filter import FilterSamples


@click.command(name="filter")
@folder_argument("folder")
@click.argument("out", type=PlaceType())
@click.option(
    "--filter",
    "filters",
    multiple=True,
    metavar="KIND,FIELD=VALUE",
    help=f"Leave out what does not pass: {', '.join(FILTERS)} or package.module:Class.",
)
@click.option(
    "--drop-duplicates",
    is_flag=True,
    help="Of samples with the same text and media keep the first, in the whole folder.",
)
@run_options
def filter_(
    folder: Path, out: Path, filters: tuple[str, ...], drop_duplicates: bool, **run: Any
) -> None:
    """Keep the samples that pass; drop duplicates."""
    stage = FilterSamples(
        input_dir=folder.absolute(),
        filters=tuple(build(FILTERS, parse_plugin(text), where="--filter") for text in filters),
        drop_duplicates=drop_duplicates,
    )
    run_and_report(stage, out, RunOptions.taken_from(run), next_step=f"shardmill status {out}")
