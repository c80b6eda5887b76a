"""Search over everything: keys of samples and rows, sources, reasons of rejects, names of items.

Each request searches for a moment and returns a cursor: (item, shard). The page asks again until it
has enough to show; nothing is loaded whole and no index of keys is built.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shardmill.errors import FormatError, ShardmillError
from shardmill.shards.arrays import KeyColumn
from shardmill.shards.samples import entry_index
from shardmill.view.context import Context
from shardmill.view.folder import Folder
from shardmill.view.overview import find_rejects
from shardmill.view.query import Budget, Query
from shardmill.view.samples import matching

PER_ITEM = 8
MAX_DIGITS = 18
MAX_HITS = 60


def search(context: Context, query: Query) -> dict[str, Any]:
    """Return hits for a text, from a cursor on, and where to go on."""
    wanted = query.text("q").strip()
    if not wanted:
        return {"hits": [], "cursor": None, "searched": "", "of": 0}
    budget = Budget()
    folders = [item.id for item, _ in context.folders()]
    at, shard = query.number("item", 0), query.number("shard", 0)
    hits = _names(context, wanted) if at == shard == 0 else []
    while at < len(folders) and len(hits) < MAX_HITS:
        found, shard = _look(folders[at], context.folder(folders[at]), wanted, shard, budget)
        hits += found
        if shard < 0:
            at, shard = at + 1, 0
        if budget.is_spent:
            break
    is_done = at >= len(folders)
    return {
        "hits": hits,
        "cursor": None if is_done else [at, shard],
        "searched": "" if is_done else folders[at],
        "of": len(folders),
    }


def _names(context: Context, wanted: str) -> list[dict[str, Any]]:
    return [
        {"kind": "item", "id": item.id, "text": item.name, "about": item.kind}
        for item in context.items().values()
        if wanted.casefold() in item.name.casefold()
    ][:PER_ITEM]


def _look(
    id: str, folder: Folder, wanted: str, shard: int, budget: Budget
) -> tuple[list[dict[str, Any]], int]:
    """Return hits in one folder from a shard on, and the shard to continue with; -1 at the end."""
    find = {"samples": _samples, "tokens": _rows, "packs": _rows}.get(folder.content)
    if folder.spec.get("format") == "tar":
        find = None  # packs in tars have keys of packs, not of documents
    try:
        hits = [] if shard else _rejects(id, folder, wanted, budget)
        if find is None:
            return hits, -1
        with folder.lock:
            return find(id, folder, wanted, shard, budget, hits)
    except ShardmillError:
        return [], -1


def _rejects(id: str, folder: Folder, wanted: str, budget: Budget) -> list[dict[str, Any]]:
    skipped = folder.manifest.skipped if folder.manifest else {}
    reasons = [reason for reason in skipped if wanted.casefold() in reason.casefold()]
    hits = [{"kind": "reason", "id": id, "text": reason, "about": "skipped"} for reason in reasons]
    found = find_rejects(folder, "", wanted, (0, 0), budget)["found"][:PER_ITEM]
    return hits + [
        {"kind": "reject", "id": id, "text": r["key"], "about": r["reason"], "unit": r["unit"]}
        for r in found
    ]


def _samples(
    id: str, folder: Folder, wanted: str, first: int, budget: Budget, hits: list[dict[str, Any]]
) -> tuple[list[dict[str, Any]], int]:
    entries, starts = folder.samples().entries, folder.first_numbers()
    for shard in range(first, len(entries)):
        if budget.is_spent and shard > first:  # each request gets at least one shard further
            return hits, shard
        try:
            index = entry_index(folder.path, entries[shard])
        except FormatError:
            continue
        if shard == 0:
            hits += _sources(id, list(index.sources), wanted)
        exact = index.find(wanted)
        for row in [exact] if exact is not None else matching(index, 0, "", wanted, PER_ITEM):
            number = starts[entries[shard].name] + row
            hits.append({"kind": "sample", "id": id, "text": index.keys[row], "number": number})
        if exact is not None or sum(h["kind"] == "sample" for h in hits) >= PER_ITEM:
            break
    return hits, -1


def _rows(
    id: str, folder: Folder, wanted: str, first: int, budget: Budget, hits: list[dict[str, Any]]
) -> tuple[list[dict[str, Any]], int]:
    rows, starts = folder.tokens(), folder.first_numbers()
    for shard in range(first, len(rows.entries)):
        if budget.is_spent and shard > first:
            return hits, shard
        opened = rows.shard(shard)
        if shard == 0:
            hits += _sources(id, opened.spans.meta["sources"], wanted)
        for row in _rows_with(opened.keys, wanted):
            number = starts[rows.entries[shard].name] + row
            hits.append({"kind": "row", "id": id, "text": opened.keys[row], "number": number})
        if sum(h["kind"] == "row" for h in hits) >= PER_ITEM:
            break
    return hits, -1


def _rows_with(keys: KeyColumn, wanted: str) -> list[int]:
    """Return some rows by key: the exact one, else by its number, else by its prefix."""
    exact = keys.find(wanted)
    if exact is not None:
        return [exact]
    if wanted.isascii() and wanted.isdigit() and len(wanted) <= MAX_DIGITS:
        fitting = keys.number == int(wanted)
    else:
        prefixes = [n for n, text in enumerate(keys.prefixes) if wanted in text]
        fitting = np.isin(keys.prefix, prefixes)
    return [int(row) for row in np.flatnonzero(fitting)[:PER_ITEM]]


def _sources(id: str, names: list[str], wanted: str) -> list[dict[str, Any]]:
    found = [name for name in names if name and wanted.casefold() in name.casefold()]
    return [{"kind": "source", "id": id, "text": name, "about": "source"} for name in found]
