"""Megatron's indexed data sets: `.bin` and `.idx`; `shards.tokens.megatron` states the bytes.

Each unit of an export becomes a prefix of its own (OUT/shards/00000), or all of them one
(OUT/PREFIX). Rows are Megatron's sequences; documents, or packs, are its documents. One prefix for
all is written in place by all units at once. Its `.idx` has no header until all of them are done,
and every reader refuses it until then.

The reader takes any prefixes, each of them a part. A document is a record, its sequences are the
record's rows. Keys are the prefix's name and the number of the document. Nothing says what is
learned, so everything is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ConfigError, FormatError
from shardmill.formats.format import Aspect, Format, Part, Place, Reader, Record, guarded, stamp
from shardmill.formats.rows import ExportInput, Piece, Slice, token_batches
from shardmill.formats.sharedfiles import RangeWriter
from shardmill.model.codec import PlaceName
from shardmill.model.manifest import Manifest
from shardmill.model.sample import Origin
from shardmill.model.space import UINT16_SIZE, TokenSpace
from shardmill.model.stage import Draft, Tally
from shardmill.model.tokenrow import TokenRow, block_key
from shardmill.shards.tokens.ids import (
    CODES,
    HEADER,
    MAGIC,
    MegatronIndex,
    map_bytes,
    open_megatron_index,
    write_megatron_index,
)
from shardmill.storage.path import check_name, expand

DTYPES: dict[str, np.dtype[Any]] = {"uint16": np.dtype("<u2"), "int32": np.dtype("<i4")}


@dataclass(frozen=True, slots=True)
class PrefixCounts:
    """How many sequences, tokens and documents, and where the parts of their `.idx` begin."""

    sequences: int
    tokens: int
    documents: int

    @property
    def lengths_at(self) -> int:
        """The byte of the first sequence's length."""
        return HEADER.size

    @property
    def offsets_at(self) -> int:
        """The byte of the first sequence's offset."""
        return HEADER.size + 4 * self.sequences

    @property
    def bounds_at(self) -> int:
        """The byte of the first document's bound."""
        return HEADER.size + 12 * self.sequences

    def plain(self) -> list[Any]:
        """Return the three numbers, for a unit's place."""
        return [self.sequences, self.tokens, self.documents]


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronFormat(Format):
    """`.bin` and `.idx`; `prefix` names the one pair of files for all rows.

    `dtype` is the smallest that holds every id of the token space, unless given.
    """

    prefix: str | None = None
    dtype: Literal["smallest", "uint16", "int32"] = "smallest"

    @property
    def keeps(self) -> frozenset[Aspect]:
        """Tokens, the ends of documents, and packs as documents of several sequences."""
        return frozenset({"tokens", "documents", "packs"})

    def __post_init__(self) -> None:
        if self.prefix is not None:
            check_name(self.prefix)

    def plan(self, source: ExportInput, ranges: Sequence[tuple[Slice, ...]]) -> Iterator[Place]:
        """Yield where each unit's sequences, tokens and documents begin, if all share a prefix."""
        self._dtype(source)
        if self.prefix is None:
            yield from ({} for _ in ranges)
            return
        counts = [_count(source, slices) for slices in ranges]
        ends = np.cumsum([count.plain() for count in counts], axis=0).tolist()
        for first, _ in zip([[0, 0, 0], *ends], ranges):
            yield {"first": first, "all": ends[-1]}

    def shared_files(self, source: ExportInput, pieces: Sequence[Piece]) -> Mapping[str, int]:
        """Return the sizes of the one pair of files, if there is one."""
        if self.prefix is None:
            return {}
        total = PrefixCounts(*pieces[0].place["all"]) if pieces else PrefixCounts(0, 0, 0)
        return {
            f"{self.prefix}.bin": total.tokens * self._dtype(source).itemsize,
            f"{self.prefix}.idx": total.bounds_at + 8 * (total.documents + 1),
        }

    def write(self, source: ExportInput, piece: Piece, draft: Draft, tally: Tally) -> None:
        """Write the rows of a unit as files of its own, or into their place."""
        tally.num_in += piece.num_rows
        if self.prefix is None:
            self._write_pair(source, piece, draft)
        else:
            self._write_ranges(source, piece, draft, tally)
        tally.num_kept += piece.num_rows

    def finish(self, source: ExportInput, manifest: Manifest, out_dir: Path) -> None:
        """Put the header on the index of the one prefix: from now on it can be read."""
        if self.prefix is None:
            return
        path, dtype = out_dir / f"{self.prefix}.idx", self._dtype(source)
        num_bounds = (path.stat().st_size - HEADER.size - 12 * manifest.num_samples) // 8
        header = HEADER.pack(MAGIC, 1, CODES[dtype.str], manifest.num_samples, num_bounds)
        descriptor = os.open(path, os.O_WRONLY)
        try:
            # Each unit wrote where its documents begin; the end of the last belongs to none. The
            # header comes when all else is on disk: a reader believes a file that has one.
            end = np.array(manifest.num_samples, "<i8").tobytes()
            os.pwrite(descriptor, end, path.stat().st_size - len(end))
            os.fsync(descriptor)
            os.pwrite(descriptor, header, 0)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def open(self, folder: Path, space: TokenSpace | None) -> Reader:
        """Return the reader of an export."""
        place = folder / "shards" if self.prefix is None else folder / self.prefix
        return MegatronReader(files=(str(place),), space=space)

    def _write_pair(self, source: ExportInput, piece: Piece, draft: Draft) -> None:
        dtype = self._dtype(source)
        lengths: list[Any] = [np.empty(0, np.int32)]
        documents: list[Any] = [np.empty(0, np.int64)]
        num_rows = 0
        with draft.file(piece.name, "bin").open("wb") as file:
            for batch in token_batches(source, piece.slices):
                file.write(batch.ids.astype(dtype, copy=False).data)
                lengths.append(batch.sequence_lengths)
                documents.append(batch.documents[:-1] + num_rows)
                num_rows += batch.num_sequences
        with draft.file(piece.name, "idx").open("wb") as index:
            write_megatron_index(index, dtype, np.concatenate(lengths), np.concatenate(documents))
        draft.finish(piece.name, num_samples=num_rows)

    def _write_ranges(self, source: ExportInput, piece: Piece, draft: Draft, tally: Tally) -> None:
        dtype, total = self._dtype(source), PrefixCounts(*piece.place["all"])
        sequence, token, document = piece.place["first"]
        bin_name, idx_name = f"{self.prefix}.bin", f"{self.prefix}.idx"
        with RangeWriter(draft, piece.name) as ranges:
            for batch in token_batches(source, piece.slices):
                ids = batch.ids.astype(dtype, copy=False)
                offsets = ((batch.sequence_bounds[:-1] + token) * dtype.itemsize).astype("<i8")
                bounds = (batch.documents[:-1] + sequence).astype("<i8")
                lengths = batch.sequence_lengths.astype("<i4")
                ranges.write(bin_name, token * dtype.itemsize, ids)
                ranges.write(idx_name, total.lengths_at + 4 * sequence, lengths)
                ranges.write(idx_name, total.offsets_at + 8 * sequence, offsets)
                ranges.write(idx_name, total.bounds_at + 8 * document, bounds)
                sequence += batch.num_sequences
                token += batch.num_tokens
                document += len(bounds)
            ranges.finish(tally, num_samples=piece.num_rows)

    def _dtype(self, source: ExportInput) -> np.dtype[Any]:
        if not source.shards:
            return DTYPES["uint16" if self.dtype == "smallest" else self.dtype]
        space = source.space()
        if self.dtype == "smallest":
            return space.dtype
        if self.dtype == "uint16" and space.size > UINT16_SIZE:
            raise ConfigError(
                f"{source.folder} has a vocabulary of {space.size} ids, uint16 holds "
                f"{UINT16_SIZE}: export with dtype=int32"
            )
        return DTYPES[self.dtype]


