"""What a format is: how an export writes its rows, and how its folders are read again.

A format is a frozen dataclass below `Format`, named in the table FORMATS of plugins.py, or any
class of a user as 'package.module:Class'. The stage `ExportShards` calls its methods in this order:

    plan          once, before any work: look over the whole input, refuse what cannot be, and say
                  for each unit where its rows go
    shared_files  once: the files that all units write together, if the reader wants one file
    write         for each unit, in parallel: write shards into the draft, or ranges in place
    finish        once every unit has its receipt: the small files that make the folder readable

A killed export can never be opened by mistake: a foreign reader begins with a file that `finish`
writes (state.json, index.json, meta.json, the header of an .idx).

`holds` and `records` read a finished export again, for `check --same`, `show`, `view` and
`sm.open`; a format that needs a reader of its own returns it from `open`.

A reader yields records in order: a record is one item as its format stores it, a row, a pack or a
sample. What a record can hold are the aspects of the table ASPECTS. `Format.keeps` names those that
an export still has: the stage refuses to lose any other that the data has, until the user says so,
and `holds()` of a reader names those that its records have, which alone are compared.

The readers of shardmill's own folders, of tokens or packs, samples and codes, are at the end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import wraps
from itertools import islice, pairwise
from pathlib import Path
from struct import error as StructError
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
    runtime_checkable,
)

import numpy as np
import xxhash
from numpy.typing import NDArray

from shardmill.errors import ConfigError, FormatError, SampleError
from shardmill.model.codec import PlaceName, Plain
from shardmill.model.manifest import Manifest, ShardEntry
from shardmill.model.sample import SEGMENT_KINDS, Origin, Sample, Segment
from shardmill.model.space import TokenSpace
from shardmill.model.stage import Draft, Tally
from shardmill.model.tokenrow import (
    MEDIA_COLUMNS,
    MediaColumns,
    MediaSpan,
    TokenRow,
    block_key,
    mask_of,
    modality_of,
)
from shardmill.shards.arrays import NumberedKeys
from shardmill.shards.codes import ROLE, CodeJoin, join_codes, open_codes
from shardmill.shards.ledger import open_manifest
from shardmill.shards.samples import open_entry
from shardmill.shards.tokens.shard import ROLES, TokenShard, open_token_shard, open_tokens

if TYPE_CHECKING:  # whoever only reads an export needs nothing of what writes one
    from shardmill.formats.rows import ExportInput, Piece, Slice, TokenBatch

Args = ParamSpec("Args")
Item = TypeVar("Item")
Place: TypeAlias = Mapping[str, Plain]
Aspect: TypeAlias = Literal[
    "keys",
    "idx",
    "text",
    "segments",
    "extra",
    "tokens",
    "words",
    "documents",
    "packs",
    "loss",
    "modality",
    "spans",
    "codes",
    "media",
    "origin",
]
# What a row, a pack or a sample can carry, in the order in which it is compared and told.
ASPECTS: Mapping[Aspect, str] = {
    "keys": "the keys of samples",
    "idx": "the number of each row",
    "text": "all text of a sample",
    "segments": "which text stands where, roles, turns and times",
    "extra": "other fields of a sample",
    "tokens": "ids in one sequence, media with their delimiters in place",
    "words": "the ids outside of media and their delimiters",
    "documents": "where each document ends",
    "packs": "which documents share a pack",
    "loss": "which tokens are learned",
    "modality": "which tokens belong to images, videos and audio",
    "spans": "name, place, grid and delimiters of each medium",
    "codes": "the codes of each image",
    "media": "the bytes of media",
    "origin": "the file and row that a sample came from",
}
# What a row of tokens has, and what a sample has.
OF_ROWS: frozenset[Aspect] = frozenset({"keys", "tokens", "documents", "loss", "modality", "spans"})
OF_SAMPLES: frozenset[Aspect] = frozenset({"keys", "text", "segments", "extra", "media"})
# Names serve to find a sample again, and no model sees them: that they are left out is said, not
# refused.
NAMES: frozenset[Aspect] = frozenset({"keys", "origin"})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Record:
    """One item; one that cannot be read carries its `problem` instead."""

    key: str = ""
    idx: int | None = None
    rows: tuple[TokenRow, ...] = ()
    codes: tuple[NDArray[Any], ...] = ()
    text: str = ""
    segments: tuple[Segment, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
    media: tuple[str, ...] = ()
    problem: SampleError | None = None

    @property
    def num_tokens(self) -> int:
        """The tokens of all its documents."""
        return sum(len(row.ids) for row in self.rows)

    def ids(self) -> NDArray[Any]:
        """Return the ids of all its documents."""
        return _joined([row.ids for row in self.rows], np.int64)

    def words(self) -> NDArray[Any]:
        """Return the ids outside of media and their delimiters."""
        return _joined([_words_of(row) for row in self.rows], np.int64)

    def loss_mask(self) -> NDArray[np.bool_]:
        """Return which tokens are learned."""
        return _joined([mask_of(row.loss, len(row.ids)) for row in self.rows], np.bool_)

    def modality(self) -> NDArray[np.uint8]:
        """Return the modality of each token."""
        return _joined([modality_of(row.media, len(row.ids)) for row in self.rows], np.uint8)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Block:
    """Many records as flat arrays, all of whose tokens are learned, from one file of origin.

    `lengths` are those of the documents, `per_record` how many of them each record has, `rows` the
    numbers that the data set itself gives the records.
    """

    ids: NDArray[Any]
    lengths: NDArray[np.int64]
    per_record: NDArray[np.int64]
    media: MediaColumns
    keys: Sequence[str] | NumberedKeys
    origin: Origin
    rows: NDArray[np.int64]

    def records(self) -> Iterator[Record]:
        """Yield the records one by one."""
        documents = self._documents()
        for key, number, count in zip(self.keys, self.rows.tolist(), self.per_record.tolist()):
            origin = replace(self.origin, row=number)
            rows = tuple(
                TokenRow(
                    key=block_key(key, at),
                    ids=ids,
                    loss=np.array([[0, len(ids)]], np.int64)[: len(ids)],
                    media=media,
                    origin=origin,
                    continues=at > 0,
                )
                for at, (ids, media) in enumerate(islice(documents, count))
            )
            yield Record(key=key, idx=number, rows=rows)

    def _documents(self) -> Iterator[tuple[NDArray[Any], tuple[MediaSpan, ...]]]:
        ends, spans = np.cumsum(self.lengths).tolist(), iter(self._spans())
        counts = self.media.counts.tolist()
        for length, end, count in zip(self.lengths.tolist(), ends, counts):
            yield self.ids[end - length : end], tuple(islice(spans, count))

    def _spans(self) -> list[MediaSpan]:
        media = self.media
        columns = [media.columns[name].tolist() for name in MEDIA_COLUMNS]
        return [
            MediaSpan(
                name=media.names[name],
                kind=SEGMENT_KINDS[kind],
                position=position,
                num_tokens=length,
                grid=(t, h, w),
                before=before,
                after=after,
            )
            for position, length, before, after, kind, name, (t, h, w) in zip(
                *columns, media.grid.tolist()
            )
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of the data that is read by itself; `input` identifies it as plain JSON.

    `passed` counts what the format holds there besides records, by its kind.
    """

    input: Mapping[str, Plain]
    num_records: int
    passed: Mapping[str, int]


