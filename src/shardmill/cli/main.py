"""`shardmill VERB IN OUT`: the verbs by name, each loaded only when it is called.

`--help` must be instant, so this module imports click and nothing else; the one-line help of every
verb stands in the table, and a test compares it with the verb's own.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import traceback
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import click

from shardmill import __version__
from shardmill.errors import ShardmillError, mask

# verb -> (module:command, one line of help), in the order of the pipeline
VERBS: dict[str, tuple[str, str]] = {
    "ingest": ("shardmill.cli.verbs:ingest", "Turn raw folders, tables or tars into shards."),
    "index": ("shardmill.cli.verbs:index", "Index existing tars where they lie."),
    "filter": ("shardmill.cli.verbs:filter_", "Keep the samples that pass; drop duplicates."),
    "frames": ("shardmill.cli.verbs:frames", "Turn videos into frames, or keep them whole."),
    "codes": ("shardmill.cli.verbs:codes", "Turn images into VQ codes, written once."),
    "tokenize": (
        "shardmill.cli.verbs:tokenize",
        "Turn samples or plain text into token shards.",
    ),
    "measure": (
        "shardmill.cli.verbs:measure",
        "Count the tokens of samples for a model that takes pixels.",
    ),
    "plan": ("shardmill.cli.plan:plan", "Plan packs from lengths, balanced across ranks."),
    "pack": ("shardmill.cli.verbs:pack", "Write the packs of a plan to disk."),
    "run": ("shardmill.cli.run:run", "Run all steps of a recipe; --quote tells what they take."),
    "export": (
        "shardmill.cli.verbs:export",
        "Write finished shards for the readers of other projects.",
    ),
    "remove": (
        "shardmill.cli.verbs:remove",
        "Leave samples out by their keys, for those who opt out.",
    ),
    "diff": (
        "shardmill.cli.diff:diff",
        "Tell which samples, tokens and shards changed between two folders.",
    ),
    "why": (
        "shardmill.cli.why:why",
        "Name the packs, documents and source files of a training step.",
    ),
    "work": ("shardmill.cli.work:work", "Work on a job beside other tasks until nothing is left."),
    "status": ("shardmill.cli.status:status", "Tell what is done, failed, skipped and why."),
    "show": ("shardmill.cli.show:show", "Print samples, codes or tokens as a person reads them."),
    "view": (
        "shardmill.cli.view:view",
        "Open a page that shows samples, tokens, packs and progress.",
    ),
    "report": ("shardmill.cli.view:report", "Write what the page shows into one file."),
    "check": ("shardmill.cli.check:check", "Compare every byte with the receipts; repair."),
    "doctor": (
        "shardmill.cli.doctor:doctor",
        "Tell what this machine has and lacks, and how to get it.",
    ),
}


class ReaderGone(Exception):
    """Nobody reads what is printed any more: `shardmill show ... | head`."""


class VerbGroup(click.Group):
    """A group that knows its verbs by name and imports one when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module, _, name = VERBS[cmd_name][0].partition(":")
        command = getattr(import_module(module), name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        near = get_close_matches(args[0], VERBS, n=1)
        if args[0] not in VERBS and near and not args[0].startswith("-"):
            ctx.fail(f"there is no verb {args[0]!r}: did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:  # click would end with 1, as if the verb had failed
            raise ReaderGone from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl([(verb, line) for verb, (_, line) in VERBS.items()])


@click.group(
    cls=VerbGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="shardmill")
@click.option(
    "--trust",
    multiple=True,
    metavar="MODULE:CLASS",
    help="Let the data that is read name this class of yours; repeat for more.",
)
def cli(trust: tuple[str, ...]) -> None:
    """Turn raw images, videos and text into balanced, packed training batches.

    Every verb resumes when it is run again, refuses a folder that was made with other settings, and
    accounts for every sample: in = kept + skipped, by reason.
    """
    if trust:
        from shardmill.model import codec

        codec.trust(*trust)


def main() -> NoReturn:
    """Run the command line; an error of ours, or of the system, is one message and exit code 2."""
    _open_streams()
    # Where colours are not wanted; where they are not seen, click leaves them out by itself.
    color = False if os.environ.get("NO_COLOR") else None
    try:
        code = cli.main(prog_name="shardmill", standalone_mode=False, color=color)
    except click.exceptions.Abort as error:  # Ctrl-C, or a run that a signal stopped
        click.echo(str(error.__cause__ or "") or "stopped", err=True)
        sys.exit(128 + getattr(error.__cause__, "signal_number", signal.SIGINT))
    except click.ClickException as error:
        said = io.StringIO()
        error.show(said)
        click.echo(mask(said.getvalue()), err=True, nl=False)
        sys.exit(error.exit_code)
    except ShardmillError as error:
        _fail(str(error))
    except OSError as error:  # a full disk, a missing right or folder: what the system says is all
        _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except ReaderGone:
        _end_unread()
    except Exception:  # a bug of ours, or of a plugin: all that is known, but no secrets
        click.echo(mask(traceback.format_exc()), err=True)
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)


def _open_streams() -> None:
    """Let the streams that a shell has closed (`2>&-`) lead nowhere.

    Otherwise the next file that is opened would have their number, and take in what is printed.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = Path(os.devnull).open(mode)  # noqa: SIM115 (open for as long as we run)
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)


def _fail(message: str) -> NoReturn:
    from shardmill.cli import output  # with which the other lines of a command come

    output.echo(f"{click.style('error:', fg='red', bold=True)} {mask(message)}", err=True)
    sys.exit(2)


def _end_unread() -> NoReturn:
    """End in silence, with the status that a shell gives to what SIGPIPE killed.

    The signal itself stays ignored: it would also kill a run whose store closes a connection.
    """
    # What is still buffered must not go into the broken pipe when the interpreter ends.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(nowhere, stream.fileno())
    sys.exit(128 + signal.SIGPIPE)
