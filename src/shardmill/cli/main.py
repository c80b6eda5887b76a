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
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import click

from shardmill import __version__, humanize
from shardmill.errors import ShardmillError, mask, missing_extra, near

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
    "calibrate": (
        "shardmill.cli.plan:calibrate",
        "Measure on this GPU what packs cost to train on, for plan --prices.",
    ),
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


@contextmanager
def _noticing() -> Iterator[None]:
    """Turn a broken pipe into `ReaderGone`: click would end with 1, as if the verb had failed."""
    try:
        yield
    except BrokenPipeError as error:
        raise ReaderGone from error


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
        if args[0] not in VERBS and not args[0].startswith("-"):
            ctx.fail(f"there is no verb {args[0]!r}{near(args[0], VERBS)}")
        return super().resolve_command(ctx, args)

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        with _noticing():  # --help prints here
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with _noticing():
            return super().invoke(ctx)

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
    """Run the command line; an error of ours, or of the system, is one message and an exit code.

    With --json it is one object on standard output, where the result would be.
    """
    _open_streams()
    # Where colours are not wanted; where they are not seen, click leaves them out by itself.
    color = False if os.environ.get("NO_COLOR") else None
    try:
        code = cli.main(prog_name="shardmill", standalone_mode=False, color=color)
    except ReaderGone:
        code = _end_unread()
    except Exception as error:
        try:
            code = _tell(error)
        except BrokenPipeError:
            code = _end_unread()
    sys.exit(code if isinstance(code, int) else 0)


def _tell(error: Exception) -> int:
    """Print an error, as a person or a program wants it, and return the exit code."""
    error = missing_extra(error) or error
    told: BaseException = error
    if isinstance(error, click.exceptions.Abort):  # Ctrl-C, or a run that a signal stopped
        told = error.__cause__ or KeyboardInterrupt()
        shown = message = str(told) or "stopped; to go on, run the same command again"
        code = 128 + getattr(told, "signal_number", signal.SIGINT)
    elif isinstance(error, click.ClickException):
        said = io.StringIO()
        error.show(said)
        shown, message, code = said.getvalue().rstrip(), error.format_message(), error.exit_code
        told = click.UsageError(message)  # of whatever kind it is
        if isinstance(error, click.UsageError) and error.ctx is not None:
            told.hint = f"{error.ctx.command_path} --help"  # type: ignore[attr-defined]
    elif isinstance(error, ShardmillError):
        message = "\n".join([str(error), *getattr(error, "__notes__", ())])
        shown, code = _marked("\n".join(filter(None, (message, error.hint)))), error.exit_code
    elif isinstance(error, OSError):  # a full disk, a missing right or folder: the system says it
        message = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        shown, code = _marked(message), 2
    else:  # a bug of ours, or of a plugin: all that is known, but no secrets
        shown, code = traceback.format_exc(), 1
        message = shown
    from shardmill.cli import output  # with which the other lines of a command come

    if "--json" in sys.argv:
        output.print_json({"error": output.error_to_plain(told, message)})
    else:
        output.echo(mask(humanize.typed(shown)), err=True)
    return code


def _marked(message: str) -> str:
    return f"{click.style('error:', fg='red', bold=True)} {message}"


def _open_streams() -> None:
    """Let the streams that a shell has closed (`2>&-`) lead nowhere.

    Otherwise the next file that is opened would have their number, and take in what is printed.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = Path(os.devnull).open(mode)  # noqa: SIM115 (open for as long as we run)
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)


def _end_unread() -> int:
    """Say nothing more, and return the status that a shell gives to what SIGPIPE killed.

    The signal itself stays ignored: it would also kill a run whose store closes a connection.
    """
    # What is still buffered must not go into the broken pipe when the interpreter ends.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(nowhere, stream.fileno())
    return 128 + signal.SIGPIPE
