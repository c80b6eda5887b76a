"""`shardmill codes IN OUT`: the images of sample shards as VQ codes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import shardmill as sm
from shardmill import humanize
from shardmill.api.data import Codes
from shardmill.cli import output
from shardmill.cli.options import PlaceType, folder_argument, limit_option, run_options
from shardmill.cli.report import call, print_data
from shardmill.plugins import GEOMETRIES, IMAGE_TOKENIZERS


@click.command()
@folder_argument("src", metavar="IN")
@click.argument("out", type=PlaceType())
@click.option(
    "--from",
    "from_",
    metavar="FIELD",
    help="The samples carry codes already, such as Liquid's vqcode_512; nothing is encoded.",
)
@click.option(
    "--num-codes",
    type=click.IntRange(1),
    default=8192,
    show_default=True,
    help="With --from: the size of the codebook.",
)
@click.option(
    "--tokenizer",
    metavar="KIND,weights=PATH",
    help=f"What encodes: {', '.join(IMAGE_TOKENIZERS)} or package.module:Class.",
)
@click.option(
    "--weights", type=PlaceType(exists=True), help="The weights, if --tokenizer does not say."
)
@click.option("--resolution", type=int, help="Pixels a side of the middle square.  [default: 512]")
@click.option(
    "--geometry",
    metavar="KIND,FIELD=VALUE",
    help=f"Another way to bring images to size: {', '.join(GEOMETRIES)}.",
)
@click.option(
    "--precision",
    type=click.Choice(["fp32", "tf32", "fp16"]),
    help="What a GPU multiplies.  [default: fp16 on a GPU, fp32 without]",
)
@click.option("--allow-truncated", is_flag=True, help="Take images whose end is missing.")
@limit_option
@click.option("--threads", type=click.IntRange(1), help="Threads that decode, of each process.")
@click.option("--device", help="Such as cuda:1 or cpu.  [default: a free GPU for each process]")
@click.option("--print-sizes", is_flag=True, help="Print the sizes that can come out, and stop.")
@run_options
def codes(src: Path, out: Path, print_sizes: bool, **flags: Any) -> None:
    """Turn images into VQ codes, written once.

    \b
        shardmill codes shards codes --tokenizer chameleon,weights=vqgan --resolution 512
        shardmill codes liquid codes --from vqcode_512
    """
    if print_sizes:
        from shardmill.api.values import to_geometry

        for width, height in to_geometry(flags["geometry"], flags["resolution"]).sizes():
            click.echo(f"{width} x {height}")
        return
    call(sm.codes, src, out, next_step=f"shardmill show {out}", report=print_codes, **flags)


def print_codes(made: Codes, as_json: bool) -> None:
    """Print the run, and which share of the codes was equal to those of fp32."""
    from shardmill.stages.codes import COMPARED, EQUAL

    print_data(made, as_json)
    compared = made.manifest.stats.get(COMPARED, 0) if made.complete else 0
    if compared and not as_json:
        share = made.manifest.stats.get(EQUAL, 0) / compared
        text = f"{100 * share:.2f} % of {humanize.count(compared)} codes are those of fp32"
        output.facts([(made.spec.precision, text)])
