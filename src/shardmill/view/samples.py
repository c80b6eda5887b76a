"""Samples: cards in a list, one in full, those that were rejected, and a search over everything.

The search looks at keys of samples and rows, sources, reasons of rejects and names of items. Each
request searches for a moment and returns a cursor; the page asks again until it has enough to show.
Nothing is loaded whole and no index of keys is built.
"""

from __future__ import annotations

from dataclasses import asdict
from itertools import islice
from typing import Any

import numpy as np
import orjson

from shardmill.errors import FormatError, NotFound, SampleError, ShardmillError
from shardmill.model.sample import Document, Sample, Segment
from shardmill.shards.arrays import KeyColumn
from shardmill.shards.ledger import read_rejects
from shardmill.shards.samples import Members, SampleDataset, entry_index, parse_sample
from shardmill.shards.tar.index import TarIndex
from shardmill.sources.source import media_kind
from shardmill.view.answers import Budget, Query
from shardmill.view.context import Context, Folder

CARD_CHARS = 160
MAX_CHARS = 20_000
MAX_SEGMENTS = 400
MAX_EXTRA_CHARS = 4000
SIZES = ("width", "height", "num_frames", "fps", "duration_s")
PER_PAGE = 48
PER_ITEM = 8
MAX_DIGITS = 18
MAX_HITS = 60
MAX_REJECTS = 100


def list_samples(context: Context, query: Query) -> dict[str, Any]:
    """Return cards of the samples from a number on that match the filter."""
    folder = context.folder(query.text("id"), "samples")
    at, count = query.number("at", 0), query.number("count", PER_PAGE, most=200)
    source, wanted = query.text("source", ""), query.text("q", "")
    found = filter_samples(folder, at, count, source=source, wanted=wanted, budget=Budget())
    return {"total": sum(entry.num_samples for entry in folder.entries()), **found}


def show_sample(context: Context, query: Query) -> dict[str, Any]:
    """Return a sample in full, with its raw file and what was made from it."""
    id = query.text("id")
    shown = describe_sample(context.folder(id, "samples"), query.number("n"))
    if shown.get("origin"):
        shown["origin"]["file"] = context.raw_file(id, shown["origin"]["path"])
    return shown | {"uses": _uses(context, id, shown["key"], shown["shard"])}


def filter_samples(
    folder: Folder, at: int, count: int, *, source: str, wanted: str, budget: Budget
) -> dict[str, Any]:
    """Return cards of samples from `at` on, of one source, with `wanted` in their keys.

    Keys and sources are columns of the indexes: no tar is opened for a sample that is not shown.
    """
    with folder.lock:
        samples = folder.samples()
        total, number, found = len(samples), at, list[int]()
        if not source and not wanted:
            found = list(range(at, min(at + count, total)))
            number = at + count
        while number < total and len(found) < count and not budget.is_spent:
            shard, inside = samples.locate(number)
            try:
                index = entry_index(folder.path, samples.entries[shard])
                rows = matching(index, inside, source, wanted, count - len(found))
            except FormatError:
                rows = []  # a shard that cannot be read hides only its own samples
            found += [number - inside + row for row in rows]
            size = samples.entries[shard].num_samples
            number = found[-1] + 1 if len(found) >= count else number - inside + size
        cards = [_card(folder, samples, n) for n in found]
    done = number >= total
    return {"cards": cards, "next": None if done else number, "searched": min(number, total)}


def matching(index: TarIndex, first: int, source: str, wanted: str, count: int) -> list[int]:
    """Return up to `count` rows from `first` on, of a source, with `wanted` in their keys."""
    if source and source not in index.sources:
        return []
    of_source = index.column("source") == index.sources.index(source) if source else None
    rows = _with_text(index, first, wanted) if wanted else range(first, len(index))
    found: list[int] = []
    for row in rows:
        if of_source is None or of_source[row]:
            found.append(row)
            if len(found) >= count:
                break
    return found


