"""`shardmill codes IN OUT`: the images of sample shards as VQ codes."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from shardmill import humanize as wording
from shardmill.cli import output as console
from shardmill.cli.options import PlaceType, RunOptions, folder_argument, parse_plugin, run_options
from shardmill.cli.running import run_and_report
from shardmill.model.codec import build
from shardmill.model.manifest import Manifest
from shardmill.plugins import GEOMETRIES, IMAGE_TOKENIZERS


@click.command()
@folder_argument("folder")
@click.argument("out", type=PlaceType())
@click.option(
    "--from",
    "field",
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
@click.option("--limit", type=click.IntRange(0), help="Only the first N samples.")
@click.option("--threads", type=click.IntRange(1), help="Threads that decode, of each process.")
@click.option("--device", help="Such as cuda:1 or cpu.  [default: a free GPU for each process]")
@click.option("--print-sizes", is_flag=True, help="Print the sizes that can come out, and stop.")
@run_options
def codes(folder: Path, out: Path, print_sizes: bool, **flags: Any) -> None:
    """Turn images into VQ codes, written once.

    \b
        shardmill codes shards codes --tokenizer chameleon,weights=vqgan --resolution 512
        shardmill codes liquid codes --from vqcode_512
    """
    options = RunOptions.taken_from(flags)
    if flags["field"]:
        adopt(folder, out, flags, options)
        return
    if not flags["tokenizer"]:
        raise click.UsageError("give --tokenizer to encode images, or --from a field with codes")
    geometry = make_geometry(flags["geometry"], flags["resolution"])
    if print_sizes:
        for width, height in geometry.sizes():
            click.echo(f"{width} x {height}")
        return
    _encode(folder, out, geometry, flags, options)


def _encode(
    folder: Path, out: Path, geometry: Any, flags: dict[str, Any], options: RunOptions
) -> None:
    """Make code shards of the images of the samples."""
    _use(flags["threads"], flags["device"])
    from shardmill.stages.codes import EncodeImages
    from shardmill.tokens.vq.encode import count_devices

    num_devices = count_devices()
    precision: Any = flags["precision"] or ("fp16" if num_devices else "fp32")
    tokenizer = build(IMAGE_TOKENIZERS, parse_plugin(flags["tokenizer"]), where="--tokenizer")
    stage = EncodeImages(
        input_dir=folder.absolute(),
        tokenizer=tokenizer.pinned(),
        geometry=geometry,
        precision=precision,
        allow_truncated=flags["allow_truncated"],
        limit=flags["limit"],
    )
    if options.workers is None and options.on.is_local:
        options = replace(options, workers=max(1, num_devices))
    manifest = run_and_report(stage, out, options, next_step=f"shardmill show {out}")
    if not options.as_json:
        print_precision(manifest, precision)


def adopt(folder: Path, out: Path, flags: dict[str, Any], options: RunOptions) -> None:
    """Make code shards of the codes in a field of the samples."""
    from shardmill.stages.adopt import AdoptCodes
    from shardmill.tokens.codes import FieldCodes

    source = FieldCodes(field=flags["field"])
    limit, num_codes = flags["limit"], flags["num_codes"]
    stage = AdoptCodes(input_dir=folder.absolute(), codes=source, num_codes=num_codes, limit=limit)
    run_and_report(stage, out, options, next_step=f"shardmill show {out}")


def make_geometry(geometry: str | None, resolution: int | None) -> Any:
    """Return the geometry that the flags describe; a resolution alone is the middle square."""
    plain: dict[str, Any] = parse_plugin(geometry) if geometry else {"kind": "square"}
    if resolution is not None:
        plain["resolution"] = resolution
    return build(GEOMETRIES, plain, where="--geometry")


def print_precision(manifest: Manifest, precision: str) -> None:
    """Print which share of the codes was equal to those of fp32."""
    from shardmill.stages.codes import COMPARED, EQUAL

    compared = manifest.stats.get(COMPARED, 0)
    if compared:
        share = manifest.stats.get(EQUAL, 0) / compared
        text = f"{100 * share:.2f} % of {wording.count(compared)} codes are those of fp32"
        console.facts([(precision, text)])


def _use(threads: int | None, device: str | None) -> None:
    # Workers inherit the environment; what they run on must not be part of the spec.
    if threads is not None:
        os.environ["SHARDMILL_THREADS"] = str(threads)
    if device is not None:
        os.environ["SHARDMILL_DEVICE"] = device