@contextmanager
def as_promised(place: object) -> Iterator[None]:
    """Turn what goes wrong while the bytes of an export are taken apart into a `FormatError`.

    The gate of all readers of formats: none of them asks of each field whether it is there, a
    number, and within its bounds.
    """
    try:
        yield
    except (
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        OverflowError,
        StructError,
    ) as error:
        what = f"{type(error).__name__}: {error}"
        raise FormatError(f"is not as its format says: {what:.200}", path=place) from error


def guarded(read: Callable[Args, Iterator[Item]]) -> Callable[Args, Iterator[Item]]:
    """Let a generator of a reader pass the gate: its `dir` or `files` say where."""

    @wraps(read)
    def pass_gate(*args: Args.args, **named: Args.kwargs) -> Iterator[Item]:
        reader: Any = args[0]
        with as_promised(reader.dir if hasattr(reader, "dir") else ", ".join(reader.files)):
            yield from read(*args, **named)

    return pass_gate


def file_inside(folder: str, name: str) -> Path:
    """Return the place of a file that an index names; one outside of its folder is refused."""
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise FormatError(f"its index names {name!r:.200}, which lies outside of it", path=folder)
    return Path(folder) / name


@runtime_checkable
class Reader(Protocol):
    """A frozen dataclass that lists parts in an order that no file system decides."""

    def holds(self) -> frozenset[Aspect]:
        """Return the aspects that all its records have."""

    def token_space(self) -> TokenSpace | None:
        """Return the token space of its ids; None if it has none or does not say."""

    def parts(self) -> Iterator[Part]:
        """Yield the parts; looks at sizes and indexes, not at the data."""

    def read(self, input: Mapping[str, Any]) -> Iterator[Record]:
        """Yield the records of a part."""

    def inputs(self) -> Mapping[str, Any]:
        """Return a cheap fingerprint of the files: path -> [size, mtime_ns]."""