def _count(source: ExportInput, slices: Sequence[Slice]) -> PrefixCounts:
    batches = list(token_batches(source, slices))
    return PrefixCounts(
        sum(batch.num_sequences for batch in batches),
        sum(batch.num_tokens for batch in batches),
        sum(len(batch.documents) - 1 for batch in batches),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronReader:
    """Prefixes by path (with or without suffix), folder, glob or braces."""

    files: tuple[PlaceName, ...]
    space: TokenSpace | None = None
    name: str = "megatron"

    @staticmethod
    def recognizes(path: Path) -> bool:
        """Say whether a path is a prefix, one of its two files, or a folder of prefixes."""
        indexes = path.glob("*.idx") if path.is_dir() else [_idx(path)]
        return any(map(_has_magic, indexes))

    def holds(self) -> frozenset[Aspect]:
        """Return tokens, and the ends of sequences and documents."""
        return frozenset({"tokens", "documents", "packs"})

    def token_space(self) -> TokenSpace | None:
        """Return the space that was given."""
        return self.space

    @guarded
    def parts(self) -> Iterator[Part]:
        """Yield a part for each prefix."""
        for prefix in self.prefixes():
            opened = open_prefix(prefix)
            places = paths_of(prefix)
            yield Part(
                input={
                    "raw": [str(path) for path in places],
                    "prefix": prefix.name,
                    "sizes": [stamp(path)[0] for path in places],
                },
                num_records=len(opened.documents),
                passed={},
            )

    @guarded
    def read(self, input: Mapping[str, Any]) -> Iterator[Record]:
        """Yield the documents of a prefix."""
        prefix = _prefix_of(input)
        if [stamp(path)[0] for path in paths_of(prefix)] != input["sizes"]:
            raise FormatError("was changed after it was listed", path=prefix)
        opened = open_prefix(prefix)
        for number, (first, last) in enumerate(opened.documents):
            key = f"{prefix.name.replace('.', '_')}-{number:08d}"
            origin = Origin(source=self.name, path=prefix.name, row=number)
            rows = tuple(_row(key, at - first, opened.ids(at), origin) for at in range(first, last))
            yield Record(key=key, rows=rows)

    def ids_file(self, input: Mapping[str, Any]) -> Path | None:
        """Return the `.bin` if its sequences follow each other in it, in the dtype of the space."""
        opened = open_prefix(_prefix_of(input))
        is_same = self.space is not None and opened.index.dtype == self.space.dtype
        return opened.path if is_same and opened.has_no_gaps() else None

    def inputs(self) -> Mapping[str, Any]:
        """Return size and time of each file."""
        return {str(path): stamp(path) for p in self.prefixes() for path in paths_of(p)}

    def prefixes(self) -> list[Path]:
        """Return the prefixes in order, each once."""
        found: dict[Path, None] = {}
        for given in self.files:
            for name in expand(given) if not _is_prefix(given) else [given]:
                path = Path(name)
                indexes = sorted(path.glob("*.idx")) if path.is_dir() else [_idx(path)]
                if not indexes:
                    raise ConfigError(f"{path} holds no .idx files")
                found |= dict.fromkeys(index.with_suffix("") for index in indexes)
        return list(found)


def _prefix_of(input: Mapping[str, Any]) -> Path:
    return Path(input["raw"][0]).with_suffix("")


@dataclass(frozen=True, slots=True, eq=False)
class OpenPrefix:
    """A mapped prefix; every sequence is checked against the file before it is read."""

    path: Path
    index: MegatronIndex
    data: NDArray[Any]

    @property
    def documents(self) -> list[tuple[int, int]]:
        """First and last sequence of each document; those without any are left out."""
        bounds = self.index.documents.tolist()
        return [(a, b) for a, b in pairwise(bounds) if b > a]

    def has_no_gaps(self) -> bool:
        """Say whether the sequences fill the file in their order."""
        num_bytes = self.index.lengths.astype(np.int64) * self.data.itemsize
        ends = np.cumsum(num_bytes)
        starts = ends - num_bytes
        is_filled = int(num_bytes.sum()) == self.data.nbytes and int(num_bytes.min(initial=0)) >= 0
        return is_filled and np.array_equal(starts, self.index.offsets)

    def ids(self, sequence: int) -> NDArray[Any]:
        """Return the ids of a sequence, mapped and not copied."""
        size = self.data.itemsize
        start, odd = divmod(int(self.index.offsets[sequence]), size)
        length = int(self.index.lengths[sequence])
        if odd or start < 0 or length < 0 or start + length > len(self.data):
            raise FormatError(
                f"sequence {sequence} has {length} ids at byte {start * size + odd}, the file has "
                f"{self.data.nbytes} bytes: it was cut off",
                path=self.path,
            )
        return self.data[start : start + length]


def open_prefix(prefix: Path) -> OpenPrefix:
    """Map a prefix whose document bounds rise from the first sequence to the last."""
    bin_path, idx_path = paths_of(prefix)
    for path in (bin_path, idx_path):
        if not path.is_file():
            raise FormatError("is missing: a prefix is a .bin and an .idx", path=path)
    index = open_megatron_index(idx_path)
    bounds = index.documents
    if len(bounds) and (
        bounds[0] != 0 or bounds[-1] != len(index.lengths) or bool((np.diff(bounds) < 0).any())
    ):
        raise FormatError("its document bounds do not rise over all sequences", path=idx_path)
    raw = map_bytes(bin_path)
    if len(raw) % index.dtype.itemsize:
        raise FormatError(f"has {len(raw)} bytes, which are no whole ids", path=bin_path)
    return OpenPrefix(bin_path, index, np.frombuffer(raw, index.dtype))


def paths_of(prefix: Path) -> tuple[Path, Path]:
    """Return the two files of a prefix."""
    return prefix.with_name(prefix.name + ".bin"), prefix.with_name(prefix.name + ".idx")


def _row(key: str, at: int, ids: NDArray[Any], origin: Origin) -> TokenRow:
    loss = np.array([[0, len(ids)]] if len(ids) else np.empty((0, 2)), np.int64)
    return TokenRow(key=block_key(key, at), ids=ids, loss=loss, origin=origin, continues=at > 0)


def _is_prefix(given: str) -> bool:
    return _idx(Path(given)).is_file()


def _has_magic(index: Path) -> bool:
    # A tar's index of ours has the same suffix.
    if not index.is_file():
        return False
    with index.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def _idx(path: Path) -> Path:
    if path.suffix in (".idx", ".bin"):
        return path.with_suffix(".idx")
    return path.with_name(path.name + ".idx")
