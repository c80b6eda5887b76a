"""`shardmill report FOLDER -o report.html`: the page as one file, for a paper trail."""

from __future__ import annotations

from pathlib import Path

import click

from shardmill import wording
from shardmill.cli import console
from shardmill.cli.options import allow_option, folder_argument, json_option
from shardmill.extras import need
from shardmill.io.atomic import write_file


@click.command()
@folder_argument("folder")
@click.option(
    "--out",
    "-o",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("report.html"),
    show_default=True,
    help="The file to write.",
)
@allow_option
@json_option
def report(folder: Path, out: Path, allowed: tuple[str, ...], as_json: bool) -> None:
    """Write what the page shows into one file.

    The file holds books, plots, packs and small pictures, needs no server and loads nothing from
    outside.

    \b
        shardmill report . -o report.html
    """
    need("starlette", extra="view")
    from shardmill.view.desk import Desk
    from shardmill.view.library import Library
    from shardmill.view.report import make_report

    content = make_report(Desk(Library(folder, allowed)))
    write_file(out, content)
    if as_json:
        console.print_json({"report": str(out), "bytes": len(content)})
    else:
        console.say("✓", f"{out}: {wording.size(len(content))}, complete in itself")