@dataclass(frozen=True, slots=True)
class LackingReader:
    """A reader of an export from which the user dropped what the format keeps of some rows."""

    reader: Reader
    lacks: frozenset[Aspect]

    def holds(self) -> frozenset[Aspect]:
        """Return what was not dropped."""
        return self.reader.holds() - self.lacks

    def token_space(self) -> TokenSpace | None:
        """Return the space of the ids."""
        return self.reader.token_space()

    def parts(self) -> Iterator[Part]:
        """Yield the parts."""
        return self.reader.parts()

    def read(self, input: Mapping[str, Any]) -> Iterator[Record]:
        """Yield the records of a part."""
        return self.reader.read(input)

    def inputs(self) -> Mapping[str, Any]:
        """Return the fingerprint of the files."""
        return self.reader.inputs()


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderReader(ABC):
    """A reader of a finished folder, whose parts are the shards of its manifest."""

    dir: PlaceName
    space: TokenSpace | None = None

    @abstractmethod
    def holds(self) -> frozenset[Aspect]:
        """Return the aspects that all its records have."""

    @abstractmethod
    def records(self, shard: ShardEntry) -> Iterator[Record]:
        """Yield the records of a shard."""

    def count(self, shard: ShardEntry) -> int:
        """Return how many records a shard has."""
        return shard.num_samples

    def token_space(self) -> TokenSpace | None:
        """Return the space that was given."""
        return self.space

    def parts(self) -> Iterator[Part]:
        """Yield a part for each shard."""
        first = 0
        for number, shard in enumerate(open_manifest(Path(self.dir)).shards):
            count = self.count(shard)
            yield Part(input={"shard": number, "first": first}, num_records=count, passed={})
            first += count

    def read(self, input: Mapping[str, Any]) -> Iterator[Record]:
        """Yield the records of a part, numbered over all parts where they have no number."""
        records = self.records(open_manifest(Path(self.dir)).shards[input["shard"]])
        for number, record in enumerate(records, input["first"]):
            yield replace(record, idx=number if record.idx is None else record.idx)

    def inputs(self) -> Mapping[str, Any]:
        """Return size and time of the manifest."""
        path = Path(self.dir) / "manifest.json"
        return {str(path): stamp(path)}


@runtime_checkable
class BlockReader(Protocol):
    """A reader of records that have numbers, many at a time, for who takes them all."""

    def read_blocks(self, input: Mapping[str, Any]) -> Iterator[Block]:
        """Yield the records of a part, many at a time; the next block may use the same memory."""


@runtime_checkable
class Completing(Protocol):
    """A reader that adds to its records what training with them would."""

    def as_stored(self) -> Reader:
        """Return the reader of the same that adds nothing."""


