"""One pack in full: its documents with the way back to their rows, samples and source files."""

from __future__ import annotations

from typing import Any

from shardmill.errors import ShardmillError
from shardmill.view.context import Desk
from shardmill.view.folder import Folder
from shardmill.view.items import Item
from shardmill.view.packs import PackRow, TarPacks, check_number, spread
from shardmill.view.query import Query
from shardmill.view.rows import describe_row
from shardmill.view.samples import find_sample

PER_PAGE = 24


def list_packs(desk: Desk, query: Query) -> dict[str, Any]:
    """Return some packs as strips: where documents begin, and how much of each is visual."""
    packs = desk.packs(query.text("id"))
    at, count = query.number("at", 0), query.number("count", PER_PAGE, most=100)
    numbers = range(min(at, len(packs)), min(at + count, len(packs)))
    return {
        "total": len(packs),
        "at": at,
        "packs": [{"number": n, **spread(packs, packs.rows(n))} for n in numbers],
    }


def show_pack(desk: Desk, query: Query) -> dict[str, Any]:
    """Return a pack with all that its documents are, and links to where they come from."""
    id, number = query.text("id"), query.number("n")
    item, packs = desk.library.get(id), desk.packs(id)
    check_number(packs, number)
    rows = packs.rows(number)
    tokens, samples = desk.library.tokens_of(id), desk.library.samples_of(id)
    inside = {"id": id, "number": number} if isinstance(packs, TarPacks) else None
    return {
        "number": number,
        "total": len(packs),
        **spread(packs, rows),
        "documents": [
            {
                **_document(row),
                "tokens_at": _tokens_at(item, tokens, row),
                "sample_at": None if samples is None else _sample_at(samples, row),
                "media_at": inside,
            }
            for row in rows
        ],
        "samples": None if samples is None else samples[0].id,
    }


def sample_place(
    samples: tuple[Item, Folder], key: str, shard: str | None
) -> dict[str, Any] | None:
    """Return id and number of the sample that a row was made from.

    A row that was split off a longer one has its key with ~1, ~2 added.
    """
    item, folder = samples
    number = find_sample(folder, key.partition("~")[0], shard)
    return None if number is None else {"id": item.id, "number": number}


def _tokens_at(
    item: Item, tokens: tuple[Item, Folder] | None, row: PackRow
) -> dict[str, Any] | None:
    if tokens is not None and row.number is not None:
        return {"id": tokens[0].id, "name": tokens[0].name, "number": row.number}
    if row.stored is None:
        return None
    return {"id": item.id, "name": item.name, "number": row.stored}


def _sample_at(samples: tuple[Item, Folder], row: PackRow) -> dict[str, Any] | None:
    item = samples[0]
    try:
        if row.row is not None:
            return sample_place(samples, row.row.key, row.shard)
        # A table of lengths has a row for each sample, in the same order.
        return None if row.number is None else {"id": item.id, "number": row.number}
    except ShardmillError:
        return None


def _document(row: PackRow) -> dict[str, Any]:
    if row.row is not None:
        return describe_row(row.row)
    tokens, visual = row.planned
    return {
        "key": "" if row.number is None else f"row {row.number:,}",
        "tokens": tokens,
        "visual": visual,
        "learned": None,
        "loss": [],
        "media": [],
        "origin": None,
        "continues": False,
    }
