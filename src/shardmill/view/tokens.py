"""Rows of tokens, and packs wherever they come from: a plan, token shards, tars, or an export.

Each source of packs says how many it has and returns one as documents; a plan over lengths alone
(for models that take pixels) knows how long its documents are, and how much of them is visual.
Exports are read by the reader of their format: each record is shown as a pack of its documents.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate, chain, islice, repeat
from typing import Any, Protocol

import numpy as np

from shardmill.errors import ConfigError, FormatError, NotFound, SampleError, ShardmillError
from shardmill.formats.finder import open_reader
from shardmill.formats.format import Part, Reader, Record
from shardmill.formats.packed import packed_documents, packed_row, parse_packed
from shardmill.model.codec import digest
from shardmill.model.plan import LengthTable, PackPlan
from shardmill.model.sample import Origin
from shardmill.model.space import TokenSpace
from shardmill.model.tokenrow import MediaSpan, TokenRow, cut_row, no_spans
from shardmill.packing.build import lay_out, num_stored_packs, stored_rows
from shardmill.packing.order import EpochOrder
from shardmill.shards.tokens.shard import TokenDataset
from shardmill.storage.path import UrlPath
from shardmill.view.answers import Budget, Query
from shardmill.view.context import Context, Folder, Item, sample_place
from shardmill.view.decoder import Decoder

ROWS_PER_PAGE, PACKS_PER_PAGE = 48, 24
# Ids of packs in tars are only shown, so that any that fit into 32 bits will do.
ANY_SPACE = TokenSpace(text_size=(1 << 31) - 1)
MAX_CHARS = 4000


def list_rows(context: Context, query: Query) -> dict[str, Any]:
    """Return the rows from a number on that match the filter."""
    folder = context.folder(query.text("id"), "tokens", "packs")
    at, count = query.number("at", 0), query.number("count", ROWS_PER_PAGE, most=200)
    source, wanted = query.text("source", ""), query.text("q", "")
    found = filter_rows(folder, at, count, source=source, wanted=wanted, budget=Budget())
    return {"total": sum(entry.num_samples for entry in folder.entries()), **found}


def show_row(context: Context, query: Query) -> dict[str, Any]:
    """Return a row in full: its runs of tokens, spans of loss, media, origin and its sample."""
    id, number = query.text("id"), query.number("n")
    folder, samples = context.folder(id, "tokens", "packs"), context.upstream(id, "samples")
    decoder = open_decoder(context, id)
    with folder.lock:
        rows = folder.tokens()
        if not 0 <= number < len(rows):
            raise NotFound(f"there are rows 0..{len(rows) - 1}, not {number}")
        row = rows[number]
        shard, inside = rows.locate(number)
        name = rows.entries[shard].name
        shown = {
            "number": number,
            "total": len(rows),
            "shard": name,
            "row_in_shard": inside,
            **describe_row(row),
            **decoder.decode(row),
        }
    return shown | {"sample_at": sample_place(samples, row.key, name)}


def filter_rows(
    folder: Folder, at: int, count: int, *, source: str, wanted: str, budget: Budget
) -> dict[str, Any]:
    """Return rows from `at` on, of one source, with `wanted` in their key."""
    with folder.lock:
        rows = folder.tokens()
        total, number, found = len(rows), at, list[dict[str, Any]]()
        while number < total and len(found) < count and not budget.is_spent:
            shard, inside = rows.locate(number)
            opened = rows.shard(shard)
            if source and source not in opened.spans.meta["sources"]:
                number += len(opened) - inside
                continue
            line = _line(rows, number)
            if wanted in line["key"] and source in ("", line["source"]):
                found.append(line)
            number += 1
    return {"rows": found, "next": None if number >= total else number, "searched": number}


def _line(rows: TokenDataset, number: int) -> dict[str, Any]:
    place, inside = rows.locate(number)
    shard = rows.shard(place)
    origin = shard.origin(inside)
    return {
        "number": number,
        "key": shard.keys[inside],
        "tokens": int(shard.lengths[inside]),
        "visual": int(shard.num_visual[inside]),
        "loss_tokens": int(shard.loss(inside)[:, 1].sum()),
        "source": origin.source if origin else "",
        "media": [describe_span(span) for span in shard.media(inside)],
    }


@dataclass(frozen=True, slots=True)
class PackRow:
    """A document of a pack.

    `row` has its tokens; where there are only lengths, `planned` is (tokens, visual tokens), and
    where a record has no tokens, `text` is its text. `has_loss` is false for a format that has no
    place for a loss mask. `number` is the row's number among the tokens
    that were packed, `stored` its number in the folder of packs itself.
    """

    row: TokenRow | None
    number: int | None = None
    planned: tuple[int, int] = (0, 0)
    shard: str | None = None
    stored: int | None = None
    key: str = ""
    text: str = ""
    has_loss: bool = True


class PackSource(Protocol):
    """Packs by number."""

    @property
    def capacity(self) -> int | None:
        """The tokens of a full pack; None if it is not known."""

    @property
    def alignment(self) -> int:
        """What each document is rounded up to."""

    def __len__(self) -> int:
        """The number of packs."""

    def rows(self, number: int) -> list[PackRow]:
        """Return the documents of a pack."""


def open_packs(context: Context, id: str) -> PackSource:
    """Return the packs of a plan, of a folder that `pack` made, or of an export."""
    if context.item(id).kind == "plan":
        return _planned(context, id)
    folder = context.folder(id, "packs", "export")
    if folder.content == "export":
        key = "records", id, folder.manifest and folder.manifest.units_digest
        return context.cached(key, lambda: open_records(folder))
    plans = [item for item in context.inputs(id) if item.kind == "plan"]
    return stored_packs(folder, context.plan(plans[0].id) if plans else None)


def _planned(context: Context, id: str) -> PacksOfPlan:
    plan, data = context.plan(id), context.data_of_plan(id)
    if data is None:
        return PacksOfPlan(plan, None, None)
    if data.kind == "stage" and context.folder(data.id).content == "tokens":
        return PacksOfPlan(plan, context.folder(data.id), None)
    return PacksOfPlan(plan, None, context.lengths(data.id))


@dataclass(frozen=True, slots=True)
class PacksOfPlan:
    """The packs of a plan, read from token shards if they are here."""

    plan: PackPlan
    tokens: Folder | None
    table: LengthTable | None

    def __len__(self) -> int:
        return len(self.plan)

    @property
    def capacity(self) -> int | None:
        """The capacity of the plan."""
        return self.plan.spec.capacity

    @property
    def alignment(self) -> int:
        """The alignment of the plan."""
        return self.plan.spec.alignment

    def rows(self, number: int) -> list[PackRow]:
        """Return the documents of a pack, as long as planned."""
        numbers = self.plan[number].tolist()
        if self.tokens is not None:
            with self.tokens.lock:
                return [self._row(self.tokens, n) for n in numbers]
        if self.table is None:
            return [PackRow(None, n) for n in numbers]
        lengths = self.plan.lengths_of(self.plan[number], self.table).tolist()
        return [self._measured(self.table, n, length) for n, length in zip(numbers, lengths)]

    def _row(self, tokens: Folder, number: int) -> PackRow:
        rows, cut_rows = tokens.tokens(), self.plan.cut_rows
        row, shard = rows[number], rows.entries[rows.locate(number)[0]].name
        place = int(np.searchsorted(cut_rows, number))
        if place < len(cut_rows) and int(cut_rows[place]) == number:
            row = cut_row(row, int(self.plan.cut_lengths[place]))
        return PackRow(row, number, shard=shard)

    def _measured(self, table: LengthTable, number: int, length: int) -> PackRow:
        shard = table.locate(number)[0] if len(table.shard_names) else None
        return PackRow(None, number, (length, int(table.num_visual[number])), shard)


def stored_packs(folder: Folder, plan: PackPlan | None) -> StoredPacks | TarPacks:
    """Return the packs of a folder that `shardmill pack` made."""
    if folder.spec.get("format") == "tar":
        return TarPacks(folder, plan)
    starts = [0]
    for number, entry in enumerate(folder.entries()):
        span = folder.unit(entry.name).input if folder.has_unit(entry.name) else {}
        first, last = span.get("start"), span.get("stop")
        if not isinstance(first, int) or not isinstance(last, int):
            with folder.lock:
                first, last = 0, num_stored_packs(folder.tokens().shard(number))
        starts.append(starts[-1] + last - first)
    return StoredPacks(folder, plan, starts)


@dataclass(frozen=True, slots=True)
class StoredPacks:
    """Packs in token shards; the plan, if it is here, tells which rows they were made of."""

    folder: Folder
    plan: PackPlan | None
    starts: Sequence[int]

    def __len__(self) -> int:
        return self.starts[-1]

    @property
    def capacity(self) -> int | None:
        """The capacity of the plan."""
        return None if self.plan is None else self.plan.spec.capacity

    @property
    def alignment(self) -> int:
        """The alignment of the plan."""
        return 1 if self.plan is None else self.plan.spec.alignment

    def rows(self, number: int) -> list[PackRow]:
        """Return the documents of a pack as they are stored."""
        place = bisect_right(self.starts, number) - 1
        with self.folder.lock:
            tokens = self.folder.tokens()
            shard, inside = tokens.shard(place), number - self.starts[place]
            rows = stored_rows(shard, inside)
            first = self.folder.first_numbers()[tokens.entries[place].name]
            first += int(shard.documents[inside])
        numbers = self._numbers(number, len(rows))
        return [PackRow(row, n, stored=first + i) for i, (row, n) in enumerate(zip(rows, numbers))]

    def _numbers(self, number: int, count: int) -> Sequence[int | None]:
        if self.plan is None or not 0 <= number < len(self.plan):
            return [None] * count
        # Packs are stored in the order of training, so that the order leads back to the plan.
        spec = self.folder.spec
        order = EpochOrder(self.plan, seed=int(spec["seed"]), epoch=int(spec["epoch"]))
        numbers: list[int] = self.plan[int(order.packs(np.array([number]))[0])].tolist()
        return numbers if len(numbers) == count else [None] * count


@dataclass(frozen=True, slots=True)
class TarPacks:
    """Packs in tars, found by the index of each tar; documents have no padding."""

    folder: Folder
    plan: PackPlan | None
    alignment: int = 1

    def __len__(self) -> int:
        return sum(entry.num_samples for entry in self.folder.entries())

    @property
    def capacity(self) -> int | None:
        """The capacity of the plan."""
        return None if self.plan is None else self.plan.spec.capacity

    def rows(self, number: int) -> list[PackRow]:
        """Return the documents of a pack; their media are named as the members of the tar."""
        with self.folder.lock:
            place, inside = self.folder.samples().locate(number)
            shard = self.folder.sample_shard(place)
            raw = shard.raw(inside)
            members, content = [name for name in raw if name != "json"], bytes(raw.get("json", b""))
        key = shard.index.keys[inside]
        try:
            fields = parse_packed(content, key)
            whole = packed_row(key, fields, ANY_SPACE, Origin(source="", path="", row=key))
            media = (
                replace(span, name=name)
                for span, name in zip(whole.media, chain(members, repeat("")))
            )
            rows = packed_documents(replace(whole, media=tuple(media), origin=None), fields)
        except SampleError as error:
            raise FormatError(f"pack {number}: {error}", path=shard.index.arrays.path) from error
        return [PackRow(replace(row, continues=False)) for row in rows]


def open_records(folder: Folder) -> RecordPacks:
    """Return the records of an export; raises `ConfigError` if its format has no reader."""
    if isinstance(folder.path, UrlPath):
        raise ConfigError("records of an export in a store are not shown: copy it to a disk")
    reader = open_reader(str(folder.path))
    parts = list(reader.parts())
    starts = list(accumulate((part.num_records for part in parts), initial=0))
    return RecordPacks(reader, parts, starts)


@dataclass(slots=True)
class RecordPacks:
    """The records of an export. They can only be read in order, so the reading goes on from the
    last one that was asked for where that is possible."""

    reader: Reader
    parts: list[Part]
    starts: list[int]
    capacity: int | None = None
    alignment: int = 1
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _reading: Iterator[Record] = field(default_factory=lambda: iter(()))
    _next: tuple[int, int] = (-1, 0)

    def __len__(self) -> int:
        return self.starts[-1]

    def rows(self, number: int) -> list[PackRow]:
        """Return the documents of a record; one without tokens is its text."""
        part = bisect_right(self.starts, number) - 1
        inside = number - self.starts[part]
        with self._lock:
            if part != self._next[0] or inside < self._next[1]:
                self._reading, self._next = self.reader.read(self.parts[part].input), (part, 0)
            record = next(islice(self._reading, inside - self._next[1], None), None)
            self._next = part, inside + 1
        if record is None:
            raise NotFound(f"the export has no record {number}")
        if record.problem is not None:
            return [PackRow(None, key=record.key, text=str(record.problem))]
        if not record.rows:
            return [PackRow(None, key=record.key, text=record.text[:MAX_CHARS])]
        if "loss" in self.reader.holds():
            return [PackRow(row) for row in record.rows]
        return [PackRow(replace(row, loss=no_spans()), has_loss=False) for row in record.rows]


def list_packs(context: Context, query: Query) -> dict[str, Any]:
    """Return some packs as strips: where documents begin, and how much of each is visual."""
    packs = open_packs(context, query.text("id"))
    at, count = query.number("at", 0), query.number("count", PACKS_PER_PAGE, most=100)
    numbers = range(min(at, len(packs)), min(at + count, len(packs)))
    return {
        "total": len(packs),
        "at": at,
        "packs": [{"number": n, **layout_of(packs, packs.rows(n))} for n in numbers],
    }


def show_pack(context: Context, query: Query) -> dict[str, Any]:
    """Return a pack in full, with links from its documents to their rows, samples and files."""
    id, number = query.text("id"), query.number("n")
    item, packs = context.item(id), open_packs(context, id)
    if not 0 <= number < len(packs):
        raise NotFound(f"there are packs 0..{len(packs) - 1}, not {number}")
    rows = packs.rows(number)
    tokens, samples = context.upstream(id, "tokens"), context.upstream(id, "samples")
    inside = {"id": id, "number": number} if isinstance(packs, TarPacks) else None
    # Rows that lie in no token shard of ours are decoded here; the page asks for the others.
    decoder = open_decoder(context, id) if isinstance(packs, TarPacks | RecordPacks) else None
    return {
        "number": number,
        "total": len(packs),
        **layout_of(packs, rows),
        "documents": [
            {
                **_document(row, decoder),
                "tokens_at": _tokens_at(item, tokens, row),
                "sample_at": _sample_at(samples, row),
                "media_at": inside,
            }
            for row in rows
        ],
        "samples": None if samples is None else samples[0].id,
    }


def layout_of(packs: PackSource, rows: Sequence[PackRow]) -> dict[str, Any]:
    """Return where the documents of a pack lie, and how much of it is padding."""
    lengths = [row.planned[0] if row.row is None else len(row.row.ids) for row in rows]
    layout = lay_out(lengths, alignment=packs.alignment)
    size = max(packs.capacity or 0, layout.size)
    return {
        "size": size,
        "capacity": packs.capacity,
        "tokens": layout.num_tokens,
        "padding": size - layout.num_tokens,
        "starts": layout.starts.tolist(),
        "lengths": lengths,
        "padded": layout.padded.tolist(),
        "visual": [row.planned[1] if row.row is None else row.row.num_visual for row in rows],
    }


def _tokens_at(
    item: Item, tokens: tuple[Item, Folder] | None, row: PackRow
) -> dict[str, Any] | None:
    if tokens is not None and row.number is not None:
        return {"id": tokens[0].id, "name": tokens[0].name, "number": row.number}
    if row.stored is None:
        return None
    return {"id": item.id, "name": item.name, "number": row.stored}


def _sample_at(samples: tuple[Item, Folder] | None, row: PackRow) -> dict[str, Any] | None:
    if samples is None:
        return None
    try:
        if row.row is not None or row.key:
            return sample_place(samples, row.row.key if row.row else row.key, row.shard)
        # A table of lengths has a row for each sample, in the same order.
        return None if row.number is None else {"id": samples[0].id, "number": row.number}
    except ShardmillError:
        return None


def _document(row: PackRow, decoder: Decoder | None) -> dict[str, Any]:
    if row.row is not None:
        decoded = {} if decoder is None else decoder.decode(row.row)
        shown = {**describe_row(row.row), "text": "", **decoded}
        return shown if row.has_loss else shown | {"loss_tokens": None}
    tokens, visual = row.planned
    return {
        "key": row.key or ("" if row.number is None else f"row {row.number:,}"),
        "tokens": tokens,
        "visual": visual,
        "loss_tokens": None,
        "loss": [],
        "media": [],
        "origin": None,
        "continues": False,
        "text": row.text,
    }


def open_decoder(context: Context, id: str) -> Decoder:
    """Return the decoder of a folder; packs are decoded by the tokenizer of their tokens."""
    folder, tokens = context.folder(id), context.upstream(id, "tokens")
    spec = folder.spec if "tokenizer" in folder.spec or tokens is None else tokens[1].spec
    return context.cached(
        ("decoder", digest(spec)), lambda: Decoder(spec, context.policy.check_url)
    )


def describe_row(row: TokenRow) -> dict[str, Any]:
    """Return what a row is, without its tokens."""
    return {
        "key": row.key,
        "tokens": len(row.ids),
        "visual": row.num_visual,
        "loss_tokens": row.num_loss,
        "loss": row.loss.tolist(),
        "media": [describe_span(span) for span in row.media],
        "origin": None if row.origin is None else asdict(row.origin),
        "continues": row.continues,
    }


def describe_span(span: MediaSpan) -> dict[str, Any]:
    """Return where a medium lies among the tokens."""
    return {
        "name": span.name,
        "kind": span.kind,
        "position": span.position,
        "tokens": span.num_tokens,
        "grid": list(span.grid),
        "before": span.before,
        "after": span.after,
    }
