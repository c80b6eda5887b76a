"""`shardmill diff A B`: what changed from one folder to another, and which shards it touches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import click

import shardmill as sm
from shardmill import humanize
from shardmill.cli import output
from shardmill.cli.options import folder_argument, json_option
from shardmill.stages.diff import FolderDiff, TouchedShard

MAX_LISTED = 10


@click.command()
@folder_argument("before")
@folder_argument("after")
@json_option
def diff(before: Path, after: Path, as_json: bool) -> None:
    """Tell which samples, tokens and shards changed between two folders.

    Both hold samples, both codes, or both tokens. Indexes and content hashes are read, no media.

    \b
        shardmill diff shards shards-2
    """
    print_diff(sm.diff(before, after), as_json)


def print_diff(found: FolderDiff, as_json: bool) -> None:
    """Print what changed: samples, the mix of sources, shards."""
    if as_json:
        output.print_json(asdict(found))
        return
    _print_samples(found)
    _print_mix(found)
    _print_shards(found)


def _print_samples(found: FolderDiff) -> None:
    if not found.added + found.removed + found.changed:
        output.say("✓", "both hold the same samples")
    else:
        output.say("→", "they differ", colour=output.HINT)
    rows = [("samples", _change(found.num_samples))]
    if any(found.num_tokens):
        rows.append(("tokens", _change(found.num_tokens)))
    for what, count in (
        ("added", found.added),
        ("removed", found.removed),
        ("changed", found.changed),
    ):
        if count:
            some = found.examples[what][:3]
            rows.append((what, f"{humanize.count(count)}: {', '.join(some)}{_more(count, some)}"))
    output.facts(rows)


def _print_mix(found: FolderDiff) -> None:
    mixed = [mix for mix in found.mix if mix.source]
    if not mixed:
        return
    output.heading("mix")
    output.table(
        ("source", "samples", "after", "tokens", "after"),
        [
            (
                mix.source,
                *(humanize.count(n) for n in mix.samples),
                *(humanize.count(n) if n else "-" for n in mix.tokens),
            )
            for mix in mixed
        ],
    )


def _print_shards(found: FolderDiff) -> None:
    output.heading(
        f"{humanize.plural(len({s.name for s in found.shards}), 'shard')} touched, "
        f"{found.num_same_shards:,} the same"
    )
    output.listed(_shard_lines(found), MAX_LISTED)


def _shard_lines(found: FolderDiff) -> Iterator[str]:
    sides: dict[str, dict[str, TouchedShard]] = {}
    for shard in found.shards:
        sides.setdefault(shard.name, {})[shard.side] = shard
    for name, pair in sides.items():
        counts = [f"{pair[s].num_samples:,}" if s in pair else "-" for s in ("before", "after")]
        added, removed = (sum(getattr(s, w) for s in pair.values()) for w in ("added", "removed"))
        signed = {"+": added, "-": removed, "~": max(s.changed for s in pair.values())}
        changes = "".join(f", {sign}{n:,}" for sign, n in signed.items() if n)
        yield f"{name}  {counts[0]} -> {counts[1]} samples{changes}"


def _change(numbers: tuple[int, int]) -> str:
    before, after = numbers
    change = f", {after - before:+,}" if before != after else ""
    return f"{humanize.count(before)} before, {humanize.count(after)} after{change}"


def _more(count: int, shown: list[str]) -> str:
    return ", ..." if count > len(shown) else ""
