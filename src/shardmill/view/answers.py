"""Every answer that the page can ask for, by name; the server and the report call the same ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from shardmill.errors import ConfigError
from shardmill.view.codes import find_images, list_codes
from shardmill.view.context import Context
from shardmill.view.items import NotHere
from shardmill.view.overview import list_rejects, list_units, show_item, show_map, show_unit
from shardmill.view.packs import list_packs, show_pack
from shardmill.view.plots import length_plots, pack_plots, price_plan, some_lengths, step_plots
from shardmill.view.query import Budget, Query
from shardmill.view.rows import filter_rows, open_decoder, show_row
from shardmill.view.samples import filter_samples, find_sample, sample_place, show_sample
from shardmill.view.search import search

Answer: TypeAlias = Callable[[Context, Query], dict[str, Any]]
PER_PAGE = 48


def answer(context: Context, name: str, values: Mapping[str, str]) -> dict[str, Any]:
    """Return one answer by its name as plain JSON; raises `NotHere` for an unknown name."""
    if name not in ANSWERS:
        raise NotHere(f"there is no answer {name!r}")
    return ANSWERS[name](context, Query(values))


def _samples(context: Context, query: Query) -> dict[str, Any]:
    return _page(context, query, ("samples",), filter_samples)


def _sample(context: Context, query: Query) -> dict[str, Any]:
    id = query.text("id")
    shown = show_sample(context.folder(id, "samples"), query.number("n"))
    if shown.get("origin"):
        shown["origin"]["file"] = context.raw_file(id, shown["origin"]["path"])
    return shown | {"uses": _uses(context, id, shown["key"], shown["shard"])}


def _rows(context: Context, query: Query) -> dict[str, Any]:
    return _page(context, query, ("tokens", "packs"), filter_rows)


def _row(context: Context, query: Query) -> dict[str, Any]:
    id = query.text("id")
    folder, samples = context.folder(id, "tokens", "packs"), context.upstream(id, "samples")
    shown = show_row(folder, query.number("n"), open_decoder(context, id))
    at = None if samples is None else sample_place(samples, shown["key"], shown["shard"])
    return shown | {"sample_at": at}


def _plots(context: Context, query: Query) -> dict[str, Any]:
    id = query.text("id")
    item = context.item(id)
    if item.kind == "plan":
        return _plan_plots(context, id, query.number("world", 8, most=1 << 20))
    if item.kind == "stage" and context.folder(id).content == "tokens":
        folder = context.folder(id)
        table, num_shards = some_lengths(folder)
        return {"shards": num_shards, "of": len(folder.entries()), **length_plots(table)}
    return {"shards": 1, "of": 1, **length_plots(context.lengths(id))}


def _plan_plots(context: Context, id: str, world: int) -> dict[str, Any]:
    plan, data = context.plan(id), context.data_of_plan(id)
    if data is None:
        raise ConfigError("the lengths that this plan was made from are not in this folder")
    table = context.lengths(data.id)
    key = id, plan.lengths_digest, len(plan)
    priced = context.cached(("priced", *key), lambda: price_plan(plan, table))
    packs = context.cached(("packs", *key), lambda: pack_plots(priced, table))
    steps = context.cached(("steps", *key, world), lambda: step_plots(priced, world))
    lengths = context.cached(("lengths", *key), lambda: length_plots(table))
    return {"data": data.id, **lengths, "plan": {**packs, **steps}}


def _page(
    context: Context, query: Query, contents: tuple[str, ...], find: Callable[..., dict[str, Any]]
) -> dict[str, Any]:
    """Return the samples or rows from a number on that match the filter."""
    folder = context.folder(query.text("id"), *contents)
    found = find(
        folder,
        query.number("at", 0),
        query.number("count", PER_PAGE, most=200),
        source=query.text("source", ""),
        wanted=query.text("q", ""),
        budget=Budget(),
    )
    return {"total": sum(entry.num_samples for entry in folder.entries()), **found}


def _uses(context: Context, id: str, key: str, shard: str) -> list[dict[str, Any]]:
    """Return the rows, codes and samples that were made from a sample."""
    uses: list[dict[str, Any]] = []
    for item, folder in context.made_from(id):
        with folder.lock:
            if folder.content == "tokens":
                first, rows = folder.first_numbers().get(shard), folder.tokens()
                if first is not None:
                    row = rows.shard(rows.locate(first)[0]).keys.find(key)
                    if row is not None:
                        uses.append({"kind": "row", "id": item.id, "number": first + row})
            elif folder.content == "codes":
                uses += [
                    {"kind": "codes", "id": item.id, "shard": number, "image": image}
                    for number, image in find_images(folder, key)[:1]
                ]
            elif folder.content == "samples":
                found = find_sample(folder, key, shard)
                if found is not None:
                    uses.append({"kind": "sample", "id": item.id, "number": found})
    return uses


ANSWERS: Mapping[str, Answer] = {
    "map": show_map,
    "item": show_item,
    "units": list_units,
    "unit": show_unit,
    "rejects": list_rejects,
    "samples": _samples,
    "sample": _sample,
    "rows": _rows,
    "row": _row,
    "packs": list_packs,
    "pack": show_pack,
    "plots": _plots,
    "codes": list_codes,
    "search": search,
}
