"""`shardmill check FOLDER`: every byte against the receipts; `--repair` makes the broken anew."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from shardmill import wording
from shardmill.cli import console
from shardmill.cli.check_content import (
    ContentOptions,
    check_content_of,
    content_as_plain,
    content_options,
    print_content,
    print_extras,
    write_extras,
)
from shardmill.cli.check_decode import decode_pictures, decoding_as_plain, print_decoding
from shardmill.cli.options import RunOptions, folder_argument, run_options
from shardmill.cli.running import run_and_report
from shardmill.errors import ShardmillError
from shardmill.io.receipts import Ledger, open_manifest
from shardmill.model.codec import from_plain
from shardmill.model.stage import Stage
from shardmill.run.cpus import count_cpus
from shardmill.run.plan import check_fresh
from shardmill.stages.check import Verdict, check_folder, repair
from shardmill.stages.same import ORDER

if TYPE_CHECKING:
    from shardmill.stages.checkcontent import ContentReport
    from shardmill.stages.checkdecode import DecodeReport

MAX_LISTED = 20


@click.command()
@folder_argument("folder")
@click.option("--quick", is_flag=True, help="Compare sizes only, not every byte.")
@click.option("--repair", "repairing", is_flag=True, help="Do the broken units again.")
@click.option(
    "--decode",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Decode so many pictures and name those of samples that are cut off or broken, those of "
    "codes that come out badly.",
)
@click.option(
    "--same",
    metavar="OTHER",
    help="Compare samples, tokens, masks and codes with another folder, of whatever format.",
)
@click.option(
    "--codes",
    "codes_dir",
    type=click.Path(exists=True, file_okay=False),
    help="With --same: the codes of the folder of samples.",
)
@click.option(
    "--ignore",
    "ignored",
    multiple=True,
    type=click.Choice(ORDER),
    help="With --same: what need not be the same, such as keys.",
)
@content_options
@run_options
def check(
    folder: Path,
    quick: bool,
    repairing: bool,
    decode: int,
    same: str | None,
    codes_dir: str | None,
    ignored: tuple[str, ...],
    **run: Any,
) -> None:
    """Compare every byte with the receipts; repair.

    \b
        shardmill check tokens
        shardmill check shards --decode 1000
        shardmill check --same tokens megatron
    """
    # What is broken was within its budget when it was made, and will be again.
    options = replace(RunOptions.taken_from(run), max_skip_rate=1.0)
    if same is not None:
        from shardmill.cli.same import report_same

        if not report_same(same, str(folder), codes_dir, ignored, as_json=options.as_json):
            click.get_current_context().exit(1)
        return
    workers = count_cpus() if options.workers is None else options.workers
    found = _check(folder, ContentOptions.taken_from(run), quick, decode, workers)
    repairing = repairing and not found.verdict.sound
    if not options.as_json:
        _print(folder, found, quick)
    elif not repairing:  # or the run that repairs would print a second object
        console.print_json(_as_plain(found))
    if repairing:
        stage = stage_of(folder)
        # Before a unit is given up that the inputs of today could not give back.
        check_fresh(Ledger(folder), stage)
        repair(found.verdict)
        run_and_report(stage, folder, options, next_step=f"shardmill check {folder}")
    elif not found.is_good:
        click.get_current_context().exit(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """What was found: in bytes, content, codes, pictures; and where specimens and lists are."""

    verdict: Verdict
    content: ContentReport | None
    codes: dict[str, Any]
    decoding: DecodeReport | None
    made: dict[str, Any]

    @property
    def is_good(self) -> bool:
        """Whether all bytes are as they were, and say what they must."""
        broken = self.decoding is not None and self.decoding.num_broken > 0
        faulty = self.content is not None and self.content.num_faults > 0
        return self.verdict.sound and not faulty and not broken


def _check(folder: Path, wanted: ContentOptions, quick: bool, decode: int, workers: int) -> _Found:
    verdict = check_folder(folder, deep=not quick)
    content = None if quick else check_content_of(folder, wanted, workers)
    codes = _report_codes(folder, decode) if verdict.sound and not quick else {}
    decoding = None
    if decode and verdict.sound and not _holds_codes(folder):
        decoding = decode_pictures(folder, decode, workers)
    found = _Found(verdict=verdict, content=content, codes=codes, decoding=decoding, made={})
    if not verdict.sound:
        return found
    return replace(found, made=write_extras(folder, wanted, is_good=found.is_good))


def _as_plain(found: _Found) -> dict[str, Any]:
    content = {} if found.content is None else content_as_plain(found.content)
    sound = {**asdict(found.verdict), "sound": found.is_good}
    decoding = {} if found.decoding is None else decoding_as_plain(found.decoding)
    return {**sound, **found.codes, **content, **decoding, **found.made}


def stage_of(folder: Path) -> Stage:
    """Return the stage that made a folder, rebuilt from its stage.json."""
    record = Ledger(folder).read_stage()
    if record is None:
        raise ShardmillError(f"{folder} is not a folder of shardmill: it has no stage.json")
    return cast(Stage, from_plain(record.stage, where=f"{folder}/stage.json"))


def _report_codes(folder: Path, num_decoded: int) -> dict[str, Any]:
    if not _holds_codes(folder):
        return {}
    # It loads torch, which takes longer than most checks.
    from shardmill.cli.check_codes import report_codes

    return report_codes(folder, num_decoded)


def _holds_codes(folder: Path) -> bool:
    return any("codes" in shard.files for shard in open_manifest(folder).shards)


def _print(folder: Path, found: _Found, quick: bool) -> None:
    _print_verdict(folder, found.verdict, quick)
    if found.codes:
        from shardmill.cli.check_codes import print_codes

        print_codes(found.codes)
    if found.content is not None:
        print_content(found.content)
    if found.decoding is not None:
        print_decoding(found.decoding)
    print_extras(found.made)


def _print_verdict(folder: Path, verdict: Verdict, quick: bool) -> None:
    compared = "sizes" if quick else "bytes"
    files = f"{wording.plural(verdict.num_files, 'file')}, {wording.size(verdict.num_bytes)}"
    if verdict.sound:
        console.say("✓", f"{folder} is sound: {files}, all {compared} as the receipts say")
        return
    if not verdict.problems:
        missing = wording.plural(verdict.num_missing, "unit")
        console.say(
            "…",
            f"{folder}: {missing} not done yet, the rest is sound: {files}",
            colour=console.HINT,
        )
        return
    console.say(
        "✗", f"{folder}: {wording.plural(len(verdict.problems), 'problem')}", colour=console.BAD
    )
    console.listed((f"{p.path}: {p.what}" for p in verdict.problems), MAX_LISTED)
    if verdict.broken_units:  # doing a unit again gives a sample no other key
        broken = wording.plural(len(verdict.broken_units), "broken unit")
        console.hint(f"shardmill check {folder} --repair   does {broken} again")
