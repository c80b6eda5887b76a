"""`shardmill view FOLDER`: a page in the browser over a folder.

`shardmill report FOLDER -o report.html`: the page as one file, to keep.
"""

from __future__ import annotations

import os
import secrets
import sys
import webbrowser
from pathlib import Path
from urllib.parse import quote

import click

from shardmill import humanize
from shardmill.cli import output
from shardmill.cli.options import allow_option, folder_argument, json_option, place_argument
from shardmill.errors import ConfigError, need
from shardmill.storage.files import write_file

DEFAULT_PORT = 8642


@click.command()
@place_argument("folder")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help=f"Port on 127.0.0.1; 0 takes any.  [default: {DEFAULT_PORT}, or any if it is in use]",
)
@click.option("--no-open", is_flag=True, help="Print the address, but open no browser.")
@allow_option
@click.option(
    "--reconstruct",
    is_flag=True,
    help="Load the weights that made codes, and show what the codes decode to.",
)
@json_option
def view(
    folder: Path,
    port: int | None,
    no_open: bool,
    allowed: tuple[str, ...],
    reconstruct: bool,
    as_json: bool,
) -> None:
    """Open a page that shows samples, tokens, packs and progress.

    PLACE is a shardmill folder, or one that holds several: then the page starts with a map of the
    pipeline, which is updated while stages run. A plan is shown with what lies beside it. The page
    only reads, answers only this machine, and needs the token in its address.

    \b
        shardmill view .                 all stages under this folder
        shardmill view packs --no-open   print the address only
    """
    need("starlette", extra="view")
    need("uvicorn", extra="view")
    from shardmill.view.context import Context
    from shardmill.view.server import bind, make_app, serve

    # Bound before anything is printed, so that the address works when somebody reads it.
    bound = bind(port, DEFAULT_PORT)
    number = bound.getsockname()[1]
    token = secrets.token_urlsafe(24)
    address = f"http://127.0.0.1:{number}/?token={token}"
    root = folder
    if folder.is_file():
        # A plan is drawn with the lengths and tokens that it was made from.
        root, address = folder.parent, f"{address}#/item/{quote(folder.name, safe='')}"
    context = Context(root, allowed, decodes=reconstruct)
    if root != folder and folder.name not in context.items():
        raise ConfigError(f"{folder} is no plan and no table of lengths: name one, or a folder")
    if as_json:
        output.print_json({"address": address, "port": number, "path": str(folder)})
    else:
        output.say("✓", f"{folder} is shown at {click.style(address, bold=True)}")
        output.hint("Ctrl-C ends it; the address works only on this machine")
    app = make_app(context, token, number)
    if not no_open and not as_json and _has_screen():
        webbrowser.open(address)
    serve(app, bound)


def _has_screen() -> bool:
    """Whether a browser would open a window; on a server it might take over the terminal."""
    if sys.platform in ("darwin", "win32"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


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

    The file holds counts, plots, packs and thumbnails, needs no server and loads nothing from
    outside.

    \b
        shardmill report . -o report.html
    """
    need("starlette", extra="view")
    from shardmill.view.context import Context
    from shardmill.view.report import make_report

    content = make_report(Context(folder, allowed))
    write_file(out, content)
    if as_json:
        output.print_json({"path": str(out.absolute()), "num_bytes": len(content)})
    else:
        output.say("✓", f"{out}: {humanize.size(len(content))}, complete in itself")
