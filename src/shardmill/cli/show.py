"""`shardmill show FOLDER`: what a folder holds, as a person reads it."""

from __future__ import annotations

from pathlib import Path

import click

from shardmill.cli.options import folder_argument, json_option
from shardmill.io.receipts import open_manifest


@click.command()
@folder_argument("folder")
@click.option("--sample", "-s", "wanted", multiple=True, help="A sample's number or key.")
@click.option(
    "--count",
    "-n",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="How many, if none is named.",
)
@click.option(
    "--reconstruct",
    "to_dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Of codes: write pictures beside what their codes decode to into this folder.",
)
@json_option
def show(
    folder: Path, wanted: tuple[str, ...], count: int, to_dir: Path | None, as_json: bool
) -> None:
    """Print samples, codes or tokens as a person reads them."""
    manifest = open_manifest(folder)
    roles = {role for shard in manifest.shards for role in shard.files}
    if to_dir is not None:
        from shardmill.cli.show_codes import show_reconstructions

        show_reconstructions(folder, wanted, count, to_dir, as_json)
    elif "codes" in roles:
        from shardmill.cli.show_codes import show_codes

        show_codes(folder, wanted, count, as_json)
    elif "spans" in roles:
        from shardmill.cli.show_tokens import show_tokens

        show_tokens(folder, manifest, wanted, count, as_json)
    else:
        from shardmill.cli.show_samples import show_samples

        show_samples(folder, wanted, count, as_json)
