"""`shardmill ingest INPUT... OUT`: raw folders, tables, tars or a meta file to sample shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import shardmill as sm
from shardmill.cli.options import PlaceType, filter_option, limit_option, run_options
from shardmill.cli.report import call
from shardmill.plugins import SHAPES, SOURCES


@click.command()
@click.argument("src", nargs=-1, required=True, metavar="INPUT...")
@click.argument("out", type=PlaceType())
@click.option(
    "--source",
    metavar="KIND,FIELD=VALUE",
    help=f"What INPUT is, if it does not tell: {', '.join(SOURCES)}, with fields of its class.",
)
@click.option(
    "--shape",
    metavar="KIND",
    help=f"What a row is: {', '.join(SHAPES)} or package.module:Class.  [default: look at rows]",
)
@click.option("--media-root", metavar="DIR", help="Where relative paths of media in rows begin.")
@filter_option
@click.option("--key", metavar="COLUMN", help="The column that holds a unique key of each row.")
@limit_option
@click.option(
    "--per-shard", type=click.IntRange(1), help="Rows a shard.  [default: 1000; a tar stays one]"
)
@click.option("--max-shard-bytes", metavar="SIZE", help="Begin a new tar at this size.")
@click.option(
    "--max-media-bytes",
    metavar="SIZE",
    default="1GiB",
    show_default=True,
    help="Reject larger media.",
)
@click.option(
    "--name",
    default="{unit:06d}",
    show_default=True,
    help="Name of a shard, from {unit}, {machine}, {start}, {end}, {tar}.",
)
@click.option("--machine", type=int, default=0, help="The number that {machine} stands for.")
@click.option(
    "--layout",
    type=click.Choice(["dotted", "dashed"]),
    default="dotted",
    show_default=True,
    help="Several media of sample K are K.0.jpg (dotted) or K-0.jpg (dashed).",
)
@click.option(
    "--per-host",
    type=click.IntRange(1),
    help="Downloads from one host at a time, of each process.  [default: 8]",
)
@click.option(
    "--retry-rejects",
    multiple=True,
    metavar="REASON",
    help="Try rejects again whose reason begins so, such as 'http 5' or time-out.",
)
@run_options
def ingest(src: tuple[str, ...], out: Path, **flags: Any) -> None:
    """Turn raw folders, tables or tars into shards.

    INPUT is a folder of images with captions beside them, tables (jsonl, json, csv, parquet,
    arrow, also .gz and .zst), WebDataset tars, or a meta file that names several of them; globs
    and braces work, quoted or not. Every row ends up in a shard, or in OUT/rejects with a reason.

    \b
        shardmill ingest pairs.jsonl shards
        shardmill ingest 'cc3m-train-{0000..0575}.tar' shards --filter aspect_ratio,max_ratio=2
        shardmill ingest photos/ shards --per-shard 500 --limit 10000
    """
    call(sm.ingest, src, out, next_step=f"shardmill status {out}", **flags)