@runtime_checkable
class FileReader(Protocol):
    """A reader whose parts may lie in files just as a token shard stores them."""

    def ids_file(self, input: Mapping[str, Any]) -> Path | None:
        """Return a file that is the ids of all records of a part in order, and nothing else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Format(ABC):
    """An export format; `write` has no default, and `keeps` none that is of use."""

    @property
    def keeps(self) -> frozenset[Aspect]:
        """What of a row, pack or sample is still there in the export; see ASPECTS.

        What else the data has is refused unless the user drops it by name.
        """
        return frozenset()

    def loses(self, batch: TokenBatch, aspects: frozenset[Aspect]) -> Iterator[tuple[Aspect, int]]:
        """Yield each of these aspects, none of which is kept, that some row has, and the row.

        A format that keeps an aspect of some rows only yields it if there are others.
        """
        for aspect in aspects:
            has = batch.carries(aspect)
            if has.any():
                yield aspect, int(np.argmax(has))

    def plan(self, source: ExportInput, ranges: Sequence[tuple[Slice, ...]]) -> Iterator[Place]:
        """Yield for each unit what else decides its bytes; `ConfigError` for what cannot be.

        What is yielded is part of the unit's digest, such as the first row of a shared file.
        """
        for _ in ranges:
            yield {}

    def shared_files(self, source: ExportInput, pieces: Sequence[Piece]) -> Mapping[str, int]:
        """Return name -> size of the files that units write together."""
        return {}

    @abstractmethod
    def write(self, source: ExportInput, piece: Piece, draft: Draft, tally: Tally) -> None:
        """Write one unit and account for each of its rows."""

    def finish(self, source: ExportInput, manifest: Manifest, out_dir: Path) -> None:  # noqa: B027
        """Write the files of the whole, each at once or not at all (`atomic.write_file`)."""

    def holds(self, folder: Path) -> frozenset[Aspect]:
        """Return what a record of an export has, if that is not all that is kept."""
        if type(self).records is Format.records:
            raise ConfigError(
                f"{folder}: {type(self).__name__} has no reader: give it the method records"
            )
        return self.keeps

    def records(self, folder: Path, shard: ShardEntry) -> Iterator[Record]:
        """Yield the records of a shard of an export."""
        raise NotImplementedError

    def count(self, folder: Path, shard: ShardEntry) -> int:
        """Return how many records a shard has, if they are not the samples that were counted."""
        return shard.num_samples

    def open(self, folder: Path, space: TokenSpace | None) -> Reader:
        """Return the reader of a finished export; this one calls `holds`, `records` and `count`.

        `space` is the token space of what was exported, None if that folder is gone. A format
        whose own index says where its records are returns another reader.
        """
        return FormatReader(format=self, dir=str(folder), space=space)


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatReader(FolderReader):
    """Reads an export shard by shard with the methods of its format."""

    format: Format

    def holds(self) -> frozenset[Aspect]:
        """Return what the format says."""
        with as_promised(self.dir):
            return self.format.holds(Path(self.dir))

    @guarded
    def records(self, shard: ShardEntry) -> Iterator[Record]:
        """Yield what the format finds in a shard."""
        return self.format.records(Path(self.dir), shard)

    def count(self, shard: ShardEntry) -> int:
        """Return what the format counts."""
        with as_promised(self.dir):
            return self.format.count(Path(self.dir), shard)


def kept_by(format: Format) -> frozenset[Aspect]:
    """Return what a format keeps, and what that implies: all tokens are words and codes too."""
    implied: set[Aspect] = {"words", "codes"} if "tokens" in format.keeps else set()
    return format.keeps | implied


def needed_space(space: TokenSpace | None, folder: Path) -> TokenSpace:
    """Return the space; `ConfigError` if it is not known, for formats that cannot do without."""
    if space is None:
        raise ConfigError(
            f"{folder} does not say its token space, and the folder that it was exported from is "
            "gone: compare it with a folder of tokens"
        )
    return space


def with_codes(record: Record, space: TokenSpace) -> Record:
    """Return a record of tokens with the local codes of its images, if the space has codes."""
    if not space.num_codes:
        return record
    codes = tuple(
        space.local_codes(row.ids[span.position : span.position + span.num_tokens])
        for row in record.rows
        for span in row.media
        if span.kind == "image"
    )
    return replace(record, codes=codes)


def is_code(ids: NDArray[Any], space: TokenSpace) -> NDArray[np.bool_]:
    """Return which ids are image codes."""
    is_inside: NDArray[np.bool_] = ids >= space.code_offset
    is_inside &= ids < space.code_offset + space.num_codes
    return is_inside


def stamp(path: Path) -> list[int]:
    """Return [size, mtime_ns] of a file."""
    try:
        info = path.stat()
    except OSError as error:
        raise FormatError(f"cannot be looked at: {error.strerror}", path=path) from error
    return [info.st_size, info.st_mtime_ns]


def _words_of(row: TokenRow) -> NDArray[Any]:
    if not row.media:
        return row.ids
    is_word = np.ones(len(row.ids), np.bool_)
    for span in row.media:
        is_word[span.start : span.end] = False
    return row.ids[is_word]


def _joined(parts: list[NDArray[Any]], dtype: Any) -> NDArray[Any]:
    if len(parts) == 1:  # most records are one row, which stays mapped
        return parts[0]
    joined: NDArray[Any] = np.concatenate([*parts, np.empty(0, dtype)])
    return joined.astype(dtype, copy=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensReader(FolderReader):
    """A folder of token or pack shards; a pack is a record, or each row is one."""

    def holds(self) -> frozenset[Aspect]:
        """Return all aspects of tokens; codes if the space has some, and packs if it holds them."""
        space = self.token_space()
        known: set[Aspect] = {*OF_ROWS, "words", "idx", "origin"}
        known |= {"codes"} if space is not None and space.num_codes else set()
        shards = open_manifest(Path(self.dir)).shards
        known |= {"packs"} if shards and self._open(shards[0]).holds_packs else set()
        return frozenset(known)

    def token_space(self) -> TokenSpace | None:
        """Return the space of the first shard."""
        return open_tokens(Path(self.dir)).space

    def count(self, shard: ShardEntry) -> int:
        """Return how many packs or rows a shard has."""
        opened = self._open(shard)
        return len(opened.documents) - 1 if opened.holds_packs else len(opened)

    def records(self, shard: ShardEntry) -> Iterator[Record]:
        """Yield the rows or packs of a shard."""
        opened = self._open(shard)
        bounds = opened.documents if opened.holds_packs else np.arange(len(opened) + 1)
        numbers = opened.numbers
        for first, last in pairwise(bounds.tolist()):
            rows = tuple(opened[row] for row in range(first, last))
            idx = None if numbers is None else int(numbers[first])
            record = Record(key=rows[0].key if rows else "", idx=idx, rows=rows)
            yield with_codes(record, opened.space)

    def _open(self, shard: ShardEntry) -> TokenShard:
        return open_token_shard({role: Path(self.dir) / shard.files[role].path for role in ROLES})


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplesReader(FolderReader):
    """A folder of samples; `codes_dir` holds the codes of their images."""

    codes_dir: PlaceName | None = None

    def holds(self) -> frozenset[Aspect]:
        """Return all aspects of samples; codes if their folder is given."""
        known: set[Aspect] = {*OF_SAMPLES, "origin"}
        return frozenset(known | ({"codes"} if self.codes_dir else set()))

    def records(self, shard: ShardEntry) -> Iterator[Record]:
        """Yield the samples of a shard."""
        codes = None if self.codes_dir is None else join_codes(Path(self.codes_dir))
        with open_entry(Path(self.dir), shard) as samples:
            for sample in samples:
                yield _sample_record(sample, codes, shard.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class CodesReader(FolderReader):
    """A folder of codes."""

    def holds(self) -> frozenset[Aspect]:
        """Return keys and codes."""
        return frozenset({"keys", "codes"})

    def records(self, shard: ShardEntry) -> Iterator[Record]:
        """Yield the samples of a shard."""
        opened = open_codes(Path(self.dir) / shard.files[ROLE].path)
        for number, key in enumerate(opened.keys):
            images = opened.images(number)
            yield Record(key=key, codes=tuple(image.codes.reshape(-1) for image in images))


def open_folder(folder: Path, codes_dir: str | None = None) -> Reader:
    """Return the reader of a finished folder, by what its manifest says that it holds."""
    content = open_manifest(folder).content
    if content in ("tokens", "packs"):
        return TokensReader(dir=str(folder))
    if content == "codes":
        return CodesReader(dir=str(folder))
    if content == "samples":
        return SamplesReader(dir=str(folder), codes_dir=codes_dir)
    raise ConfigError(f"{folder} holds {content}, not samples, codes or tokens")


def _sample_record(sample: Sample, codes: CodeJoin | None, shard_name: str) -> Record:
    names = [segment.media for segment in sample.document.media()]
    missing = [name for name in names if name not in sample.media]
    if missing:
        problem = SampleError("missing media", f"{sample.key!r} has no medium {missing[0]!r}")
        return Record(key=sample.key, problem=problem)
    record = Record(
        key=sample.key,
        text=sample.document.text,
        segments=sample.document.segments,
        extra=sample.extra,
        media=tuple(xxhash.xxh3_64_hexdigest(sample.media[name]) for name in names),
    )
    if codes is None:
        return record
    images = codes.images(sample.key, shard_name)
    return replace(record, codes=tuple(image.codes.reshape(-1) for image in images))
