"""Ingest: rows of a source become sample shards.

For each row: its shape makes a document, its media are fetched and their headers read, the filters
look at it, and it is written. Whatever is wrong with one row is a reject with its reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar

from shardmill.errors import ConfigError, SampleError
from shardmill.io.names import Layout
from shardmill.io.samples import SampleWriter
from shardmill.model.stage import Draft, Tally, Unit, Work
from shardmill.sources.downloads import downloads_a_host
from shardmill.sources.fetch import MAX_MEDIA_BYTES, open_fetcher
from shardmill.sources.filters import Filter
from shardmill.sources.part import ROWS_PER_PART, Part, Row, Source
from shardmill.sources.shapes.shaped import Shape
from shardmill.stages.assemble import Assembler
from shardmill.stages.earlier import open_earlier
from shardmill.stages.shardnames import ShardNames
from shardmill.stages.statistics import count_sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingest:
    """The spec of an ingest.

    `per_shard` None cuts as the source does: tables and folders by 1000 rows, a tar stays a shard.
    `name` is the pattern of the shards' names (see `ShardNames`). `key` names a column whose
    values are the keys; a key that repeats inside of a unit is a reject, across units the user
    must know. `limit` takes the first rows of the source, good or bad.
    """

    version: ClassVar[int] = 1

    source: Source
    shape: Shape
    filters: tuple[Filter, ...] = ()
    per_shard: int | None = None
    max_shard_bytes: int | None = None
    name: str = "{unit:06d}"
    machine: int = 0
    key: str | None = None
    layout: Layout = "dotted"
    limit: int | None = None
    max_media_bytes: int = MAX_MEDIA_BYTES

    def __post_init__(self) -> None:
        for field in ("per_shard", "max_shard_bytes", "max_media_bytes"):
            value = getattr(self, field)
            if value is not None and value <= 0:
                raise ConfigError(f"{field} must be positive, got {value}")
        if self.limit is not None and self.limit < 0:
            raise ConfigError(f"limit must be 0 or more, got {self.limit}")
        ShardNames(self.name)

    def units(self) -> Iterator[Unit]:
        """Yield a unit for each part of the source, in its order, up to the limit."""
        needs_range = ShardNames(self.name).needs_range
        start = 0
        for number, part in enumerate(
            self._parts(must_count=needs_range or self.limit is not None)
        ):
            input = {**part.input, "start": start} if needs_range else part.input
            yield Unit(name=f"{number:06d}", input=input, num_samples=part.num_rows)
            start += part.num_rows or 0

    @contextmanager
    def open(self) -> Iterator[Work]:
        """Open the source and what fetches media, once a process."""
        fetching = open_fetcher(self.max_media_bytes, downloads_a_host())
        with self.source.open() as read, fetching as fetcher:
            assembler = Assembler(self.shape, fetcher, self.key)

            def work(unit: Unit, draft: Draft, tally: Tally) -> None:
                limit = unit.input.get("limit")
                assert limit is None or isinstance(limit, int)
                self._write(assembler, islice(read(unit.input), limit), unit, draft, tally)

            yield work

    def units_name_content(self) -> bool:
        """Say that units do: they hold what identifies a part of the source."""
        return True

    def inputs(self) -> Mapping[str, Any]:
        """Return the source's fingerprint."""
        return self.source.inputs()

    def _parts(self, *, must_count: bool) -> Iterator[Part]:
        per_shard = self.per_shard or (ROWS_PER_PART if must_count else None)
        left = self.limit
        for part in self.source.parts(per_shard):
            if must_count and part.num_rows is None:
                raise ConfigError(
                    "this source does not count its rows before it reads them: a limit or a name "
                    "with {start} or {end} is not possible"
                )
            if left is None or part.num_rows is None:
                yield part
            elif left > 0:
                num_rows = min(part.num_rows, left)
                left -= num_rows
                yield Part(input={**part.input, "limit": num_rows}, num_rows=num_rows)
            else:
                return

    def _write(
        self, assembler: Assembler, rows: Iterator[Row], unit: Unit, draft: Draft, tally: Tally
    ) -> None:
        name_of = ShardNames(self.name).of_unit(unit, self.machine)
        keys: set[str] = set()
        with (
            open_earlier(draft.earlier) as earlier,
            SampleWriter(
                draft, name_of, max_bytes=self.max_shard_bytes, layout=self.layout
            ) as writer,
        ):
            for begun in assembler.begin_all(rows, earlier.find):
                with tally.sample(begun.row.key):
                    found = assembler.complete(begun)
                    sample, sizes = found.sample, found.sizes
                    if sample.key in keys:
                        raise SampleError("duplicate key", f"{sample.key!r} is in this unit twice")
                    for filter in self.filters:
                        filter.check(sample, sizes)
                    writer.add(sample, sizes)
                    keys.add(sample.key)
                    count_sample(tally, sample, sizes)
