"""Ingest: rows of a source become sample shards.

For each row: its shape makes a document, its media are fetched and their headers read, the filters
look at it, and it is written. Whatever is wrong with one row is a reject with its reason. Fields
that the document does not use are kept as `extra`, as values that JSON can store.

Rows are begun some way ahead of the one that is written, so that several downloads are under way
at a time. Of a unit that is tried again, samples that the earlier try stored are not fetched again.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import islice
from math import isfinite
from pathlib import Path
from string import Formatter
from typing import Any, ClassVar, TypeAlias

from shardmill.errors import ConfigError, FormatError, SampleError, plugin
from shardmill.media.header import MediaHeader, probe
from shardmill.model.codec import Plain
from shardmill.model.manifest import group_stats
from shardmill.model.sample import Document, MediaSize, Sample, Segment
from shardmill.model.stage import Draft, Tally, Unit, Work
from shardmill.shards.commit import checksum_files, checksum_places
from shardmill.shards.samples import SampleWriter, content_hash, open_shard, parse_sample
from shardmill.shards.tar.header import Layout
from shardmill.sources.columns import check_row
from shardmill.sources.download import downloads_a_host
from shardmill.sources.fetch import (
    LOCATIONS,
    MAX_MEDIA_BYTES,
    Content,
    Fetcher,
    describe,
)
from shardmill.sources.filters import Filter
from shardmill.sources.folder import WITHOUT_MEDIUM
from shardmill.sources.guess import Head, why
from shardmill.sources.shapes.shape import RowDocument, RowSegment, Shape, unused
from shardmill.sources.source import (
    ROWS_PER_PART,
    FileParts,
    Row,
    Source,
    SourcePart,
    key_from_value,
)
from shardmill.stages.inputs import (
    PASSED_OVER,
    SizedSample,
    check_numbers,
    count_sample,
    media_sizes,
)
from shardmill.storage.path import check_name

LOW_HALF = (1 << 64) - 1
NAME_FIELDS = ("unit", "machine", "start", "end", "tar")
# Enough to hide the latency of downloads; the bytes are a worker's share of memory.
ROWS_AHEAD = 256
BYTES_AHEAD = 256 << 20
MAX_DEPTH = 64  # of a field that is stored
MAX_COLUMNS, MAX_COLUMN_CHARS = 256, 64  # that are counted by name
LARGEST = 1 << 63  # integers beyond it are stored as text
# Returns the sample with a key if it is known already.
Find: TypeAlias = Callable[[str], SizedSample | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingest:
    """The spec of an ingest.

    `per_shard` None cuts as the source does: tables and folders by 1000 rows, a tar stays a shard.
    `name` is the pattern of the shards' names (see `ShardNames`). `key` names a column whose
    values are the keys; a key that repeats inside of a unit is a reject, across units the user
    must know. `extra` names columns that are kept as they are, whatever they look like; a row whose
    shape leaves other content out is a reject (see `sources.columns`). `trim` leaves white space
    out at both ends of texts. `limit` takes the first rows of the source, good or bad.
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
    extra: tuple[str, ...] = ()
    trim: bool = False
    layout: Layout = "dotted"
    limit: int | None = None
    max_media_bytes: int = MAX_MEDIA_BYTES

    def __post_init__(self) -> None:
        check_numbers(self, "per_shard", "max_shard_bytes", "max_media_bytes")
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
            start += part.num_rows or 0  # only used where all rows are counted

    @contextmanager
    def open(self) -> Iterator[Work]:
        """Open the source and what fetches media, once a process."""
        fetching = closing(Fetcher(self.max_media_bytes, downloads_a_host()))
        with self.source.open() as read, fetching as fetcher:
            extra = frozenset(self.extra)
            assembler = Assembler(self.shape, fetcher, self.key, extra, self.trim)

            def work(unit: Unit, draft: Draft, tally: Tally) -> None:
                limit = unit.input.get("limit")
                assert limit is None or isinstance(limit, int)
                self._write(assembler, islice(read(unit.input), limit), unit, draft, tally)

            yield work

    def check(self, heads: Iterable[Head], *, may_lose_all: bool = False) -> None:
        """Raise `ConfigError` if what was looked at tells that the work would be in vain.

        So it is if no row of a file becomes a sample, unless it `may_lose_all`, if keys repeat, or
        if captions stand beside media without belonging to any. Nothing is downloaded.
        """
        extra = frozenset(self.extra)
        keys: set[str] = set()
        with closing(Fetcher(self.max_media_bytes)) as fetcher:
            assembler = Assembler(self.shape, fetcher, self.key, extra, self.trim)
            for place, rows, _ in heads:
                problems = [assembler.problem_of(row) for row in rows]
                if not may_lose_all:
                    _check_problems(place, rows, [p for p in problems if p])
                for row in rows if self.key else ():
                    with suppress(SampleError):
                        key = assembler.key_of(row)
                        if key in keys:
                            where = f"{place}: {key!r} is the key of more than one row"
                            raise ConfigError(f"{where}: name another column by --key, or none")
                        keys.add(key)

    def units_name_content(self) -> bool:
        """Say that units do: they hold what identifies a part of the source."""
        return True

    def checksum_read(self, unit: Unit) -> str:
        """Return the checksum of the files that a unit reads; not of media that rows name."""
        if isinstance(self.source, FileParts):
            return checksum_files(self.source.files_of(unit.input))
        return checksum_places(unit)

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
        columns: Counter[tuple[tuple[str, str], ...]] = Counter()
        with (
            open_earlier(draft.earlier) as find,
            SampleWriter(
                draft, name_of, max_bytes=self.max_shard_bytes, layout=self.layout
            ) as writer,
        ):
            for begun in assembler.begin_all(rows, find):
                for kind, count in begun.row.passed.items():
                    tally.count(f"{PASSED_OVER}|{kind}", count)
                with tally.sample(begun.row.key):  # a `SampleError` is a reject of this row
                    sample, sizes = assembler.complete(begun)
                    if sample.key in keys:
                        raise SampleError("duplicate key", f"{sample.key!r} is in this unit twice")
                    for filter in self.filters:
                        with plugin(filter, sample.key):
                            filter.check(sample, sizes)
                    writer.add(sample, sizes)
                    keys.add(sample.key)
                    count_sample(tally, sample, sizes)
                    columns[begun.columns] += 1
        count_columns(tally, columns)


