"""`shardmill check --same A B`: whether two folders hold the same, whatever their formats are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from shardmill import wording
from shardmill.cli import console
from shardmill.formats.exported import open_reader
from shardmill.formats.reader import Reader
from shardmill.stages.same import ORDER, Comparison, compare


def report_same(
    first: str, second: str, codes_dir: str | None, ignored: Sequence[str], *, as_json: bool
) -> bool:
    """Compare two places, print what was found, and return whether they are the same."""
    ignoring = frozenset(aspect for aspect in ORDER if aspect in ignored)
    found = compare(*_open_both(first, second, codes_dir), ignoring=ignoring)
    if as_json:
        console.print_json({**asdict(found), "same": found.same})
    else:
        _print(first, second, found)
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


def _print(first: str, second: str, found: Comparison) -> None:
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
