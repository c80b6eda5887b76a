"""Samples: cards in a list, one sample in full, and how to find one by its key."""

from __future__ import annotations

from typing import Any

import orjson

from shardmill.errors import FormatError, SampleError
from shardmill.model.sample import Document, Origin, Sample, Segment
from shardmill.shards.samples import Members, SampleDataset, entry_index, parse_sample
from shardmill.shards.tar.index import TarIndex
from shardmill.sources.source import media_kind
from shardmill.view.folder import Folder
from shardmill.view.items import Item, NotHere
from shardmill.view.query import Budget

CARD_CHARS = 160
MAX_CHARS = 20_000
MAX_SEGMENTS = 400
MAX_EXTRA_CHARS = 4000
MAX_ASKED = 64
SIZES = ("width", "height", "num_frames", "fps", "duration_s")


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


def show_sample(folder: Folder, number: int) -> dict[str, Any]:
    """Return a sample in full: its document, its media, its origin and other fields."""
    with folder.lock:
        samples = folder.samples()
        if not 0 <= number < len(samples):
            raise NotHere(f"there are samples 0..{len(samples) - 1}, not {number}")
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


def find_sample(folder: Folder, key: str, shard_name: str | None = None) -> int | None:
    """Return the number of a sample by its key, or None.

    A stage over samples writes each shard under the name of its input shard, so that usually the
    first index has it. Otherwise some indexes are asked in turn; for more there is the search.
    """
    with folder.lock:
        samples, first = folder.samples(), folder.first_numbers()
        places = list(range(min(MAX_ASKED, len(samples.entries))))
        if shard_name in first:
            places.insert(0, samples.locate(first[shard_name])[0])
        for place in places:
            entry = samples.entries[place]
            row = entry_index(folder.path, entry).find(key)
            if row is not None:
                return int(first[entry.name] + row)
    return None


def sample_place(
    samples: tuple[Item, Folder], key: str, shard: str | None
) -> dict[str, Any] | None:
    """Return id and number of the sample that a row or an image was made from, None if not here.

    A row that was split off a longer one has its key with ~1, ~2 added, unless a sample has that.
    """
    item, folder = samples
    number = find_sample(folder, key, shard)
    if number is None and "~" in key:
        number = find_sample(folder, key.rpartition("~")[0], shard)
    return None if number is None else {"id": item.id, "number": number}


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
        "origin": describe_origin(sample.origin),
        "extra": {str(k): str(v)[:MAX_EXTRA_CHARS] for k, v in sample.extra.items()},
        "raw": {},
    }


def describe_origin(origin: Origin | None) -> dict[str, Any] | None:
    """Return where a sample or a row came from."""
    if origin is None:
        return None
    return {"source": origin.source, "path": origin.path, "row": origin.row}


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
