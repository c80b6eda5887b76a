"""Search over everything: keys of samples and rows, sources, reasons of rejects, names of items.

Each request looks for a moment and returns a cursor: (item, place in it). The page goes on until
there is enough to show; nothing is loaded whole and no index of keys is built.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shardmill.errors import FormatError, ShardmillError
from shardmill.shards.columns import KeyColumn
from shardmill.shards.samples.dataset import entry_index
from shardmill.view.context import Desk
from shardmill.view.counts import find_rejects
from shardmill.view.folder import Folder
from shardmill.view.query import Budget, Query
from shardmill.view.samples import matching

PER_ITEM = 8
MAX_DIGITS = 18
MAX_HITS = 60


def search(desk: Desk, query: Query) -> dict[str, Any]:
    """Return hits for a text, from a cursor on, and where to go on."""
    wanted = query.text("q").strip()
    if not wanted:
        return {"hits": [], "cursor": None, "searched": ""}
    budget = Budget()
    folders = [item.id for item, _ in desk.library.folders()]
    at, place = query.number("item", 0), query.number("place", 0)
    hits = _names(desk, wanted) if at == place == 0 else []
    while at < len(folders) and len(hits) < MAX_HITS:
        found, place = _look(folders[at], desk.library.folder(folders[at]), wanted, place, budget)
        hits += found
        if place < 0:
            at, place = at + 1, 0
        if budget.is_spent:
            break
    return _answer(hits, [at, place] if at < len(folders) else None, folders)


def _answer(hits: list[Any], cursor: list[int] | None, folders: list[str]) -> dict[str, Any]:
    name = folders[cursor[0]] if cursor and cursor[0] < len(folders) else ""
    return {"hits": hits, "cursor": cursor, "searched": name, "of": len(folders)}


def _names(desk: Desk, wanted: str) -> list[dict[str, Any]]:
    return [
        {"kind": "item", "id": item.id, "text": item.name, "about": item.kind}
        for item in desk.library.items().values()
        if wanted.casefold() in item.name.casefold()
    ][:PER_ITEM]


def _look(
    id: str, folder: Folder, wanted: str, place: int, budget: Budget
) -> tuple[list[dict[str, Any]], int]:
    """Return hits in one folder from a shard on, and the next shard; -1 when it is done."""
    try:
        hits = [] if place else _rejects(id, folder, wanted, budget)
        if folder.content == "samples":
            return _samples(id, folder, wanted, place, budget, hits)
        if folder.content in ("tokens", "packs") and folder.spec.get("format") != "tar":
            return _rows(id, folder, wanted, place, budget, hits)
    except ShardmillError:
        return [], -1
    return hits, -1


def _rejects(id: str, folder: Folder, wanted: str, budget: Budget) -> list[dict[str, Any]]:
    status = folder.manifest
    reasons = (
        [] if status is None else [r for r in status.skipped if wanted.casefold() in r.casefold()]
    )
    hits = [{"kind": "reason", "id": id, "text": reason, "about": "skipped"} for reason in reasons]
    found = find_rejects(folder, "", wanted, (0, 0), budget)["found"][:PER_ITEM]
    return hits + [
        {"kind": "reject", "id": id, "text": r["key"], "about": r["reason"], "unit": r["unit"]}
        for r in found
    ]


def _samples(
    id: str, folder: Folder, wanted: str, place: int, budget: Budget, hits: list[dict[str, Any]]
) -> tuple[list[dict[str, Any]], int]:
    with folder.lock:
        entries, starts = folder.samples().entries, folder.places()[0]
        for shard in range(place, len(entries)):
            if budget.is_spent and shard > place:  # each request gets at least one shard further
                return hits, shard
            try:
                index = entry_index(folder.path, entries[shard])
            except FormatError:
                continue
            if shard == 0:
                hits += _sources(id, list(index.sources), wanted)
            exact = index.find(wanted)
            rows = [exact] if exact is not None else matching(index, 0, "", wanted, PER_ITEM)
            for row in rows:
                text, number = index.keys[row], starts[shard] + row
                hits.append({"kind": "sample", "id": id, "text": text, "number": number})
            if exact is not None or sum(h["kind"] == "sample" for h in hits) >= PER_ITEM:
                return hits, -1
    return hits, -1


def _rows(
    id: str, folder: Folder, wanted: str, place: int, budget: Budget, hits: list[dict[str, Any]]
) -> tuple[list[dict[str, Any]], int]:
    with folder.lock:
        rows, starts = folder.tokens(), folder.places()[0]
        for shard in range(place, len(rows.entries)):
            if budget.is_spent and shard > place:
                return hits, shard
            opened = rows.shard(shard)
            if shard == 0:
                hits += _sources(id, opened.spans.meta["sources"], wanted)
            for row in _rows_with(opened.keys, wanted):
                number = starts[shard] + row
                hits.append({"kind": "row", "id": id, "text": opened.keys[row], "number": number})
            if sum(h["kind"] == "row" for h in hits) >= PER_ITEM:
                return hits, -1
    return hits, -1


def _rows_with(keys: KeyColumn, wanted: str) -> list[int]:
    """Return some rows by key: the very one, else by its number, else by what stands before it."""
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
