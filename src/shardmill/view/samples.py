"""Samples as the page shows them: cards in a list, one sample in full, and where to find one."""

from __future__ import annotations

from itertools import chain
from typing import Any

import orjson

from shardmill.errors import FormatError, SampleError
from shardmill.model.sample import Document, Sample, Segment
from shardmill.shards.samples.dataset import SampleSet, entry_index
from shardmill.shards.samples.shard import Raw, parse_sample
from shardmill.shards.tar.index import ShardIndex
from shardmill.sources.part import media_kind
from shardmill.view.folder import Folder
from shardmill.view.items import NotHere
from shardmill.view.query import Budget

CARD_CHARS = 160
MAX_CHARS = 20_000
MAX_SEGMENTS = 400
MAX_EXTRA_CHARS = 4000
MAX_ASKED = 64
SIZES = ("width", "height", "num_frames", "fps", "duration_s")


def list_samples(folder: Folder, numbers: range | list[int]) -> list[dict[str, Any]]:
    """Return cards of these samples."""
    with folder.lock:
        samples = folder.samples()
        return [_card(folder, samples, number) for number in numbers]


def filter_samples(
    folder: Folder, at: int, count: int, *, source: str, wanted: str, budget: Budget
) -> dict[str, Any]:
    """Return cards of samples from `at` on, of one source, with `wanted` in their key.

    Keys and sources are columns of the indexes: no tar is opened for what does not fit.
    """
    with folder.lock:
        samples = folder.samples()
        total, number, found = len(samples), at, list[int]()
        if not source and not wanted:
            found = list(range(at, min(at + count, total)))
            number = at + count
        while number < total and len(found) < count and not budget.is_spent:
            shard, inside = samples.locate(number)
            rows = _matching_in(folder, samples, shard, inside, source, wanted)
            found += [number - inside + row for row in rows[: count - len(found)]]
            size = samples.entries[shard].num_samples
            number = found[-1] + 1 if len(found) >= count else number - inside + size
        cards = [_card(folder, samples, n) for n in found]
    done = number >= total
    return {"cards": cards, "next": None if done else number, "searched": min(number, total)}


def _matching_in(
    folder: Folder, samples: SampleSet, shard: int, first: int, source: str, wanted: str
) -> list[int]:
    """Return the rows of a shard that match; none of a shard that cannot be read."""
    try:
        index = entry_index(folder.path, samples.entries[shard])
        return matching(index, first, source, wanted, len(index))
    except FormatError:
        return []


def matching(index: ShardIndex, first: int, source: str, wanted: str, count: int) -> list[int]:
    """Return up to `count` rows from `first` on, of a source, with `wanted` in their key."""
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
        shard = folder.sample_shard(place)
        key, raw = shard.index.keys[inside], shard.raw(inside)
        shown: dict[str, Any] = {
            "number": number,
            "total": len(samples),
            "key": key,
            "shard": samples.entries[place].name,
            "unit": samples.entries[place].name
            if folder.has_unit(samples.entries[place].name)
            else None,
            "row_in_shard": inside,
            "media": media_sizes(shard.index, inside),
        }
        try:
            return shown | _document(_readable(key, raw))
        except SampleError as error:
            return shown | {"segments": [], "problem": str(error), "raw": _texts(raw)}


def media_sizes(index: ShardIndex, inside: int) -> dict[str, dict[str, Any]]:
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
    """Return the number of a sample by its key, looking first where it should be.

    A stage over samples makes a shard of each shard under the same name, so that one index tells.
    Otherwise some indexes are asked in turn: for more there is the search.
    """
    with folder.lock:
        samples = folder.samples()
        starts, numbers = folder.places()
        likely = numbers.get(shard_name or "")
        asked = range(min(MAX_ASKED, len(samples.entries)))
        for place in asked if likely is None else chain([likely], asked):
            row = entry_index(folder.path, samples.entries[place]).find(key)
            if row is not None:
                return int(starts[place] + row)
    return None


def _card(folder: Folder, samples: SampleSet, number: int) -> dict[str, Any]:
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


def _readable(key: str, raw: Raw) -> Sample:
    """Return the sample, or the members of one that others wrote: media first, then texts."""
    if not _is_of_others(raw):
        return parse_sample(key, raw)
    kinds = {ext: media_kind(ext) for ext in raw}
    media = (Segment(kind=kind, media=ext) for ext, kind in kinds.items() if kind is not None)
    texts = (Segment(kind="text", text=text) for text in _texts(raw).values())
    return Sample(key=key, document=Document((*media, *texts)))


def _is_of_others(raw: Raw) -> bool:
    if "json" not in raw:
        return True
    try:
        plain = orjson.loads(raw["json"])
    except orjson.JSONDecodeError:
        return False
    return isinstance(plain, dict) and "segments" not in plain


def _document(sample: Sample) -> dict[str, Any]:
    segments = sample.document.segments
    origin = sample.origin
    return {
        "segments": [_segment(segment) for segment in segments[:MAX_SEGMENTS]],
        "num_segments": len(segments),
        "origin": None
        if origin is None
        else {"source": origin.source, "path": origin.path, "row": origin.row},
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


def _texts(raw: Raw) -> dict[str, str]:
    """Return members that look like text, for samples that are no documents of ours."""
    texts = {ext: bytes(content[:MAX_EXTRA_CHARS]) for ext, content in raw.items()}
    return {
        ext: content.decode("utf-8", "replace")
        for ext, content in texts.items()
        if ext.rpartition(".")[2] in ("json", "txt", "cls", "caption") and b"\0" not in content
    }


def _with_text(index: ShardIndex, first: int, wanted: str) -> list[int]:
    """Return the rows whose key holds a text, by one pass over the bytes of all keys."""
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
