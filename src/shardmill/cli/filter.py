"""`shardmill filter IN OUT`: sample shards without what is not wanted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from shardmill.cli.options import PlaceType, RunOptions, filter_option, folder_argument, run_options
from shardmill.cli.running import run_and_report
from shardmill.stages.filter import FilterSamples


@click.command(name="filter")
@folder_argument("folder")
@click.argument("out", type=PlaceType())
@filter_option
@click.option(
    "--drop-duplicates",
    is_flag=True,
    help="Of samples with the same text and media keep the first, in the whole folder.",
)
@run_options
def filter_(folder: Path, out: Path, **fields: Any) -> None:
    """Keep the samples that pass; drop duplicates."""
    options = RunOptions.taken_from(fields)
    stage = FilterSamples(input_dir=folder.absolute(), **fields)
    run_and_report(stage, out, options, next_step=f"shardmill status {out}")
