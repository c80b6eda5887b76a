"""Every answer that the page can ask for, by name; the server and the report call the same ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, TypeAlias

from shardmill.errors import ConfigError
from shardmill.view.codes import codebook_counts, find_images, show_codes
from shardmill.view.context import Desk
from shardmill.view.counts import find_rejects, unit_books, unit_rows
from shardmill.view.folder import Folder
from shardmill.view.items import NotHere
from shardmill.view.overview import show_item, show_map
from shardmill.view.packpages import list_packs, sample_place, show_pack
from shardmill.view.plots import length_plots, pack_plots, price_plan, some_lengths, step_plots
from shardmill.view.query import Budget, Query
from shardmill.view.rows import filter_rows, show_row
from shardmill.view.samples import filter_samples, find_sample, show_sample
from shardmill.view.search import search

Answer: TypeAlias = Callable[[Desk, Query], dict[str, Any]]
PER_PAGE = 48


def answer(desk: Desk, name: str, values: Mapping[str, str]) -> dict[str, Any]:
    """Return one answer by its name."""
    if name not in ANSWERS:
        raise NotHere(f"there is no answer {name!r}")
    return ANSWERS[name](desk, Query(values))


def _units(desk: Desk, query: Query) -> dict[str, Any]:
    folder = desk.library.folder(query.text("id"))
    units = folder.units()
    at, count = query.number("at", 0), query.number("count", PER_PAGE, most=500)
    status = desk.statuses.of(folder)
    running = set() if status is None else {unit.unit for unit in status.running}
    rows = unit_rows(folder, units[at : at + count], running)
    return {"total": len(units), "at": at, "units": rows}


def _unit(desk: Desk, query: Query) -> dict[str, Any]:
    return unit_books(desk.library.folder(query.text("id")), query.text("name"))


def _rejects(desk: Desk, query: Query) -> dict[str, Any]:
    folder = desk.library.folder(query.text("id"))
    cursor = query.number("file", 0), query.number("line", 0)
    return find_rejects(folder, query.text("reason", ""), query.text("q", ""), cursor, Budget())


def _samples(desk: Desk, query: Query) -> dict[str, Any]:
    return _page(desk.library.folder(query.text("id"), "samples"), query, filter_samples)


def _sample(desk: Desk, query: Query) -> dict[str, Any]:
    id = query.text("id")
    folder = desk.library.folder(id, "samples")
    shown = show_sample(folder, query.number("n"))
    if shown.get("origin"):
        shown["origin"]["file"] = desk.library.raw_file(id, shown["origin"]["path"])
    return shown | {"uses": _uses(desk, id, shown["key"], shown["shard"])}


def _rows(desk: Desk, query: Query) -> dict[str, Any]:
    return _page(desk.library.folder(query.text("id"), "tokens", "packs"), query, filter_rows)


def _row(desk: Desk, query: Query) -> dict[str, Any]:
    id = query.text("id")
    folder = desk.library.folder(id, "tokens", "packs")
    shown = show_row(folder, query.number("n"), desk.decoder(id))
    samples = desk.library.samples_of(id)
    at = None if samples is None else sample_place(samples, shown["key"], shown["shard"])
    return shown | {"sample_at": at}


def _plots(desk: Desk, query: Query) -> dict[str, Any]:
    id = query.text("id")
    item = desk.library.get(id)
    if item.kind == "plan":
        return _plan_plots(desk, id, query.number("world", 8, most=1 << 20))
    if item.kind == "stage" and desk.library.folder(id).content == "tokens":
        folder = desk.library.folder(id)
        table, num_shards = some_lengths(folder)
        return {"shards": num_shards, "of": len(folder.entries()), **length_plots(table)}
    return {"shards": 1, "of": 1, **length_plots(desk.library.lengths(id))}


def _plan_plots(desk: Desk, id: str, world: int) -> dict[str, Any]:
    plan, data = desk.library.plan(id), desk.library.data_of_plan(id)
    if data is None:
        raise ConfigError("the lengths that this plan was made from are not in this folder")
    table = desk.library.lengths(data.id)
    name = id, plan.lengths_digest, len(plan)
    priced = desk.keep(("priced", *name), lambda: price_plan(plan, table))
    packs = desk.keep(("packs", *name), lambda: pack_plots(priced, table))
    steps = desk.keep(("steps", *name, world), lambda: step_plots(priced, world))
    lengths = desk.keep(("lengths", *name), lambda: length_plots(table))
    return {"data": data.id, **lengths, "plan": {**packs, **steps}}


def _codes(desk: Desk, query: Query) -> dict[str, Any]:
    id = query.text("id")
    folder = desk.library.folder(id, "codes")
    with folder.lock:
        ranked = desk.strange(id, folder)
        counts, num_shards = desk.keep(
            ("codebook", id, len(folder.entries())), lambda: codebook_counts(folder)
        )
        at, count = query.number("at", 0), query.number("count", 24, most=100)
        shown = [
            {**asdict(p), **show_codes(folder, p.shard, p.image)} for p in ranked[at : at + count]
        ]
    samples = desk.library.samples_of(id)
    for image in shown:
        shard = folder.entries()[image["shard"]].name
        found = None if samples is None else sample_place(samples, image["key"], shard)
        image["sample_at"] = found
    return {
        "total": len(ranked),
        "at": at,
        "shards": num_shards,
        "of": len(folder.entries()),
        "num_codes": len(counts),
        "dead": int((counts == 0).sum()),
        "decodes": desk.decodes,
        "images": shown,
    }


def _page(folder: Folder, query: Query, find: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    """Return the samples or rows from a place on that have what is looked for."""
    found = find(
        folder,
        query.number("at", 0),
        query.number("count", PER_PAGE, most=200),
        source=query.text("source", ""),
        wanted=query.text("q", ""),
        budget=Budget(),
    )
    return {"total": sum(entry.num_samples for entry in folder.entries()), **found}


def _uses(desk: Desk, id: str, key: str, shard: str) -> list[dict[str, Any]]:
    """Return where a sample went: the rows and images that were made from it."""
    uses: list[dict[str, Any]] = []
    for item, folder in desk.library.made_from(id):
        if folder.content == "tokens":
            with folder.lock:
                place = folder.places()[1].get(shard)
                row = None if place is None else folder.tokens().shard(place).keys.find(key)
                if place is not None and row is not None:
                    number = folder.places()[0][place] + row
                    uses.append({"kind": "row", "id": item.id, "number": number})
        elif folder.content == "codes":
            with folder.lock:
                images = find_images(folder, key)
            uses += [
                {"kind": "codes", "id": item.id, "shard": s, "image": p} for s, p in images[:1]
            ]
        elif folder.content == "samples":
            found = find_sample(folder, key, shard)
            if found is not None:
                uses.append({"kind": "sample", "id": item.id, "number": found})
    return uses


ANSWERS: Mapping[str, Answer] = {
    "map": show_map,
    "item": show_item,
    "units": _units,
    "unit": _unit,
    "rejects": _rejects,
    "samples": _samples,
    "sample": _sample,
    "rows": _rows,
    "row": _row,
    "packs": list_packs,
    "pack": show_pack,
    "plots": _plots,
    "codes": _codes,
    "search": search,
}
