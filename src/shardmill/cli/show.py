"""`shardmill show FOLDER`: what a folder holds, as a person reads it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from shardmill.cli import console
from shardmill.cli.options import folder_argument, json_lines_option
from shardmill.errors import ConfigError
from shardmill.io.receipts import Ledger, open_manifest
from shardmill.remote.path import UrlPath


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
@json_lines_option
def show(
    folder: Path, wanted: tuple[str, ...], count: int, to_dir: Path | None, as_json: bool
) -> None:
    """Print samples, codes or tokens as a person reads them.

    FOLDER is any folder of ours, an export, or tokens of another program (Megatron's prefixes,
    tars of packed samples, UniDisc's memory maps).
    """
    if to_dir is not None:
        from shardmill.cli.show_codes import show_reconstructions

        show_reconstructions(folder, wanted, count, to_dir, as_json)
        return
    from shardmill.formats.exported import open_reader
    from shardmill.formats.read_shards import SamplesReader

    reader = open_reader(str(folder)) if _is_for_others(folder) else None
    if reader is not None and not isinstance(reader, SamplesReader):
        from shardmill.cli.show_records import show_records

        show_records(folder, reader, wanted, count, as_json)
    else:
        _show_ours(folder, wanted, count, as_json)


def _is_for_others(folder: Path) -> bool:
    """Say whether a folder is an export, or was not made by us at all."""
    manifest = Ledger(folder).read_manifest()
    is_remote = isinstance(folder, UrlPath)
    if manifest is None:
        return not is_remote and not (folder / "stage.json").exists()
    format = manifest.stage.get("format") if isinstance(manifest.stage, dict) else None
    is_export = isinstance(format, dict) or format == "tar"
    if is_export and is_remote:
        raise ConfigError(f"{folder} is an export in a store: copy it to a disk to see its records")
    return is_export


def _show_ours(folder: Path, wanted: Sequence[str], count: int, as_json: bool) -> None:
    manifest = open_manifest(folder)
    if not manifest.num_samples:
        console.say_empty(folder, as_json=as_json)
        return
    roles = {role for shard in manifest.shards for role in shard.files}
    if "codes" in roles:
        from shardmill.cli.show_codes import show_codes

        show_codes(folder, wanted, count, as_json)
    elif "spans" in roles:
        from shardmill.cli.show_tokens import show_tokens

        show_tokens(folder, manifest, wanted, count, as_json)
    else:
        from shardmill.cli.show_samples import show_samples

        show_samples(folder, wanted, count, as_json)