@dataclass(frozen=True, slots=True)
class ShardNames:
    """Names of shards from a pattern, such as "{unit:06d}" or "shard-{start}-{end}-{tar}".

    {unit} is the number of the unit, {start} and {end} the rows it covers, {tar} the number of the
    shard in its unit (more than one only with a byte limit), {machine} a number that the user
    chose. A pattern needs {unit} or {start}, or two units would write one file.
    """

    pattern: str

    def __post_init__(self) -> None:
        fields = ", ".join(f"{{{field}}}" for field in NAME_FIELDS)
        try:
            used = self._fields()
            name = self._format(dict.fromkeys(NAME_FIELDS, 1)) if used <= set(NAME_FIELDS) else ""
        except (ValueError, KeyError, IndexError) as error:
            raise ConfigError(f"--name {self.pattern!r} is not a pattern: {error}") from error
        if not name or not used & {"unit", "start"}:
            problem = f"--name {self.pattern!r} must use {{unit}} or {{start}}"
            raise ConfigError(f"{problem}, and nothing but {fields}")
        check_name(name)

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


@contextmanager
def open_earlier(files: Sequence[Mapping[str, Path]]) -> Iterator[Find]:
    """Open the shards of a unit's earlier try, and yield what finds their samples by key.

    Shards that cannot be read, and samples that are not as they were written, are not found.
    """
    with ExitStack() as opened:
        shards = []
        for roles in files:
            with suppress(FormatError, KeyError):
                shard = opened.enter_context(open_shard(str(roles["tar"]), roles["idx"]))
                shards.append((shard, media_sizes(shard.index)))

        def find(key: str) -> SizedSample | None:
            for shard, sizes_of in shards:
                number = shard.find(key)
                if number is None:
                    continue
                with suppress(SampleError):
                    sample = parse_sample(key, shard.raw(number))
                    found = content_hash(sample)
                    stored = shard.index.column("content")[number].tolist()
                    # A crash may have left the tar of one try beside the index of another.
                    if stored == [found >> 64, found & LOW_HALF]:
                        return SizedSample(sample, sizes_of(number))
            return None

        yield find


