"""`shardmill export IN OUT --format KIND`: finished shards for the readers of other projects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import shardmill as sm
from shardmill.cli.options import FOLDER, PlaceType, folder_argument, run_options
from shardmill.cli.report import call
from shardmill.plugins import FORMATS


@click.command()
@folder_argument("src", metavar="IN")
@click.argument("out", type=PlaceType(file_okay=False))
@click.option(
    "--format",
    required=True,
    metavar="KIND,FIELD=VALUE",
    help=f"What is written: {', '.join(FORMATS)} or package.module:Class.",
)
@click.option("--codes", type=FOLDER, help="The folder of codes of these samples.")
@click.option(
    "--shards",
    type=click.IntRange(1),
    help="Cut the rows into this many even shards.  [default: as the input]",
)
@run_options
def export(src: Path, out: Path, **flags: Any) -> None:
    """Write finished shards for the readers of other projects.

    \b
        shardmill export tokens megatron --format megatron,prefix=train
        shardmill export tokens arrow --format hf --shards 256
        shardmill export pairs liquid --codes pairs-codes --format liquid
        shardmill export tokens tensors --format tensordict,length=2048,pad_id=0
    """
    call(sm.export, src, out, next_step=f"shardmill check {out}", **flags)
