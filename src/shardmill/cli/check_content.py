"""What `check` does with the content of shards: counts, faults, specimens and the list of tars."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shardmill import wording
from shardmill.cli import console
from shardmill.cli.options import Option, all_of
from shardmill.cli.values import parse_spec
from shardmill.errors import ConfigError
from shardmill.io.receipts import open_manifest

if TYPE_CHECKING:
    from shardmill.model.space import TokenSpace
    from shardmill.stages.checkcontent import ContentReport, ShardReport


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
        help="Check what documents, tokens, masks and pictures say.  [default: all but remote "
        "tars]",
    ),
    click.option("--pairs", is_flag=True, help="Every sample needs a medium and a text."),
    click.option("--max-tokens", type=click.IntRange(1), help="Tokens of a row or pack, at most."),
    click.option(
        "--num-patches", type=click.IntRange(1), help="Tokens of every picture of a pack."
    ),
    click.option(
        "--space",
        metavar="FIELD=VALUE,...",
        default="",
        help="Token space of packs by others.  [default: Llama-2 with im_patch, im_start, im_end]",
    ),
    click.option(
        "--dump",
        type=click.Path(file_okay=False, path_type=Path),
        help="Write a few samples or packs into this folder, as text and pictures.",
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
    from shardmill.stages.checkcontent import check_content
    from shardmill.stages.checkfindings import Limits

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
        from shardmill.stages.checkdump import dump_specimens

        space = _space(options.space)
        found = dump_specimens(folder, options.dump, options.dump_count, space)
        made["dumped"] = [str(path) for path in found]
    if options.list_tars and is_good:
        from shardmill.formats.shardlist import write_shard_list

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
