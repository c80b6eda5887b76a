"""`shardmill check FOLDER`: every byte against the receipts; `--repair` makes the broken anew.

What `check` does with the content of shards: counts, faults, specimens and the list of tars.

What `check --decode` says of the images of samples.

What `check` says of codes besides their bytes: the use of the codebook, and bad images.

`shardmill check --same A B`: whether two folders hold the same, whatever their formats are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from shardmill import humanize as wording
from shardmill.cli import output as console
from shardmill.cli.options import (
    Option,
    RunOptions,
    all_of,
    folder_argument,
    parse_spec,
    run_options,
)
from shardmill.cli.running import run_and_report
from shardmill.errors import ConfigError, ShardmillError
from shardmill.formats.exported import open_reader
from shardmill.formats.reader import Reader
from shardmill.machine import count_cpus
from shardmill.model.codec import from_plain
from shardmill.model.stage import Stage
from shardmill.run.plan import check_fresh
from shardmill.shards.ledger import Ledger, open_manifest
from shardmill.stages.check.folder import Verdict, check_folder, repair
from shardmill.stages.codereport import codebook_use, outliers, reconstruct, spread_keys
from shardmill.stages.same import ORDER, Comparison, compare

if TYPE_CHECKING:
    from shardmill.model.space import TokenSpace
    from shardmill.stages.check.content import ContentReport, DecodeReport, ShardReport


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentOptions:
    """What is asked of the content."""

    content: bool | None
    pairs: bool
    max_tokens: int | None
    num_patches: int | None
    space: str
    dump: Path | None
    dump_count: int
    list_tars: bool

    @classmethod
    def taken_from(cls, flags: dict[str, Any]) -> ContentOptions:
        """Remove the flags of `content_options` from a command's flags, and return them."""
        return cls(**{field.name: flags.pop(field.name) for field in fields(cls)})


content_options: Option = all_of(
    click.option(
        "--content/--no-content",
        default=None,
        help="Check what documents, tokens, masks and images say.  [default: all but remote tars]",
    ),
    click.option("--pairs", is_flag=True, help="Every sample needs a medium and a text."),
    click.option("--max-tokens", type=click.IntRange(1), help="Tokens of a row or pack, at most."),
    click.option("--num-patches", type=click.IntRange(1), help="Tokens of every image of a pack."),
    click.option(
        "--space",
        metavar="FIELD=VALUE,...",
        default="",
        help="Token space of packs by others.  [default: Llama-2 with im_patch, im_start, im_end]",
    ),
    click.option(
        "--dump",
        type=click.Path(file_okay=False, path_type=Path),
        help="Write a few samples or packs into this folder, as text and images.",
    ),
    click.option("--dump-count", type=click.IntRange(1), default=8, show_default=True),
    click.option(
        "--list",
        "list_tars",
        is_flag=True,
        help="Write shardlist.json and .pkl with {url, nsamples} of every tar.",
    ),
)


def check_content_of(folder: Path, options: ContentOptions, workers: int) -> ContentReport | None:
    """Return what was found in a finished folder; None if nobody wants to know."""
    from shardmill.stages.check.content import check_content
    from shardmill.stages.check.findings import Limits

    if options.list_tars and not _holds_tars(folder):
        raise ConfigError(f"{folder} holds no tars that could be listed")
    if options.content is False or not (folder / "manifest.json").exists():
        return None
    limits = Limits(
        max_tokens=options.max_tokens,
        num_patches=options.num_patches,
        space=_space(options.space),
        pairs=options.pairs,
        remote=bool(options.content),
    )
    return check_content(folder, limits, workers=workers)


def write_extras(folder: Path, options: ContentOptions, *, is_good: bool) -> dict[str, Any]:
    """Write specimens and, if the content is good, the list of tars; return where they are."""
    made: dict[str, Any] = {}
    if options.dump is not None:
        from shardmill.stages.check.specimens import dump_specimens

        space = _space(options.space)
        found = dump_specimens(folder, options.dump, options.dump_count, space)
        made["dumped"] = [str(path) for path in found]
    if options.list_tars and is_good:
        from shardmill.formats.wids import write_shard_list

        made["lists"] = [str(path) for path in write_shard_list(folder)]
    return made


