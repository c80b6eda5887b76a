"""Rows of one shape, written by all units into the files of one TensorDict.

Which rows are kept follows from lengths alone, so `plan` knows the place of every row, and `write`
comes to the same rows. Beside the tensors of a format there is always `idx` int32 [rows, 1], the
number of the row in the input.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from shardmill.formats.contract import Format, Piece, Place
from shardmill.formats.inplace import RangeWriter
from shardmill.formats.inputs import ExportInput, Slice
from shardmill.formats.tensordict_files import Tensor, file_sizes, write_meta, write_rows
from shardmill.io.scribe import Scribe
from shardmill.model.manifest import Manifest
from shardmill.model.stage import Draft, Tally

INDEX = Tensor("int32", (1,))


class TensorBatch(Protocol):
    """Some rows of the input; what is not asked for is not computed."""

    def kept(self) -> NDArray[np.bool_]:
        """Return which rows become rows of the tensors."""

    def check(self) -> None:
        """Raise `ConfigError` for a row that the format refuses."""

    def account(self, tally: Tally) -> None:
        """Enter all rows into the books."""

    def values(self) -> dict[str, NDArray[Any]]:
        """Return the kept rows of every tensor, which stay as they are while the next are made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRowsFormat(Format):
    """A format that says which tensors there are, and what is in them for a batch of rows."""

    @abstractmethod
    def tensors(self, source: ExportInput) -> dict[str, Tensor]:
        """Return the tensors by key, without `idx`; `ConfigError` for ids that do not fit."""

    @abstractmethod
    def batches(self, source: ExportInput, slices: Sequence[Slice]) -> Iterator[TensorBatch]:
        """Yield the rows in order, a batch at a time."""

    def plan(self, source: ExportInput, ranges: Sequence[tuple[Slice, ...]]) -> Iterator[Place]:
        """Yield the first row of each unit in the input and in the tensors."""
        self.tensors(source)
        firsts = []
        number = row = 0
        for slices in ranges:
            firsts.append((number, row))
            for batch in self.batches(source, slices):
                batch.check()
                kept = batch.kept()
                number, row = number + len(kept), row + int(kept.sum())
        for first_number, first_row in firsts:
            yield {"number": first_number, "row": first_row, "rows": row}

    def shared_files(self, source: ExportInput, pieces: Sequence[Piece]) -> Mapping[str, int]:
        """Return the files of all tensors."""
        return file_sizes(self._all_tensors(source), pieces[0].place["rows"] if pieces else 0)

    def write(self, source: ExportInput, piece: Piece, draft: Draft, tally: Tally) -> None:
        """Write the rows of a unit into their place."""
        tensors = self._all_tensors(source)
        number, row = piece.place["number"], piece.place["row"]
        with RangeWriter(draft, piece.name) as ranges:
            with Scribe() as scribe:
                for batch in self.batches(source, piece.slices):
                    batch.account(tally)
                    kept = batch.kept()
                    index = (np.flatnonzero(kept) + number)[:, None]
                    values = {**batch.values(), "idx": index}
                    scribe.write(write_rows, ranges, tensors, row, values)
                    number, row = number + len(kept), row + int(kept.sum())
            ranges.finish(tally, num_samples=tally.num_kept)

    def finish(self, source: ExportInput, manifest: Manifest, out_dir: Path) -> None:
        """Write meta.json."""
        num_rows = (out_dir / "idx.memmap").stat().st_size // INDEX.row_bytes
        write_meta(out_dir, self._all_tensors(source), num_rows)

    def _all_tensors(self, source: ExportInput) -> dict[str, Tensor]:
        return {**self.tensors(source), "idx": INDEX}
