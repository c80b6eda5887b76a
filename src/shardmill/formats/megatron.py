"""Megatron's indexed data sets from token or pack shards; `io.megatron` states the bytes.

Each unit becomes a prefix of its own (OUT/shards/00000), or all of them one (OUT/PREFIX). Rows are
Megatron's sequences; documents, or packs, are its documents. One prefix for all is written in
place by all units at once. Its `.idx` has no header until all of them are done, and every reader
refuses it until then.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from shardmill.errors import ConfigError
from shardmill.formats.contract import Format, Piece, Place
from shardmill.formats.inplace import RangeWriter
from shardmill.formats.inputs import ExportInput, Slice
from shardmill.formats.tokenslice import token_slices
from shardmill.io.megatron import CODES, HEADER, MAGIC, write_index
from shardmill.io.pieces import PieceFile, open_to_write
from shardmill.model.manifest import Manifest
from shardmill.model.space import UINT16_SIZE
from shardmill.model.stage import Draft, Tally, check_name

DTYPES: dict[str, np.dtype[Any]] = {"uint16": np.dtype("<u2"), "int32": np.dtype("<i4")}


@dataclass(frozen=True, slots=True)
class Counts:
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
        total = Counts(*pieces[0].place["all"]) if pieces else Counts(0, 0, 0)
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
            end = np.array(manifest.num_samples, "<i8").tobytes()
            os.pwrite(descriptor, end, path.stat().st_size - len(end))
            os.fsync(descriptor)
            os.pwrite(descriptor, header, 0)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _write_pair(self, source: ExportInput, piece: Piece, draft: Draft) -> None:
        dtype = self._dtype(source)
        lengths: list[Any] = [np.empty(0, np.int32)]
        documents: list[Any] = [np.empty(0, np.int64)]
        num_rows = 0
        with PieceFile(draft.file(piece.name, "bin"), "wb") as file:
            for part in token_slices(source, piece.slices):
                ids = part.ids.astype(dtype, copy=False)
                file.write(ids.data)
                lengths.append(part.lengths)
                documents.append(part.documents[:-1] + num_rows)
                num_rows += len(part)
        with open_to_write(draft.file(piece.name, "idx")) as index:
            write_index(index, dtype, np.concatenate(lengths), np.concatenate(documents))
        draft.finish(piece.name, num_samples=num_rows)

    def _write_ranges(self, source: ExportInput, piece: Piece, draft: Draft, tally: Tally) -> None:
        dtype, total = self._dtype(source), Counts(*piece.place["all"])
        sequence, token, document = piece.place["first"]
        bin_name, idx_name = f"{self.prefix}.bin", f"{self.prefix}.idx"
        with RangeWriter(draft, piece.name) as ranges:
            for part in token_slices(source, piece.slices):
                ids = part.ids.astype(dtype, copy=False)
                offsets = ((part.bounds[:-1] + token) * dtype.itemsize).astype("<i8")
                bounds = (part.documents[:-1] + sequence).astype("<i8")
                lengths = part.lengths.astype("<i4")
                ranges.write(bin_name, token * dtype.itemsize, ids)
                ranges.write(idx_name, total.lengths_at + 4 * sequence, lengths)
                ranges.write(idx_name, total.offsets_at + 8 * sequence, offsets)
                ranges.write(idx_name, total.bounds_at + 8 * document, bounds)
                sequence += len(part)
                token += part.num_tokens
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


def _count(source: ExportInput, slices: Sequence[Slice]) -> Counts:
    parts = list(token_slices(source, slices))
    return Counts(
        sum(map(len, parts)),
        sum(part.num_tokens for part in parts),
        sum(len(part.documents) - 1 for part in parts),
    )
