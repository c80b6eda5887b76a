"""Shows codes: their grids, or the pictures that they decode to beside the originals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from shardmill.cli import console
from shardmill.extras import need
from shardmill.stages.codereport import find_codes, reconstruct, spread_keys


def show_codes(folder: Path, wanted: Sequence[str], count: int, as_json: bool) -> None:
    """Print the grids of codes of the samples with these keys, or of some spread evenly."""
    for key in wanted or spread_keys(folder, count):
        for picture in find_codes(folder, key):
            height, width = picture.codes.shape
            if as_json:
                codes = picture.codes.tolist()
                console.print_json({"key": key, "medium": picture.medium, "codes": codes})
                continue
            console.heading(f"{key} {picture.medium}")
            first = " ".join(str(code) for code in picture.codes[0, :12])
            console.facts([("grid", f"{height} x {width}"), ("first row", f"{first} …")])


def show_reconstructions(
    folder: Path, wanted: Sequence[str], count: int, to_dir: Path, as_json: bool
) -> None:
    """Write each picture beside what its codes decode to, and print how near they are."""
    image = need("PIL.Image", extra="image")
    to_dir.mkdir(parents=True, exist_ok=True)
    for picture in reconstruct(folder, list(wanted or spread_keys(folder, count))):
        name = f"{picture.key}.{picture.medium}".replace("/", "_")
        path = to_dir / f"{name}.png"
        image.fromarray(picture.side_by_side()).save(path)
        if as_json:
            console.print_json(
                {"key": picture.key, "medium": picture.medium, "psnr": picture.psnr, "path": path}
            )
        else:
            click.echo(f"  {picture.psnr:5.2f} dB  {path}")
