"""`shardmill export IN OUT --format KIND`: finished shards for the readers of other projects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from shardmill.cli.options import PlaceType, RunOptions, folder_argument, parse_plugin, run_options
from shardmill.cli.running import run_and_report
from shardmill.model.codec import build
from shardmill.plugins import FORMATS


@click.command()
@folder_argument("folder")
@click.argument("out", type=PlaceType(file_okay=False))
@click.option(
    "--format",
    "format_text",
    required=True,
    metavar="KIND,FIELD=VALUE",
    help=f"What is written: {', '.join(FORMATS)} or package.module:Class.",
)
@click.option(
    "--codes",
    "codes_dir",
    type=click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path),
    help="The folder of codes of these samples.",
)
@click.option(
    "--shards",
    "num_shards",
    type=click.IntRange(1),
    help="Cut the rows into this many even shards.  [default: as the input]",
)
@run_options
def export(folder: Path, out: Path, format_text: str, **flags: Any) -> None:
    """Write finished shards for the readers of other projects.

    \b
        shardmill export tokens megatron --format megatron,prefix=train
        shardmill export tokens arrow --format hf --shards 256
        shardmill export pairs liquid --codes pairs-codes --format liquid
        shardmill export tokens tensors --format tensordict,length=2048,pad_id=0
    """
    from shardmill.stages.export import Export

    options = RunOptions.taken_from(flags)
    made = build(FORMATS, parse_plugin(format_text), where="--format")
    stage = Export(input_dir=folder.absolute(), format=made, **flags)
    run_and_report(stage, out, options, next_step=f"shardmill check {out}")
