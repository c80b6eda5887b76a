"""`shardmill filter IN OUT`: sample shards without what is not wanted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import shardmill as sm
from shardmill.cli.options import PlaceType, filter_option, folder_argument, run_options
from shardmill.cli.report import call


@click.command(name="filter")
@folder_argument("src", metavar="IN")
@click.argument("out", type=PlaceType())
@filter_option
@click.option(
    "--drop-duplicates",
    is_flag=True,
    help="Of samples with the same text and media keep the first, in the whole folder.",
)
@run_options
def filter_(src: Path, out: Path, **flags: Any) -> None:
    """Keep the samples that pass; drop duplicates."""
    call(sm.filter, src, out, next_step=f"shardmill status {out}", **flags)
