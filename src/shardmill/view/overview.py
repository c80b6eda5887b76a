"""The map of the pipeline, and the front page of each item on it."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

from shardmill.errors import ShardmillError
from shardmill.view.access import Refused
from shardmill.view.context import Desk
from shardmill.view.counts import progress_of
from shardmill.view.folder import Folder
from shardmill.view.items import Item, raw_inputs
from shardmill.view.plots import stat_plots
from shardmill.view.query import Query

MAX_FAILURES = 20


def show_map(desk: Desk, query: Query) -> dict[str, Any]:
    """Return the items with their progress, and which was made from which."""
    items = desk.library.items()
    nodes = [_node(desk, item) for item in items.values()]
    raw: dict[str, list[str]] = {}
    for item, folder in desk.library.folders():
        for path in raw_inputs(folder.spec):
            raw.setdefault(path, []).append(item.id)
    return {
        "root": desk.library.shelf.root.name,
        "path": str(desk.library.shelf.root),
        "nodes": nodes,
        "edges": [
            [source.id, item.id] for item in items.values() for source in _inputs(desk, item)
        ],
        "raw": [
            {"path": path, "name": PurePosixPath(path).name, "feeds": feeds}
            for path, feeds in raw.items()
        ],
    }


def show_item(desk: Desk, query: Query) -> dict[str, Any]:
    """Return the front page of an item: what it is, how it stands, what it was made from."""
    item = desk.library.get(query.text("id"))
    page = {
        **_node(desk, item),
        "inputs": [source.id for source in _inputs(desk, item)],
        "feeds": [other.id for other, _ in desk.library.made_from(item.id)],
    }
    if item.kind == "plan":
        return page | _plan_page(desk, item)
    return page | (_folder_page(desk, desk.library.folder(item.id)) if item.kind == "stage" else {})


def _node(desk: Desk, item: Item) -> dict[str, Any]:
    node: dict[str, Any] = {
        "id": item.id,
        "name": item.name,
        "kind": item.kind,
        "content": item.kind,
    }
    try:
        if item.kind == "plan":
            plan = desk.library.plan(item.id)
            return node | {"state": "done", "packs": len(plan), "capacity": plan.spec.capacity}
        if item.kind == "lengths":
            return node | {"state": "done", "kept": len(desk.library.lengths(item.id))}
        folder = desk.library.folder(item.id)
        return node | _folder_node(desk, folder)
    except Refused as error:
        return node | {"state": "refused", "problem": str(error)}
    except (ShardmillError, OSError) as error:
        return node | {"state": "broken", "problem": str(error)}


def _folder_node(desk: Desk, folder: Folder) -> dict[str, Any]:
    status = desk.statuses.of(folder)
    node = {"content": folder.content, "verb": folder.verb}
    if status is not None:
        return node | progress_of(status)
    entries = folder.entries()
    total = sum(entry.num_samples for entry in entries)
    num_bytes = sum(entry.num_bytes for entry in entries)
    books = {"in": total, "kept": total, "skipped": 0, "shards": len(entries), "bytes": num_bytes}
    return node | {"state": "done", "units": len(entries), "done": len(entries), **books}


def _inputs(desk: Desk, item: Item) -> list[Item]:
    try:
        return desk.library.inputs(item.id)
    except (ShardmillError, OSError):
        return []


def _folder_page(desk: Desk, folder: Folder) -> dict[str, Any]:
    status = desk.statuses.of(folder)
    page: dict[str, Any] = {
        "path": str(folder.path),
        "spec": folder.spec,
        "raw": raw_inputs(folder.spec),
        "samples": sum(entry.num_samples for entry in folder.entries()),
        "roles": _roles(folder),
    }
    if status is None:
        return page | {"stats": [], "skipped_by": {}, "examples": {}, "failures": [], "slow": []}
    return page | {
        "stats": stat_plots(status.stats),
        "skipped_by": dict(status.skipped),
        "examples": {
            reason: [{"key": r.key, "detail": r.detail} for r in rejects]
            for reason, rejects in status.examples.items()
        },
        "failures": [
            {"unit": f.unit, "message": f.message, "tail": f.tail}
            for f in status.failures[:MAX_FAILURES]
        ],
        "slow": [{"unit": u.unit, "seconds": u.seconds, "host": u.host} for u in status.slow_units],
    }


def _roles(folder: Folder) -> list[dict[str, Any]]:
    totals: dict[str, list[int]] = {}
    for entry in folder.entries():
        for role, file in entry.files.items():
            total = totals.setdefault(role, [0, 0])
            total[0] += 1
            total[1] += file.num_bytes
    return [{"role": role, "files": n, "bytes": size} for role, (n, size) in totals.items()]


def _plan_page(desk: Desk, item: Item) -> dict[str, Any]:
    plan = desk.library.plan(item.id)
    data = desk.library.data_of_plan(item.id)
    return {
        "path": str(item.path),
        "rows": plan.num_rows,
        "packed": len(plan.members),
        "dropped": len(plan.dropped),
        "cut": len(plan.cut_rows),
        "lower_bound": plan.lower_bound,
        "method": plan.method,
        "why": plan.why,
        "seed": plan.spec.seed,
        "alignment": plan.spec.alignment,
        "data": None if data is None else data.id,
    }
