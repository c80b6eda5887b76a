"""The map of the pipeline, the overview of each item, and its units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from itertools import islice
from pathlib import PurePosixPath
from typing import Any

from shardmill.errors import ShardmillError
from shardmill.model.manifest import ShardEntry, group_stats, power_bars
from shardmill.model.stage import Unit
from shardmill.running.status import Status
from shardmill.shards.ledger import read_rejects
from shardmill.storage.text import parse_json
from shardmill.view.answers import Query
from shardmill.view.context import Context, Folder, Item, Refused

UNITS_PER_PAGE = 48
MAX_FAILURES = 20
MAX_RAW = 200
MAX_REJECTS = 100
MAX_TRACEBACK = 8000
MAX_STATS = 50


def show_map(context: Context, query: Query) -> dict[str, Any]:
    """Return the items with their progress, and which was made from which."""
    items = context.items()
    raw: dict[str, list[str]] = {}
    for item, folder in context.folders():
        for path in folder.reads.get("raw", ())[:MAX_RAW]:
            raw.setdefault(path, []).append(item.id)
    return {
        "root": context.root.name,
        "path": str(context.root),
        "nodes": [_node(context, item) for item in items.values()],
        "edges": [
            [source.id, item.id] for item in items.values() for source in _inputs(context, item)
        ],
        "raw": [
            {"path": path, "name": PurePosixPath(path).name, "feeds": feeds}
            for path, feeds in raw.items()
        ],
    }


def show_item(context: Context, query: Query) -> dict[str, Any]:
    """Return the overview of an item: what it is, its progress, what it was made from."""
    item = context.item(query.text("id"))
    page = {
        **_node(context, item),
        "inputs": [source.id for source in _inputs(context, item)],
        "feeds": [other.id for other, _ in context.made_from(item.id)],
    }
    if item.kind == "plan":
        return page | _plan_page(context, item)
    return page | (_folder_page(context, item) if item.kind == "stage" else {})


def _node(context: Context, item: Item) -> dict[str, Any]:
    node: dict[str, Any] = {
        "id": item.id,
        "name": item.name,
        "kind": item.kind,
        "content": item.kind,
    }
    try:
        if item.kind == "plan":
            plan = context.plan(item.id)
            return node | {"state": "done", "packs": len(plan), "capacity": plan.spec.capacity}
        if item.kind == "lengths":
            return node | {"state": "done", "kept": len(context.lengths(item.id))}
        return node | _folder_node(context, context.folder(item.id))
    except Refused as error:
        return node | {"state": "refused", "problem": str(error)}
    except (ShardmillError, OSError) as error:
        return node | {"state": "broken", "problem": str(error)}


def _folder_node(context: Context, folder: Folder) -> dict[str, Any]:
    status = context.status(folder)
    node = {"content": folder.content, "verb": folder.verb}
    if status is not None:
        return node | progress_of(status)
    entries = folder.entries()
    total = sum(entry.num_samples for entry in entries)
    num_bytes = sum(entry.num_bytes for entry in entries)
    counts = {"in": total, "kept": total, "skipped": 0, "shards": len(entries), "bytes": num_bytes}
    return node | {"state": "done", "units": len(entries), "done": len(entries), **counts}


def progress_of(status: Status) -> dict[str, Any]:
    """Return what changes while a stage runs."""
    return {
        "state": _state(status),
        "units": status.num_units,
        "done": status.num_done,
        "failed": status.num_failed,
        "in": status.num_in,
        "kept": status.num_kept,
        "skipped": sum(status.skipped.values()),
        "shards": status.num_shards,
        "bytes": status.num_bytes,
        "rate": status.samples_per_s,
        "seconds_left": status.seconds_left,
        "running": [{"unit": u.unit, "seconds": u.seconds, "host": u.host} for u in status.running],
    }


def _state(status: Status) -> str:
    if status.complete:
        return "done"
    if any(lock.alive for lock in status.locks):
        return "running"
    return "failed" if status.failures else "waiting"


def _inputs(context: Context, item: Item) -> list[Item]:
    try:
        return context.inputs(item.id)
    except (ShardmillError, OSError):
        return []


def _folder_page(context: Context, item: Item) -> dict[str, Any]:
    folder = context.folder(item.id)
    status = context.status(folder)
    page: dict[str, Any] = {
        "path": str(folder.path),
        "spec": folder.spec,
        "raw": folder.reads.get("raw", ())[:MAX_RAW],
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
    """Return how many files of each role there are, and their bytes."""
    totals: dict[str, list[int]] = {}
    for entry in folder.entries():
        for role, file in entry.files.items():
            total = totals.setdefault(role, [0, 0])
            total[0] += 1
            total[1] += file.num_bytes
    return [{"role": role, "files": n, "bytes": size} for role, (n, size) in totals.items()]


def _plan_page(context: Context, item: Item) -> dict[str, Any]:
    plan, data = context.plan(item.id), context.data_of_plan(item.id)
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


def list_units(context: Context, query: Query) -> dict[str, Any]:
    """Return a page of units with their states and counts."""
    folder = context.folder(query.text("id"))
    units, status = folder.units(), context.status(folder)
    at, count = query.number("at", 0), query.number("count", UNITS_PER_PAGE, most=500)
    running = set() if status is None else {unit.unit for unit in status.running}
    rows = [unit_row(folder, unit, running) for unit in units[at : at + count]]
    return {"total": len(units), "at": at, "units": rows}


def show_unit(context: Context, query: Query) -> dict[str, Any]:
    """Return everything about one unit: its receipt, its files, its first rejects, its failure."""
    folder, name = context.folder(query.text("id")), query.text("name")
    unit = folder.unit(name)
    receipt, first = folder.receipt(unit), folder.first_numbers()
    rejects = islice(read_rejects(folder.ledger.rejects_path(name)), MAX_REJECTS)
    return {
        **unit_row(folder, unit, set()),
        "input": unit.input,
        "stats": dict(receipt.stats) if receipt else {},
        "skipped_by": dict(receipt.skipped) if receipt else {},
        "digest": receipt.digest if receipt else "",
        "files": [_shard(entry, first) for entry in receipt.shards] if receipt else [],
        "rejects": [asdict(reject) for reject in rejects],
        "failure": _failure(folder, name),
    }


def unit_row(folder: Folder, unit: Unit, running: set[str]) -> dict[str, Any]:
    """Return the state and the counts of a unit."""
    receipt = folder.receipt(unit)
    if receipt is not None:
        state = "done"
    elif unit.name in running:
        state = "running"
    else:
        state = "failed" if folder.ledger.failure_path(unit.name).exists() else "waiting"
    return {
        "name": unit.name,
        "expected": unit.num_samples,
        "state": state,
        "in": receipt.num_in if receipt else None,
        "kept": receipt.num_kept if receipt else None,
        "skipped": sum(receipt.skipped.values()) if receipt else None,
        "shards": len(receipt.shards) if receipt else 0,
        "bytes": receipt.num_bytes if receipt else 0,
    }


def _shard(entry: ShardEntry, first: Mapping[str, int]) -> dict[str, Any]:
    return {
        "name": entry.name,
        "samples": entry.num_samples,
        "first": first.get(entry.name, 0),
        "files": [
            {"role": role, "path": file.path, "bytes": file.num_bytes, "checksum": file.checksum}
            for role, file in entry.files.items()
        ],
    }


def _failure(folder: Folder, name: str) -> dict[str, str] | None:
    try:
        plain = parse_json(folder.ledger.failure_path(name).read_bytes())
        traceback = str(plain["traceback"])[-MAX_TRACEBACK:]
        return {"message": str(plain["message"]), "traceback": traceback}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def stat_plots(stats: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return the statistics that stages count: facts, tables and histograms of powers of two.

    "tokens" is a fact, "source|web" a line of the table "source", "text chars|<=64" a bar.
    """
    return [_group(name, values) for name, values in group_stats(stats).items()]


def _group(name: str, values: dict[str, int]) -> dict[str, Any]:
    bars = power_bars(values)
    if "sum" in values and bars:
        return {
            "name": name,
            "kind": "bars",
            "limits": [limit for limit, _ in bars],
            "counts": [count for _, count in bars],
            "mean": values["sum"] / max(1, sum(count for _, count in bars)),
        }
    rows = sorted(values.items(), key=lambda item: -item[1])[:MAX_STATS]
    return {"name": name, "kind": "counts" if name else "facts", "rows": rows}
