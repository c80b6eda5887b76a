"""`shardmill ingest INPUT... OUT`: raw folders, tables, tars or a meta file to sample shards."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from shardmill.cli.options import (
    PlaceType,
    RunOptions,
    SizeType,
    filter_option,
    parse_plugin,
    run_options,
)
from shardmill.cli.running import run_and_report
from shardmill.errors import ConfigError
from shardmill.model.codec import build
from shardmill.plugins import SHAPES, SOURCES
from shardmill.run.runner import retry_rejects
from shardmill.sources.guess_source import shape_of, source_from_input
from shardmill.sources.media.download import PER_HOST_VARIABLE
from shardmill.sources.media.fetch import MAX_MEDIA_BYTES
from shardmill.stages.ingest import Ingest
from shardmill.storage.url import is_remote


@click.command()
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...")
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
@click.option("--limit", type=click.IntRange(0), help="Take only the first rows.")
@click.option(
    "--per-shard", type=click.IntRange(1), help="Rows a shard.  [default: 1000; a tar stays one]"
)
@click.option("--max-shard-bytes", type=SizeType(), help="Begin a new tar at this size.")
@click.option(
    "--max-media-bytes",
    type=SizeType(),
    default=MAX_MEDIA_BYTES,
    help="Reject larger media.  [default: 1 GiB]",
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
    "again",
    multiple=True,
    metavar="REASON",
    help="Try rejects again whose reason begins so, such as 'http 5' or time-out.",
)
@run_options
def ingest(
    inputs: tuple[str, ...],
    out: Path,
    source: str | None,
    shape: str | None,
    media_root: str | None,
    per_host: int | None,
    again: tuple[str, ...],
    **fields: Any,
) -> None:
    """Turn raw folders, tables or tars into shards.

    INPUT is a folder of images with captions beside them, tables (jsonl, json, csv, parquet,
    arrow, also .gz and .zst), WebDataset tars, or a meta file that names several of them; globs
    and braces work, quoted or not. Every row ends up in a shard, or in OUT/rejects with a reason.

    \b
        shardmill ingest pairs.jsonl shards
        shardmill ingest 'cc3m-train-{0000..0575}.tar' shards --filter aspect_ratio,max_ratio=2
        shardmill ingest photos/ shards --per-shard 500 --limit 10000
    """
    options = RunOptions.taken_from(fields)
    _refuse_inside(inputs, out)
    chosen = parse_plugin(source) if source else {"kind": None}
    raw = source_from_input(inputs, **{"media_root": media_root, **chosen})
    stage = Ingest(
        source=raw,
        shape=build(SHAPES, parse_plugin(shape), where="--shape") if shape else shape_of(raw),
        **fields,
    )
    if per_host is not None:
        # Workers inherit the environment; how fast they ask is no part of the spec.
        os.environ[PER_HOST_VARIABLE] = str(per_host)
    if again:
        retry_rejects(out, stage, again)
    run_and_report(stage, out, options, next_step=f"shardmill status {out}")


def _refuse_inside(inputs: tuple[str, ...], out: Path) -> None:
    """Refuse to write into a folder that is read: its shards would be input of the next run."""
    above = () if is_remote(str(out)) else out.resolve().parents
    for given in inputs:
        if Path(given).is_dir() and Path(given).resolve() in above:
            raise ConfigError(f"{out} lies inside of the input {given}: name a folder beside it")
