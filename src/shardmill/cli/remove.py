"""`shardmill remove FOLDER OUT --keys FILE`: a folder without the samples of a list of keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from shardmill import humanize as wording
from shardmill.cli import output as console
from shardmill.cli.options import RunOptions, folder_argument, run_options
from shardmill.cli.running import run_and_report
from shardmill.stages.remove import (
    LEVELS_BELOW,
    MAX_FOLDERS,
    SUMMARY_NAME,
    RemoveSamples,
    find_downstream,
)
from shardmill.storage.text import read_json

MAX_LISTED = 5


@click.command()
@folder_argument("folder")
@click.argument("out", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--keys",
    "keys_path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    required=True,
    help="A text file with a key a line.",
)
@run_options
def remove(folder: Path, out: Path, keys_path: Path, **run: Any) -> None:
    """Leave samples out by their keys, for those who opt out.

    FOLDER holds samples, codes, tokens or packs. Shards that hold none of the keys are linked, the
    others are written again; OUT/rejects names every sample that went, and from which shard, and
    OUT/removal.json sums it up.

    \b
        shardmill remove shards shards-2 --keys optout.txt
        shardmill diff shards shards-2
    """
    options = RunOptions.taken_from(run)
    stage = RemoveSamples(input_dir=folder.absolute(), keys_path=keys_path.absolute())
    run_and_report(stage, out, options, next_step=f"shardmill diff {folder} {out}")
    if not options.as_json:
        _print_summary(read_json(out / SUMMARY_NAME))
        _print_downstream(folder, out)


def _print_summary(summary: dict[str, Any]) -> None:
    rewritten, linked = summary["shards_rewritten"], summary["shards_linked"]
    shards = f"{wording.plural(rewritten, 'shard')} written again, {wording.count(linked)} linked"
    rows, missing = [("shards", shards)], summary["not_there"]
    if missing:
        listed = ", ".join(missing[:MAX_LISTED]) + (", ..." if len(missing) > MAX_LISTED else "")
        rows.append(("not there", f"{wording.plural(len(missing), 'key')}: {listed}"))
    console.facts(rows)


def _print_downstream(folder: Path, out: Path) -> None:
    found = find_downstream(folder)
    for path in found.folders:
        if path != out.resolve():
            name = path.relative_to(found.looked_in)
            console.hint(f"{name} was made from {folder}: remove them there too")
    part = "" if found.saw_all else f", of which {MAX_FOLDERS:,} folders were seen"
    where = f"{found.looked_in} and {LEVELS_BELOW} levels below{part}"
    console.facts([("made from it", f"looked for in {where}; not elsewhere")])