@dataclass(frozen=True, slots=True)
class Begun:
    """A row and its document, its problem, or its sample if an earlier try has stored it.

    `num_coming` of its media are being downloaded; `columns` says what each is used for.
    """

    row: Row
    found: RowDocument | SampleError | SizedSample
    num_coming: int = 0
    columns: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Assembler:
    """Makes samples of rows; `key`, `extra` and `trim` are those of `Ingest`."""

    shape: Shape
    fetcher: Fetcher
    key: str | None = None
    extra: frozenset[str] = frozenset()
    trim: bool = False

    def begin_all(self, rows: Iterable[Row], find: Find) -> Iterator[Begun]:
        """Yield rows in order, begun as far ahead as is worth it; `find` knows samples by key.

        Rows that have nothing to download are begun when they are asked for. Otherwise up to
        `ROWS_AHEAD` are, until `BYTES_AHEAD` have arrived: with the downloads that are then under
        way, this bounds the memory.
        """
        window: deque[Begun] = deque()
        num_coming = 0
        for row in rows:
            window.append(self.begin(row, find))
            num_coming += window[-1].num_coming
            while window and not (
                num_coming > 0
                and len(window) < ROWS_AHEAD
                and self.fetcher.downloads.num_bytes < BYTES_AHEAD
            ):
                num_coming -= window[0].num_coming
                yield window.popleft()
        yield from window

    def begin(self, row: Row, find: Find) -> Begun:
        """Return a row with its shape, or with what is wrong with it; its urls are announced."""
        try:
            if row.problem is not None:
                raise row.problem
            with _row_to_blame():
                document = self._document(row)
                columns = self._columns(row, document)
                known = find(self.key_of(row))
                # Another row may have the same key, and have been the one that was kept.
                if known is not None and known.sample.origin == (document.origin or row.origin):
                    return Begun(row, known, columns=columns)
                media = [s.media for s in document.segments if s.kind != "text"]
                num_coming = sum(self.fetcher.announce(medium, row) for medium in media)
                return Begun(row, document, num_coming, columns)
        except SampleError as problem:
            return Begun(row, problem)

    def complete(self, begun: Begun) -> SizedSample:
        """Return the sample of a row that was begun, or raise the `SampleError`."""
        row, document = begun.row, begun.found
        if isinstance(document, SampleError):
            raise document
        if isinstance(document, SizedSample):
            return document
        num_media = sum(segment.kind != "text" for segment in document.segments)
        segments: list[Segment] = []
        contents: dict[str, Content] = {}
        sizes: dict[str, MediaSize] = {}
        infos: dict[str, Any] = {}
        with _row_to_blame():
            for segment in document.segments:
                name = ""
                if segment.kind != "text":
                    content, medium = self._medium(segment, row)
                    # A single medium is named by its extension, several get numbers.
                    name = medium.ext if num_media == 1 else f"{len(contents)}.{medium.ext}"
                    contents[name], sizes[name] = content, medium.size
                    if isinstance(segment.media, Mapping):
                        # What the row says of a medium besides its place, such as a frame number.
                        info = {k: v for k, v in segment.media.items() if k not in LOCATIONS}
                        infos |= {name: info} if info else {}
                segments.append(
                    Segment(
                        kind=segment.kind,
                        text=segment.text,
                        media=name,
                        role=segment.role,
                        turn=segment.turn,
                        time_s=segment.time_s,
                    )
                )
            sample = Sample(
                key=self.key_of(row),
                document=Document(tuple(segments)),
                media=contents,
                origin=document.origin or row.origin,
                extra=jsonable({**document.extra, **({"media_info": infos} if infos else {})}),
            )
        return SizedSample(sample, sizes)

    def _document(self, row: Row) -> RowDocument:
        """Return the document of a row; content that it leaves out is a `SampleError`."""
        beside = {name: row.fields[name] for name in self.extra if name in row.fields}
        fields = unused(row.fields, beside) if beside else row.fields
        with plugin(self.shape, row.key):
            document = self.shape.shape(fields)
        if not document.segments:
            raise SampleError("empty document", "it has neither text nor media")
        check_row(fields, document, () if self.key is None else (self.key,))
        if beside:
            document = replace(document, extra={**document.extra, **beside})
        return _trimmed(document) if self.trim else document

    def _columns(self, row: Row, document: RowDocument) -> tuple[tuple[str, str], ...]:
        uses = document.uses or dict.fromkeys(row.fields.keys() - document.extra.keys(), "used")
        beside = {self.key: "key"} if self.key is not None else {}
        return tuple((n, uses.get(n) or beside.get(n, "extra")) for n in row.fields)

    def problem_of(self, row: Row) -> SampleError | None:
        """Return what is wrong with a row, as far as can be told without downloading."""
        try:
            if row.problem is not None:
                raise row.problem
            with _row_to_blame():
                self.key_of(row)
                for segment in self._document(row).segments:
                    is_here = segment.kind != "text" and not self.fetcher.is_remote(
                        segment.media, row
                    )
                    # A database with false pages ends the process that reads it: not this one.
                    if is_here and ".lmdb" not in describe(segment.media):
                        self._medium(segment, row)
        except SampleError as problem:
            return problem
        return None

    def _medium(self, segment: RowSegment, row: Row) -> tuple[Content, MediaHeader]:
        content = self.fetcher.fetch(segment.media, row)
        try:
            return content, probe(segment.kind, content)
        except SampleError as error:
            detail = f"{describe(segment.media)}: {error.detail}"
            raise SampleError(error.reason, detail) from error

    def key_of(self, row: Row) -> str:
        """Return the key of a row, or raise `SampleError`."""
        if self.key is None:
            return row.key
        if self.key not in row.fields:
            detail = f"the column of keys (--key {self.key}) is not in the row"
            raise SampleError("missing field", detail)
        return key_from_value(row.fields[self.key])