def describe_sample(folder: Folder, number: int) -> dict[str, Any]:
    """Return a sample in full: its document, its media, its origin and other fields."""
    with folder.lock:
        samples = folder.samples()
        if not 0 <= number < len(samples):
            raise NotFound(f"there are samples 0..{len(samples) - 1}, not {number}")
        place, inside = samples.locate(number)
        name, shard = samples.entries[place].name, folder.sample_shard(place)
        key, raw = shard.index.keys[inside], shard.raw(inside)
        shown: dict[str, Any] = {
            "number": number,
            "total": len(samples),
            "key": key,
            "shard": name,
            "unit": name if folder.has_unit(name) else None,
            "row_in_shard": inside,
            "media": media_sizes(shard.index, inside),
        }
        try:
            return shown | _document(_readable(key, raw))
        except SampleError as error:
            return shown | {"segments": [], "problem": str(error), "raw": _texts(raw)}


def media_sizes(index: TarIndex, inside: int) -> dict[str, dict[str, Any]]:
    """Return what the index knows of each medium: bytes, width, height, frames, rate, duration."""
    columns = {name: index.column(name) for name in SIZES}
    first = index.first[inside]
    return {
        member.ext: {
            "bytes": member.size,
            **{name: column[first + i].item() for name, column in columns.items()},
        }
        for i, member in enumerate(index.members(inside))
        if member.ext not in ("json", "txt")
    }


def _card(folder: Folder, samples: SampleDataset, number: int) -> dict[str, Any]:
    place, inside = samples.locate(number)
    card: dict[str, Any] = {"number": number, "key": "", "text": "", "media": {}, "kinds": {}}
    try:
        shard = folder.sample_shard(place)
        key, raw = shard.index.keys[inside], shard.raw(inside)
        card |= {"key": key, "media": media_sizes(shard.index, inside)}
        sample = _readable(key, raw)
    except (SampleError, FormatError) as error:
        return card | {"problem": str(error)}
    media = sample.document.media()
    return card | {
        "text": sample.document.text[:CARD_CHARS],
        "kinds": {segment.media: segment.kind for segment in media},
        "source": sample.origin.source if sample.origin else "",
    }


def _readable(key: str, raw: Members) -> Sample:
    """Return the sample; of a tar that other tools wrote its media first, then its texts."""
    if not _is_foreign(raw):
        return parse_sample(key, raw)
    kinds = {ext: media_kind(ext) for ext in raw}
    media = (Segment(kind=kind, media=ext) for ext, kind in kinds.items() if kind is not None)
    texts = (Segment(kind="text", text=text) for text in _texts(raw).values())
    return Sample(key=key, document=Document((*media, *texts)))


def _is_foreign(raw: Members) -> bool:
    if "json" not in raw:
        return True
    try:
        plain = orjson.loads(raw["json"])
    except orjson.JSONDecodeError:
        return False
    return isinstance(plain, dict) and "segments" not in plain


def _document(sample: Sample) -> dict[str, Any]:
    segments = sample.document.segments
    return {
        "segments": [_segment(segment) for segment in segments[:MAX_SEGMENTS]],
        "num_segments": len(segments),
        "origin": None if sample.origin is None else asdict(sample.origin),
        "extra": {str(k): str(v)[:MAX_EXTRA_CHARS] for k, v in sample.extra.items()},
        "raw": {},
    }


def _segment(segment: Segment) -> dict[str, Any]:
    return {
        "kind": segment.kind,
        "text": segment.text[:MAX_CHARS],
        "cut": max(0, len(segment.text) - MAX_CHARS),
        "media": segment.media,
        "role": segment.role,
        "turn": segment.turn,
        "time_s": segment.time_s,
    }


def _texts(raw: Members) -> dict[str, str]:
    """Return the members that look like text, of samples without a document."""
    texts = {ext: bytes(content[:MAX_EXTRA_CHARS]) for ext, content in raw.items()}
    return {
        ext: content.decode("utf-8", "replace")
        for ext, content in texts.items()
        if ext.rpartition(".")[2] in ("json", "txt", "cls", "caption") and b"\0" not in content
    }


