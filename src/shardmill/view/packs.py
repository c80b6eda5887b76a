"""Packs as the page shows them, wherever they come from: a plan, token shards, or tars.

Each source says how many packs it has and returns one as rows of tokens; a plan over lengths alone
(for models that take pixels) knows how long its documents are, and how much of them is visual.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import orjson

from shardmill.errors import ConfigError, FormatError
from shardmill.model.lengths import LengthTable
from shardmill.model.plan import PackPlan
from shardmill.model.tokenrow import MediaSpan, TokenRow, spans_of
from shardmill.pack.build import cut_row, num_stored_packs, stored_rows
from shardmill.pack.layout import lay_out
from shardmill.pack.order import EpochOrder
from shardmill.view.folder import Folder
from shardmill.view.items import NotHere


@dataclass(frozen=True, slots=True)
class PackRow:
    """A document of a pack: its row of tokens, and the number of that row where it is known.

    `planned` stands for the tokens where there are only lengths: (tokens, visual). `stored` is the
    number of the row in the folder of packs itself.
    """

    row: TokenRow | None
    number: int | None = None
    planned: tuple[int, int] = (0, 0)
    shard: str | None = None
    stored: int | None = None


class PackSource(Protocol):
    """Packs by number."""

    @property
    def capacity(self) -> int | None:
        """The tokens of a full pack; None if nobody knows."""

    @property
    def alignment(self) -> int:
        """What each document is rounded up to."""

    def __len__(self) -> int:
        """The number of packs."""

    def rows(self, number: int) -> list[PackRow]:
        """Return the documents of a pack."""


@dataclass(frozen=True, slots=True)
class PlannedPacks:
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
                return [self._row(n) for n in numbers]
        if self.table is None:
            return [PackRow(None, n) for n in numbers]
        lengths = self.plan.lengths_of(self.plan[number], self.table).tolist()
        return [self._measured(n, length) for n, length in zip(numbers, lengths)]

    def _row(self, number: int) -> PackRow:
        assert self.tokens is not None
        rows = self.tokens.tokens()
        shard, _ = rows.locate(number)
        return PackRow(self._cut(number, rows[number]), number, shard=rows.entries[shard].name)

    def _cut(self, number: int, row: TokenRow) -> TokenRow:
        place = int(np.searchsorted(self.plan.cut_rows, number))
        if place < len(self.plan.cut_rows) and int(self.plan.cut_rows[place]) == number:
            return cut_row(row, int(self.plan.cut_lengths[place]))
        return row

    def _measured(self, number: int, length: int) -> PackRow:
        assert self.table is not None
        visual = int(self.table.num_visual[number])
        has_shards = len(self.table.shard_names) > 0
        shard = self.table.locate(number)[0] if has_shards else None
        return PackRow(None, number, (length, visual), shard)


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
            shard = self.folder.tokens().shard(place)
            inside = number - self.starts[place]
            rows = stored_rows(shard, inside)
            first = self.folder.places()[0][place] + int(shard.documents[inside])
        numbers = self._numbers(number, len(rows))
        return [PackRow(row, n, stored=first + i) for i, (row, n) in enumerate(zip(rows, numbers))]

    def _numbers(self, number: int, count: int) -> Sequence[int | None]:
        if self.plan is None or not 0 <= number < len(self.plan):
            return [None] * count
        spec = self.folder.spec
        order = EpochOrder(self.plan, seed=int(spec["seed"]), epoch=int(spec["epoch"]))
        numbers: list[int] = self.plan[int(order.packs(np.array([number]))[0])].tolist()
        return numbers if len(numbers) == count else [None] * count


@dataclass(frozen=True, slots=True)
class TarPacks:
    """Packs in tars: the json of each says what its tokens are."""

    folder: Folder
    plan: PackPlan | None

    def __len__(self) -> int:
        return sum(entry.num_samples for entry in self.folder.entries())

    @property
    def capacity(self) -> int | None:
        """The capacity of the plan."""
        return None if self.plan is None else self.plan.spec.capacity

    @property
    def alignment(self) -> int:
        """Tars hold documents without padding."""
        return 1

    def rows(self, number: int) -> list[PackRow]:
        """Return the documents of a pack."""
        with self.folder.lock:
            place, inside = self.folder.samples().locate(number)
            shard = self.folder.sample_shard(place)
            raw = shard.raw(inside)
            content = bytes(raw.get("json", b""))
        path = shard.index.arrays.path
        try:
            names = [name for name in raw if name != "json"]
            return [PackRow(row) for row in _parse(orjson.loads(content), names)]
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise FormatError(f"pack {number} is not a pack: {error}", path=path) from error


def stored_packs(folder: Folder, plan: PackPlan | None) -> StoredPacks | TarPacks:
    """Return the packs of a folder that `shardmill pack` made."""
    if folder.spec.get("format") == "tar":
        return TarPacks(folder, plan)
    starts = [0]
    done = {unit.name: unit for unit in folder.units()}
    for entry in folder.entries():
        span = done[entry.name].input if entry.name in done else {}
        first, last = span.get("start"), span.get("stop")
        if not isinstance(first, int) or not isinstance(last, int):
            with folder.lock:
                shard = folder.tokens().shard(len(starts) - 1)
            first, last = 0, num_stored_packs(shard)
        starts.append(starts[-1] + last - first)
    return StoredPacks(folder, plan, starts)


def check_number(packs: PackSource, number: int) -> None:
    """Raise `NotHere` for a pack that is not there."""
    if not 0 <= number < len(packs):
        raise NotHere(f"there are packs 0..{len(packs) - 1}, not {number}")


def spread(packs: PackSource, rows: Sequence[PackRow]) -> dict[str, Any]:
    """Return where the documents of a pack lie, and how much of it is padding."""
    lengths = [_length(row) for row in rows]
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


def _length(row: PackRow) -> int:
    return row.planned[0] if row.row is None else len(row.row.ids)


def _parse(plain: Any, names: list[str]) -> list[TokenRow]:
    lengths = [int(length) for length in plain["lengths"]]
    ids = np.asarray(plain["input_ids"], np.int64)
    loss = np.asarray(plain["loss_mask"], np.bool_)
    if min(lengths, default=0) < 0 or sum(lengths) > len(ids) or len(loss) != len(ids):
        raise ConfigError("its lengths do not fit its tokens")
    rows, start = [], 0
    for document, (key, length) in enumerate(zip(plain["keys"], lengths)):
        media = tuple(
            MediaSpan(
                name=names[number] if number < len(names) else "",
                kind=str(medium["kind"]),
                position=int(medium["position"]) - start,
                num_tokens=int(medium["num_tokens"]),
                grid=tuple(int(side) for side in medium["grid"]),  # type: ignore[arg-type]
            )
            for number, medium in enumerate(plain["media"])
            if medium["document"] == document
        )
        spans = spans_of(loss[start : start + length])
        rows.append(
            TokenRow(key=str(key), ids=ids[start : start + length], loss=spans, media=media)
        )
        start += length
    return rows
