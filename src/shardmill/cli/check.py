"""`shardmill check FOLDER`: every byte against the receipts; `--repair` makes the broken anew.

Beside the bytes it says what the shards hold, how codes use their codebook, which images are
broken, and with `--same` whether two places hold the same, whatever their formats are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import shardmill as sm
from shardmill import humanize
from shardmill.api.check import CheckReport, CodesReport
from shardmill.cli import output
from shardmill.cli.options import FOLDER, Option, all_of, place_argument, run_options
from shardmill.cli.report import call, defaults_of, print_run
from shardmill.stages.same import ORDER, Comparison

if TYPE_CHECKING:
    from shardmill.stages.check.content import ContentReport, DecodeReport, ShardReport
    from shardmill.stages.check.folder import Verdict

MAX_LISTED = 20

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
        help="Token space of packs by others.  [default: Llama-2 with im_patch, im_start, im_end]",
    ),
    click.option(
        "--dump",
        type=click.Path(file_okay=False, path_type=Path),
        help="Write a few samples or packs into this folder, as text and images.",
    ),
    click.option("--dump-count", type=click.IntRange(1)),
    click.option(
        "--list-tars",
        is_flag=True,
        help="Write shardlist.json and .pkl with {url, nsamples} of every tar.",
    ),
)


@click.command(context_settings=defaults_of(sm.check))
@place_argument("src")
@click.option("--quick", is_flag=True, help="Compare sizes only, not every byte.")
@click.option("--repair", is_flag=True, help="Do the broken units again.")
@click.option(
    "--decode",
    type=click.IntRange(0),
    help="Decode so many images and name those of samples that are cut off or broken, those of "
    "codes that come out badly.",
)
@click.option(
    "--same",
    metavar="OTHER",
    help="Compare samples, tokens, masks and codes with another folder, of whatever format.",
)
@click.option("--codes", type=FOLDER, help="With --same: the codes of the folder of samples.")
@click.option(
    "--ignore",
    multiple=True,
    type=click.Choice(ORDER),
    help="With --same: what need not be the same, such as keys.",
)
@content_options
@run_options
def check(src: Path, **flags: Any) -> None:
    """Compare every byte with the receipts; repair.

    PLACE is a folder of ours, one that holds several, which are all checked, a plan, an export, or
    tokens of another program, which have no receipts and are read whole.

    \b
        shardmill check tokens
        shardmill check shards --decode 1000
        shardmill check --same tokens megatron
    """
    found = call(sm.check, src, report=print_check, **flags)
    if not found.sound:
        raise click.exceptions.Exit(1)


def print_check(found: CheckReport, as_json: bool) -> None:
    """Print what was found; the run that repaired stands for what it made good."""
    if as_json and found.repaired is not None:
        print_run(found.repaired, as_json)
    elif as_json:
        output.print_json(_to_plain(found))
    elif found.comparison is not None:
        _print_comparison(found, found.comparison)
    elif found.parts is not None:
        for part in found.parts:
            print_check(part, as_json)
    else:
        _print_findings(found)
        if found.repaired is not None:
            print_run(found.repaired, as_json)
            output.hint(f"shardmill check {humanize.place(found.path)}")


def _to_plain(found: CheckReport) -> dict[str, Any]:
    if found.comparison is not None:
        pixels = {"pixels": _pixels(found)} if _pixels(found) else {}
        return {**asdict(found.comparison), "same": found.comparison.same, **pixels}
    if found.parts is not None:
        stages = [_to_plain(part) for part in found.parts]
        return {"path": str(found.path), "sound": found.sound, "stages": stages}
    if found.problems is not None:
        return {"path": str(found.path), "sound": found.sound, "problems": list(found.problems)}
    assert found.verdict is not None
    plain: dict[str, Any] = {**output.to_plain(found.verdict), "sound": found.sound}
    if found.codes is not None:
        plain |= {
            "num_codes": found.codes.num_codes,
            "num_dead_codes": found.codes.num_dead,
            "perplexity": found.codes.perplexity,
        }
        if found.codes.num_decoded is not None:
            decoded = {"num_decoded": found.codes.num_decoded, "psnr": found.codes.psnr}
            plain |= decoded | {"outliers": found.codes.outliers}
    if found.content is not None:
        plain |= _content_to_plain(found.content)
    if found.decoding is not None:
        plain |= {
            "num_images": found.decoding.num_images,
            "num_decoded": found.decoding.num_decoded,
            "num_broken_images": found.decoding.num_broken,
            "broken_images": [asdict(image) for image in found.decoding.broken],
        }
    written = {"dumped": found.dumped, "lists": found.lists}
    return plain | {name: [*map(str, paths)] for name, paths in written.items() if paths}


def _content_to_plain(report: ContentReport) -> dict[str, Any]:
    return {
        "content": report.counts,
        "num_faults": report.num_faults,
        "shards": [
            {
                "name": shard.name,
                "num_samples": shard.num_samples,
                **shard.counts,
                "faults": [{"key": fault.key, "what": fault.what} for fault in shard.faults],
            }
            for shard in report.shards
        ],
    }


def _print_findings(found: CheckReport) -> None:
    if found.problems is not None:
        _print_problems(humanize.place(found.path), found.problems)
        return
    assert found.verdict is not None
    _print_verdict(humanize.place(found.path), found.verdict, "sizes" if found.quick else "bytes")
    if found.codes is not None:
        _print_codes(found.codes)
    if found.content is not None:
        _print_content(found.content)
    if found.decoding is not None:
        _print_decoding(found.decoding)
    if found.dumped is not None:
        num_made = humanize.plural(len(found.dumped), "specimen")
        where = f" in {humanize.place(found.dumped[0].parent)}" if found.dumped else ""
        output.say("✓", f"{num_made}{where}")
    for path in found.lists or ():
        output.say("✓", humanize.place(path))


def _print_problems(place: str, problems: Sequence[str]) -> None:
    if not problems:
        output.say("✓", f"{place} can be read from its first byte to its last")
        return
    output.say("✗", f"{place}: {humanize.plural(len(problems), 'problem')}", colour=output.BAD)
    output.listed(problems, MAX_LISTED)


def _print_verdict(folder: str, verdict: Verdict, compared: str) -> None:
    files = f"{humanize.plural(verdict.num_files, 'file')}, {humanize.size(verdict.num_bytes)}"
    if verdict.sound:
        output.say("✓", f"{folder} is sound: {files}, all {compared} as the receipts say")
        if verdict.uncovered:
            output.facts([("not covered", ", ".join(verdict.uncovered[:MAX_LISTED]))])
    elif not verdict.problems:
        missing = humanize.plural(verdict.num_missing, "unit")
        text = f"{folder}: {missing} not done yet, the rest is sound: {files}"
        output.say("…", text, colour=output.HINT)
    else:
        problems = humanize.plural(len(verdict.problems), "problem")
        output.say("✗", f"{folder}: {problems}", colour=output.BAD)
        output.listed((f"{p.path}: {p.what}" for p in verdict.problems), MAX_LISTED)
        if verdict.broken_units:  # doing a unit again gives a sample no other key
            broken = humanize.plural(len(verdict.broken_units), "broken unit")
            output.hint(f"shardmill check {folder} --repair   does {broken} again")


def _print_codes(codes: CodesReport) -> None:
    used = codes.num_codes - codes.num_dead
    occur = f"{used:,} of {codes.num_codes:,} codes occur, {codes.num_dead:,} never"
    rows = [("codebook", occur), ("perplexity", f"{codes.perplexity:,}")]
    if codes.num_decoded is not None:
        rows.append(("decoded", f"{codes.num_decoded:,} images, {codes.psnr} dB on average"))
        rows += [("outlier", f"{name}: {dB} dB") for name, dB in (codes.outliers or {}).items()]
    output.facts(rows)


def _print_content(report: ContentReport) -> None:
    """Print what all shards hold together, and what is wrong with each that is."""
    if report.counts:
        held = ", ".join(f"{humanize.count(n)} {name}" for name, n in report.counts.items())
        output.facts([("holds", held), ("in", _sizes([s.num_samples for s in report.shards]))])
    broken = [shard for shard in report.shards if shard.num_faults]
    if broken:
        where = humanize.plural(len(broken), "shard")
        what = humanize.plural(report.num_faults, "fault")
        output.say("✗", f"{what} in {where}", colour=output.BAD)
    for shard in broken:
        _print_faults(shard)


def _sizes(sizes: Sequence[int]) -> str:
    shards = humanize.plural(len(sizes), "shard")
    if not sizes or min(sizes) == max(sizes):
        return shards + "".join(f" of {n:,}" for n in sizes[:1])
    return f"{shards} of {min(sizes):,} to {max(sizes):,}"


def _print_faults(shard: ShardReport) -> None:
    for fault in shard.faults:
        place = f"{shard.name}, {fault.key}" if fault.key else shard.name
        output.echo(f"  {place}: {fault.what}")
    if shard.num_faults > len(shard.faults):
        output.echo(f"  {shard.name}: and {shard.num_faults - len(shard.faults):,} more")


def _print_decoding(report: DecodeReport) -> None:
    of_all = f"{report.num_decoded:,} of {humanize.plural(report.num_images, 'image')}"
    output.facts([("decoded", of_all)])
    if not report.num_broken:
        return
    broken = humanize.plural(report.num_broken, "broken image")
    output.say("✗", f"{broken} of {report.num_decoded:,} decoded", colour=output.BAD)
    lines = [
        f"{image.tar}, sample {image.key}, {image.medium} at byte {image.offset}: {image.what}"
        for image in report.broken
    ]
    output.listed(lines, MAX_LISTED)


def _pixels(found: CheckReport) -> dict[str, str]:
    """Return how images became pixels in those of two places that hold codes."""
    from shardmill.stages.codes import describe_pixels

    places = [place for place in (found.other, found.path) if place is not None]
    told = {humanize.place(place): describe_pixels(place) for place in places}
    return {place: made for place, made in told.items() if made is not None}


def _print_comparison(found: CheckReport, comparison: Comparison) -> None:
    assert found.other is not None
    first, second = humanize.place(found.other), humanize.place(found.path)
    if comparison.difference is None:
        output.say("✓", f"{first} and {second} hold the same")
    else:
        output.say("✗", f"{first} and {second} differ", colour=output.BAD)
        name = f" ({comparison.difference.key})" if comparison.difference.key else ""
        where = f"record {comparison.difference.number:,}{name}"
        what = (comparison.difference.aspect, comparison.difference.what)
        output.facts([("first at", where), what])
    amount = humanize.plural(comparison.num_records, "record")
    if comparison.num_tokens:
        amount += f", {humanize.plural(comparison.num_tokens, 'token')}"
    rows = [("compared", ", ".join(comparison.compared)), ("equal", amount)]
    by_reason: dict[str, list[str]] = {}
    for aspect, why in comparison.not_compared.items():
        named = why.replace("the first", first).replace("the second", second)
        by_reason.setdefault(named, []).append(aspect)
    rows += [("not compared", f"{', '.join(names)}: {why}") for why, names in by_reason.items()]
    rows += [("pixels", f"{place}: {made}") for place, made in _pixels(found).items()]
    output.facts(rows)
