"""`shardmill frames IN OUT`: the videos of sample shards as images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import shardmill as sm
from shardmill.cli.options import PlaceType, folder_argument, limit_option, run_options
from shardmill.cli.report import call
from shardmill.plugins import FRAME_SAMPLERS


@click.command()
@folder_argument("src", metavar="IN")
@click.argument("out", type=PlaceType())
@click.option(
    "--sampler",
    default="uniform",
    show_default=True,
    metavar="KIND,FIELD=VALUE",
    help=f"Which frames: {', '.join(FRAME_SAMPLERS)} or package.module:Class.",
)
@click.option(
    "--clip", metavar="START,END", help="Only this part, where a row does not say its own."
)
@click.option("--format", type=click.Choice(["jpg", "webp"]), default="jpg", show_default=True)
@click.option("--quality", type=click.IntRange(1, 100), default=90, show_default=True)
@click.option("--long-side", type=click.IntRange(1), help="Scale larger frames down to this.")
@click.option(
    "--mark",
    default="",
    metavar="TEXT",
    help="Write this behind each frame, from {at}, {time_s}, {number} and {type}.",
)
@click.option(
    "--time-scale",
    type=click.IntRange(1),
    default=1000,
    show_default=True,
    help="What {at} is at the last frame.",
)
@click.option("--interleave", is_flag=True, help="Put frames between the texts of their times.")
@click.option(
    "--list-fps",
    type=float,
    metavar="FPS",
    help="Choose among images that follow each other, too: frames at this rate.",
)
@click.option(
    "--max-frames",
    type=click.IntRange(1),
    default=1024,
    show_default=True,
    help="Reject a video of which more frames are chosen.",
)
@click.option(
    "--layout",
    type=click.Choice(["dashed", "dotted"]),
    default="dashed",
    show_default=True,
    help="Frame 3 of sample K is K-3.jpg (dashed) or K.3.jpg (dotted).",
)
@limit_option
@run_options
def frames(src: Path, out: Path, **flags: Any) -> None:
    """Turn videos into frames, or keep them whole.

    \b
        shardmill frames clips frames --sampler uniform,count=16 --long-side 512
        shardmill frames clips frames --sampler keyframes,i_frames=8,p_frames=16 --mark '#{at}'
        shardmill frames clips frames --sampler fps,fps=2,max_frames=64
    """
    call(sm.frames, src, out, next_step=f"shardmill show {out}", **flags)
