"""Ingest: rows of a source become sample shards.

For each row: its shape makes a document, its media are fetched and their headers read, the filters
look at it, and it is written. Whatever is wrong with one row is a reject with its reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from string import Formatter
from typing import Any, ClassVar, TypeAlias

from shardmill.errors import ConfigError, FormatError, SampleError
from shardmill.model.sample import MediaSize
from shardmill.model.stage import Draft, Tally, Unit, Work
from shardmill.shards.samples import (
    SampleShard,
    SampleWriter,
    content_hash,
    open_shard,
    parse_sample,
)
from shardmill.shards.tar.names import Layout
from shardmill.sources.filters import Filter
from shardmill.sources.media.download import downloads_a_host
from shardmill.sources.media.fetch import MAX_MEDIA_BYTES, open_fetcher
from shardmill.sources.part import ROWS_PER_PART, Row, Source, SourcePart
from shardmill.sources.shapes.shape import Shape
from shardmill.stages.assemble import Assembler
from shardmill.stages.inputs import SizedSample, media_sizes
from shardmill.stages.statistics import count_sample

LOW_HALF = (1 << 64) - 1
SizesOf: TypeAlias = Callable[[int], Mapping[str, MediaSize]]
NAME_FIELDS = ("unit", "machine", "start", "end", "tar")
SAFE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+=@-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingest:
    """The spec of an ingest.

    `per_shard` None cuts as the source does: tables and folders by 1000 rows, a tar stays a shard.
    `name` is the pattern of the shards' names (see `ShardNames`). `key` names a column whose
    values are the keys; a key that repeats inside of a unit is a reject, across units the user
    must know. `limit` takes the first rows of the source, good or bad.
    """

    version: ClassVar[int] = 1
    content: ClassVar[str] = "samples"

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

    def reads(self) -> Mapping[str, tuple[str, ...]]:
        """Return {role: places} of what is read."""
        return {"raw": self.source.places()}

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

    def _parts(self, *, must_count: bool) -> Iterator[SourcePart]:
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
                yield SourcePart(input={**part.input, "limit": num_rows}, num_rows=num_rows)
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
                    sample, sizes = assembler.complete(begun)
                    if sample.key in keys:
                        raise SampleError("duplicate key", f"{sample.key!r} is in this unit twice")
                    for filter in self.filters:
                        filter.check(sample, sizes)
                    writer.add(sample, sizes)
                    keys.add(sample.key)
                    count_sample(tally, sample, sizes)


@dataclass(frozen=True, slots=True)
class ShardNames:
    """Names of shards from a pattern, such as "{unit:06d}" or "shard-{start}-{end}-{tar}".

    {unit} is the number of the unit, {start} and {end} the rows it covers, {tar} the number of the
    shard in its unit (more than one only with a byte limit), {machine} a number that the user
    chose. A pattern needs {unit} or {start}, or two units would write one file.
    """

    pattern: str

    def __post_init__(self) -> None:
        try:
            used = self._fields()
            name = self._format(dict.fromkeys(NAME_FIELDS, 1))
        except (ValueError, KeyError, IndexError) as error:
            raise ConfigError(f"name {self.pattern!r} is not a pattern: {error}") from error
        unknown = sorted(used - set(NAME_FIELDS))
        if unknown or not used & {"unit", "start"}:
            fields = ", ".join(f"{{{field}}}" for field in NAME_FIELDS)
            raise ConfigError(f"name {self.pattern!r} must use {{unit}} or {{start}}, of {fields}")
        if not SAFE_NAME.fullmatch(name):
            raise ConfigError(f"name {self.pattern!r} gives {name!r}, which is no plain file name")

    @property
    def needs_range(self) -> bool:
        """Whether the pattern names the rows, so that they must be counted."""
        return bool(self._fields() & {"start", "end"})

    def of_unit(self, unit: Unit, machine: int) -> Callable[[int], str]:
        """Return the function that names the shards of a unit, 0 for the first."""
        start = unit.input.get("start", 0)
        assert isinstance(start, int)
        values = {
            "unit": int(unit.name),
            "machine": machine,
            "start": start,
            "end": start + (unit.num_samples or 0),
        }

        def name_of(split: int) -> str:
            name = self._format({**values, "tar": split})
            return name if split == 0 or "tar" in self._fields() else f"{name}-{split:03d}"

        return name_of

    def _fields(self) -> set[str]:
        return {field for _, field, _, _ in Formatter().parse(self.pattern) if field is not None}

    def _format(self, values: dict[str, int]) -> str:
        return self.pattern.removesuffix(".tar").format_map(values)


@dataclass(frozen=True, slots=True)
class EarlierSamples:
    """The samples of a unit's earlier try, found by key: they need not be fetched again."""

    shards: tuple[tuple[SampleShard, SizesOf], ...]

    def find(self, key: str) -> SizedSample | None:
        """Return the sample with this key, None if it is not here or not as it was written."""
        for shard, sizes_of in self.shards:
            number = shard.find(key)
            if number is not None:
                with suppress(SampleError):
                    return _read(shard, sizes_of, number, key)
        return None


@contextmanager
def open_earlier(files: Sequence[Mapping[str, Path]]) -> Iterator[EarlierSamples]:
    """Open the shards of an earlier try; those that cannot be read count as not there."""
    with ExitStack() as opened:
        shards = []
        for roles in files:
            with suppress(FormatError, KeyError):
                shard = open_shard(str(roles["tar"]), roles["idx"])
                shards.append((opened.enter_context(shard), media_sizes(shard.index)))
        yield EarlierSamples(tuple(shards))


def _read(shard: SampleShard, sizes_of: SizesOf, number: int, key: str) -> SizedSample | None:
    sample = parse_sample(key, shard.raw(number))
    found = content_hash(sample)
    # A crash may have left the tar of one try beside the index of another.
    if shard.index.column("content")[number].tolist() != [found >> 64, found & LOW_HALF]:
        return None
    return SizedSample(sample, sizes_of(number))