def _check_problems(place: str, rows: list[Row], problems: list[SampleError]) -> None:
    alone = [p for p in problems if p.reason == WITHOUT_MEDIUM]
    if alone and not any("text" in row.fields for row in rows if not row.problem):
        raise ConfigError(
            f"{place}: {alone[0].detail} belongs to no medium, and no medium has a caption: name "
            "captions like their media, such as 1.txt beside 1.jpg"
        )
    if rows and len(problems) == len(rows):
        columns = ", ".join(sorted({name for row in rows for name in row.fields}))
        first = problems[0]
        hint = "" if "--" in first.detail else ". Name what they are by --shape"
        if first.reason == "missing file":
            hint = ". Paths begin beside the table: say where else by --media-root"
        raise ConfigError(
            f"none of the {len(rows)} rows that were looked at of {place} becomes a sample; the "
            f"first says: {first}{hint} (their columns: {columns:.200})"
        )


def _trimmed(document: RowDocument) -> RowDocument:
    stripped = (replace(segment, text=segment.text.strip()) for segment in document.segments)
    kept = tuple(s for s in stripped if s.kind != "text" or s.text)
    if not kept:
        raise SampleError("empty document", "it has nothing but white space")
    return replace(document, segments=kept)


def count_columns(tally: Tally, rows: Counter[tuple[tuple[str, str], ...]]) -> None:
    """Count in how many kept rows a column was used for what: "columns|caption: text"."""
    uses: Counter[str] = Counter()
    for columns, num_rows in rows.items():
        for name, use in columns:
            uses[f"{name[:MAX_COLUMN_CHARS]}: {use}"] += num_rows
    # Rows from elsewhere may have a name of their own for every value.
    for number, (name, num_rows) in enumerate(uses.items()):
        tally.count(f"columns|{name if number < MAX_COLUMNS else 'others: extra'}", num_rows)


@dataclass(frozen=True, slots=True)
class TakenAs:
    """What rows were taken as: their shape, why, and {column: {use: rows}}, "extra" for no use."""

    shape: str
    why: str
    columns: Mapping[str, Mapping[str, int]]


def taken_as(stage: Plain, stats: Mapping[str, int]) -> TakenAs | None:
    """Return what rows were taken as, by the spec and the counts of an ingest; None of another."""
    plain = stage.get("shape") if isinstance(stage, Mapping) else None
    if not isinstance(plain, Mapping):
        return None
    kind = str(plain.get("kind")).removeprefix("shape/")
    columns: dict[str, dict[str, int]] = {}
    for label, num_rows in group_stats(stats).get("columns", {}).items():
        name, _, use = label.rpartition(": ")
        columns.setdefault(name, {})[use] = num_rows
    return TakenAs(kind, why(kind), columns)


@contextmanager
def _row_to_blame() -> Iterator[None]:
    """JSON may be nested deeper than Python's stack; whatever meets it, it is the row's fault."""
    try:
        yield
    except RecursionError as error:
        raise SampleError("nested too deep", str(error)) from error


def jsonable(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields as JSON values; bytes are left out, dates become text, NaN None."""
    return {str(k): _value(v, 1) for k, v in fields.items() if not isinstance(v, bytes)}


def _value(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, bool | str):
        return value
    if depth > MAX_DEPTH:
        raise SampleError("nested too deep", f"more than {MAX_DEPTH} levels in a field")
    if isinstance(value, int):
        return value if -LARGEST <= value < LARGEST else str(value)
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): _value(v, depth + 1) for k, v in value.items() if not _is_bytes(v)}
    if isinstance(value, list | tuple):
        return [_value(item, depth + 1) for item in value if not _is_bytes(item)]
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Decimal):
        return str(value)
    kind = type(value).__name__
    raise SampleError("cannot be stored", f"a field holds a {kind}: {value!r:.100}")


def _is_bytes(value: object) -> bool:
    return isinstance(value, bytes | bytearray | memoryview)
