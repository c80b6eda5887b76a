"""`shardmill remove FOLDER OUT --keys FILE`: a folder without the samples of a list of keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import shardmill as sm
from shardmill import humanize
from shardmill.api.data import Data
from shardmill.cli import output
from shardmill.cli.options import FILE, folder_argument, run_options
from shardmill.cli.report import call, print_data

MAX_LISTED = 5


@click.command()
@folder_argument("src", metavar="FOLDER")
@click.argument("out", type=click.Path(file_okay=False, path_type=Path))
@click.option("--keys", type=FILE, required=True, help="A text file with a key a line.")
@run_options
def remove(src: Path, out: Path, **flags: Any) -> None:
    """Leave samples out by their keys, for those who opt out.

    FOLDER holds samples, codes, tokens or packs. Shards that hold none of the keys are linked, the
    others are written again; OUT/rejects names every sample that went, and from which shard, and
    OUT/removal.json sums it up.

    \b
        shardmill remove shards shards-2 --keys optout.txt
        shardmill diff shards shards-2
    """
    hint = f"shardmill diff {src} {out}"
    call(sm.remove, src, out, next_step=hint, report=print_removal, **flags)


def print_removal(made: Data[Any], as_json: bool) -> None:
    """Print the run, what was rewritten, and which folders were made from the one that it read."""
    from shardmill.stages.remove import SUMMARY_NAME
    from shardmill.storage.text import read_json

    print_data(made, as_json)
    if as_json or not made.complete:
        return
    summary = read_json(made.path / SUMMARY_NAME)
    rewritten, linked = summary["shards_rewritten"], summary["shards_linked"]
    shards = f"{humanize.plural(rewritten, 'shard')} written again, {humanize.count(linked)} linked"
    rows, missing = [("shards", shards)], summary["not_there"]
    if missing:
        listed = ", ".join(missing[:MAX_LISTED]) + (", ..." if len(missing) > MAX_LISTED else "")
        rows.append(("not there", f"{humanize.plural(len(missing), 'key')}: {listed}"))
    output.facts(rows)
    _print_downstream(made.spec.input_dir, made.path)


def _print_downstream(folder: Path, out: Path) -> None:
    from shardmill.stages.remove import LEVELS_BELOW, MAX_FOLDERS, find_downstream

    found = find_downstream(folder)
    for path in found.folders:
        if path != out.resolve():
            name = path.relative_to(found.looked_in)
            output.hint(f"{name} was made from {humanize.place(folder)}: remove them there too")
    part = "" if found.saw_all else f", of which {MAX_FOLDERS:,} folders were seen"
    where = f"{found.looked_in} and {LEVELS_BELOW} levels below{part}"
    output.facts([("made from it", f"looked for in {where}; not elsewhere")])