def content_as_plain(report: ContentReport) -> dict[str, Any]:
    """Return the report for --json, shard by shard."""
    return {
        "content": report.counts,
        "num_faults": report.num_faults,
        "shards": [
            {
                "name": shard.name,
                "nsamples": shard.num_samples,
                **shard.counts,
                "faults": [{"key": fault.key, "what": fault.what} for fault in shard.faults],
            }
            for shard in report.shards
        ],
    }


def print_content(report: ContentReport) -> None:
    """Print what all shards hold together, and what is wrong with each that is."""
    if report.counts:
        held = ", ".join(f"{wording.count(n)} {name}" for name, n in report.counts.items())
        console.facts([("holds", held), ("in", _sizes(report))])
    broken = [shard for shard in report.shards if shard.num_faults]
    if broken:
        where = wording.plural(len(broken), "shard")
        what = wording.plural(report.num_faults, "fault")
        console.say("✗", f"{what} in {where}", colour=console.BAD)
    for shard in broken:
        _print_faults(shard)


def print_extras(made: dict[str, Any]) -> None:
    """Print where specimens and lists are."""
    if "dumped" in made:
        num_made = wording.plural(len(made["dumped"]), "specimen")
        where = f" in {Path(made['dumped'][0]).parent}" if made["dumped"] else ""
        console.say("✓", f"{num_made}{where}")
    for path in made.get("lists", ()):
        console.say("✓", path)


def _holds_tars(folder: Path) -> bool:
    roles = [shard.files.keys() for shard in open_manifest(folder).shards]
    return all("tar" in files or ("idx" in files and "spans" not in files) for files in roles)


def _sizes(report: ContentReport) -> str:
    sizes = [shard.num_samples for shard in report.shards]
    if not sizes or min(sizes) == max(sizes):
        return wording.plural(len(sizes), "shard") + "".join(f" of {n:,}" for n in sizes[:1])
    return f"{wording.plural(len(sizes), 'shard')} of {min(sizes):,} to {max(sizes):,}"


def _print_faults(shard: ShardReport) -> None:
    for fault in shard.faults:
        place = f"{shard.name}, {fault.key}" if fault.key else shard.name
        click.echo(f"  {place}: {fault.what}")
    if shard.num_faults > len(shard.faults):
        click.echo(f"  {shard.name}: and {shard.num_faults - len(shard.faults):,} more")


def _space(text: str) -> TokenSpace | None:
    from shardmill.model.space import TokenSpace

    return parse_spec(text, TokenSpace, where="--space") if text else None


MAX_PRINTED = 20


def decode_images(folder: Path, count: int, workers: int) -> DecodeReport:
    """Decode so many images of a folder of samples."""
    from shardmill.stages.check.content import check_decoding

    return check_decoding(folder, count, workers=workers)


def decoding_as_plain(report: DecodeReport) -> dict[str, Any]:
    """Return the report for --json."""
    return {
        "images": report.num_images,
        "decoded": report.num_decoded,
        "num_broken_images": report.num_broken,
        "broken_images": [asdict(image) for image in report.broken],
    }


def print_decoding(report: DecodeReport) -> None:
    """Print how many images were decoded, and those that are broken."""
    of_all = f"{report.num_decoded:,} of {wording.plural(report.num_images, 'image')}"
    console.facts([("decoded", of_all)])
    if not report.num_broken:
        return
    broken = wording.plural(report.num_broken, "broken image")
    console.say("✗", f"{broken} of {report.num_decoded:,} decoded", colour=console.BAD)
    lines = [
        f"{image.tar}, sample {image.key}, {image.medium} at byte {image.offset}: {image.what}"
        for image in report.broken
    ]
    console.listed(lines, MAX_PRINTED)


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
    help="Decode so many images and name those of samples that are cut off or broken, those of "
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
    """What was found: in bytes, content, codes, images; and where specimens and lists are."""

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
        decoding = decode_images(folder, decode, workers)
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

    return report_codes(folder, num_decoded)


