"""`shardmill pack TOKENS PLAN OUT`: the packs of a plan as shards on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import shardmill as sm
from shardmill.cli.options import FILE, FOLDER, PlaceType, folder_argument, run_options
from shardmill.cli.report import call


@click.command()
@folder_argument("tokens")
@click.argument("plan", type=FILE)
@click.argument("out", type=PlaceType(file_okay=False))
@click.option(
    "--format",
    type=click.Choice(["megatron", "tar"]),
    default="megatron",
    show_default=True,
    help="Megatron's bin and idx with a document a pack, or WebDataset tars with a sample a pack.",
)
@click.option(
    "--samples", type=FOLDER, help="The folder of samples whose images are copied into the tars."
)
@click.option("--packs-per-shard", type=click.IntRange(1), default=1000, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True, help="For the order of packs.")
@click.option("--epoch", type=int, default=0, help="Another number gives another order.")
@run_options
def pack(tokens: Path, plan: Path, out: Path, **flags: Any) -> None:
    """Write the packs of a plan to disk.

    The packs come in the order of an epoch, so that neighbours cost alike; every token that was
    planned is written.

    \b
        shardmill pack tokens packs.plan packs
        shardmill pack tokens packs.plan packs --format tar --samples shards
    """
    call(sm.pack, tokens, plan, out, next_step=f"shardmill status {out}", **flags)