def _with_text(index: TarIndex, first: int, wanted: str) -> list[int]:
    """Return the rows whose key contains a text, by one pass over the bytes of all keys."""
    data, bounds = index.keys.data, index.arrays["key_bounds"]
    needle, start = wanted.encode("utf-8", "surrogateescape"), int(bounds[first])
    content = bytes(data[start:])
    rows: list[int] = []
    at = content.find(needle)
    while at >= 0:
        row = int(bounds.searchsorted(start + at, side="right")) - 1
        if start + at + len(needle) <= int(bounds[row + 1]):
            rows.append(row)
            at = content.find(needle, int(bounds[row + 1]) - start)
        else:
            at = content.find(needle, at + 1)
    return rows


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
                found = folder.find_sample(key, shard)
                if found is not None:
                    uses.append({"kind": "sample", "id": item.id, "number": found})
    return uses


def find_images(folder: Folder, key: str) -> list[tuple[int, int]]:
    """Return (shard, image) of each image of a sample."""
    for number in range(len(folder.entries())):
        opened = folder.codes(number)
        sample = opened.find(key)
        if sample is not None:
            first, last = (int(opened.arrays["first"][sample + i]) for i in (0, 1))
            return [(number, image) for image in range(first, last)]
    return []


def list_rejects(context: Context, query: Query) -> dict[str, Any]:
    """Return rejects of a folder, by reason and text, from a cursor on."""
    folder = context.folder(query.text("id"))
    cursor = query.number("file", 0), query.number("line", 0)
    return find_rejects(folder, query.text("reason", ""), query.text("q", ""), cursor, Budget())


def find_rejects(
    folder: Folder, reason: str, wanted: str, cursor: tuple[int, int], budget: Budget
) -> dict[str, Any]:
    """Return rejects of a reason ("" for all) whose key or detail contains `wanted`.

    The cursor is (file, line); the answer has the cursor to continue with, None at the end.
    """
    paths = sorted((folder.path / "rejects").glob("*.jsonl"))
    found: list[dict[str, Any]] = []

    def answer(cursor: list[int] | None, searched: int) -> dict[str, Any]:
        return {"found": found, "cursor": cursor, "searched": searched, "of": len(paths)}

    for file in range(cursor[0], len(paths)):
        first = cursor[1] if file == cursor[0] else 0
        for line, reject in enumerate(islice(read_rejects(paths[file]), first, None), first):
            if len(found) >= MAX_REJECTS or budget.is_spent:
                return answer([file, line], file)
            text = f"{reject.key}\n{reject.detail}".casefold()
            if reason in ("", reject.reason) and wanted.casefold() in text:
                found.append({**asdict(reject), "unit": paths[file].stem})
    return answer(None, len(paths))


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
    find = {"samples": _find_samples, "tokens": _find_rows, "packs": _find_rows}.get(folder.content)
    if folder.spec.get("format") == "tar":
        find = None  # packs in tars have keys of packs, not of documents
    try:
        hits = [] if shard else _find_rejects(id, folder, wanted, budget)
        if find is None:
            return hits, -1
        with folder.lock:
            return find(id, folder, wanted, shard, budget, hits)
    except ShardmillError:
        return [], -1


def _find_rejects(id: str, folder: Folder, wanted: str, budget: Budget) -> list[dict[str, Any]]:
    skipped = folder.manifest.skipped if folder.manifest else {}
    reasons = [reason for reason in skipped if wanted.casefold() in reason.casefold()]
    hits = [{"kind": "reason", "id": id, "text": reason, "about": "skipped"} for reason in reasons]
    found = find_rejects(folder, "", wanted, (0, 0), budget)["found"][:PER_ITEM]
    return hits + [
        {"kind": "reject", "id": id, "text": r["key"], "about": r["reason"], "unit": r["unit"]}
        for r in found
    ]


def _find_samples(
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


def _find_rows(
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
