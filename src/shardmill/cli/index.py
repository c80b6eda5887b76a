"""`shardmill index TAR... OUT`: random access to tars where they lie, and lists for others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import shardmill as sm
from shardmill.cli.options import PlaceType, run_options
from shardmill.cli.report import call


@click.command()
@click.argument("src", nargs=-1, required=True, metavar="TAR...")
@click.argument("out", type=PlaceType())
@click.option(
    "--media-sizes", is_flag=True, help="Also read width, height, frames from media headers."
)
@click.option(
    "--interleaved/--not-interleaved",
    default=True,
    show_default=True,
    help="Let K-0.jpg belong to the sample that begins with K.json.",
)
@click.option("--md5", is_flag=True, help="Put md5 sums into shardindex.json; reads every byte.")
@click.option("--name", help="The name in shardindex.json.  [default: the folder's]")
@run_options
def index(src: tuple[str, ...], out: Path, **flags: Any) -> None:
    """Index existing tars where they lie.

    TAR is a file, a folder, a glob, braces or a url (s3://, gs://, https://); nothing is copied and
    only headers are read. OUT holds the lists that others read (shardindex.json for wids,
    shardlist.json and .pkl with {url, nsamples}), can be checked, and serves members to loaders.
    Tars of ours it opens wherever a folder of samples is asked for; those of others have no
    documents, so that `shardmill ingest` comes before filter, tokenize or measure.

    \b
        shardmill index 'cc3m-train-{0000..0575}.tar' cc3m-index
        shardmill index 's3://bucket/laion/{00000..00999}.tar' laion-index --media-sizes
    """
    call(sm.index, src, out, next_step=f"shardmill show {out}", **flags)