def _holds_codes(folder: Path) -> bool:
    return any("codes" in shard.files for shard in open_manifest(folder).shards)


def _print(folder: Path, found: _Found, quick: bool) -> None:
    _print_verdict(folder, found.verdict, quick)
    if found.codes:
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


def report_codes(folder: Path, num_decoded: int) -> dict[str, Any]:
    """Return the use of the codebook and, of images decoded again, those that come out badly."""
    use = codebook_use(folder)
    report: dict[str, Any] = {
        "codes": len(use.counts),
        "dead_codes": use.num_dead,
        "perplexity": round(use.perplexity, 1),
    }
    if num_decoded:
        images = list(reconstruct(folder, spread_keys(folder, num_decoded)))
        report["decoded"] = len(images)
        report["psnr"] = round(sum(p.psnr for p in images) / max(1, len(images)), 2)
        report["outliers"] = {f"{p.key} {p.medium}": round(p.psnr, 2) for p in outliers(images)}
    return report


def print_codes(report: dict[str, Any]) -> None:
    """Print the report of `report_codes`."""
    used = report["codes"] - report["dead_codes"]
    rows = [
        (
            "codebook",
            f"{used:,} of {report['codes']:,} codes occur, {report['dead_codes']:,} never",
        ),
        ("perplexity", f"{report['perplexity']:,}"),
    ]
    if "decoded" in report:
        rows.append(("decoded", f"{report['decoded']:,} images, {report['psnr']} dB on average"))
        rows += [("outlier", f"{name}: {value} dB") for name, value in report["outliers"].items()]
    console.facts(rows)


def report_same(
    first: str, second: str, codes_dir: str | None, ignored: Sequence[str], *, as_json: bool
) -> bool:
    """Compare two places, print what was found, and return whether they are the same."""
    ignoring = frozenset(aspect for aspect in ORDER if aspect in ignored)
    found = compare(*_open_both(first, second, codes_dir), ignoring=ignoring)
    if as_json:
        console.print_json({**asdict(found), "same": found.same})
    else:
        _print_comparison(first, second, found)
    return found.same


def _open_both(first: str, second: str, codes_dir: str | None) -> tuple[Reader, Reader]:
    """Open both sides; foreign tokens that do not say their space have that of the other."""
    spaces = [open_reader(place, codes_dir=codes_dir).token_space() for place in (first, second)]
    is_ours = [(Path(place) / "stage.json").exists() for place in (first, second)]
    lent = [None if own else spaces[1 - n] for n, own in enumerate(is_ours)]
    return (
        open_reader(first, space=lent[0], codes_dir=codes_dir),
        open_reader(second, space=lent[1], codes_dir=codes_dir),
    )


def _print_comparison(first: str, second: str, found: Comparison) -> None:
    if found.difference is None:
        console.say("✓", f"{first} and {second} hold the same")
    else:
        console.say("✗", f"{first} and {second} differ", colour=console.BAD)
        name = f" ({found.difference.key})" if found.difference.key else ""
        where = f"record {found.difference.number:,}{name}"
        console.facts([("first at", where), (found.difference.aspect, found.difference.what)])
    amount = wording.plural(found.num_records, "record")
    if found.num_tokens:
        amount += f", {wording.plural(found.num_tokens, 'token')}"
    rows = [("compared", ", ".join(found.compared)), ("equal", amount)]
    for place, aspects in ((first, found.only_first), (second, found.only_second)):
        if aspects:
            rows.append(("not compared", f"{', '.join(aspects)}: only {place} has a place for it"))
    console.facts(rows)
