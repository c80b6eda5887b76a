"""UniDisc's fixed-length rows from token or pack shards, as a memory-mapped TensorDict.

    input_ids       int16 or int32 [rows, length]   padded with pad_id
    attention_mask  bool           [rows, length]   False where padded
    modality        int8           [rows, length]   1 for image codes, 0 for text and padding
    idx             int32          [rows, 1]        the number of the row in the input
    sample_ids      int16          [rows, length]   of packs only: document 0, 1, 2 ...; -1 padding

Of token shards each row is a row, of pack shards each pack. `tensordict_files` states the files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ConfigError
from shardmill.formats.codespace import CodeForm, is_code, make_raw
from shardmill.formats.contract import Format, Piece, Place
from shardmill.formats.fixedlength import Desk, FixedLength, Overlong, kept_tokens
from shardmill.formats.inplace import RangeWriter
from shardmill.formats.inputs import ExportInput, Slice
from shardmill.formats.tensordict_files import (
    DtypeName,
    Tensor,
    file_sizes,
    id_dtype,
    write_meta,
    write_rows,
)
from shardmill.formats.tokenrows import TokenRows, is_packed, token_rows
from shardmill.model.manifest import Manifest
from shardmill.model.space import TokenSpace
from shardmill.model.stage import Draft, Tally

BATCH_CELLS = 1 << 19  # the arrays of a batch stay near the processor


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorDictFormat(Format):
    """Rows of `length` tokens; codes count from 0 ("raw") or as the model sees them ("shifted")."""

    length: int
    pad_id: int | None = None
    overlong: Overlong = "refuse"
    codes: CodeForm = "raw"
    dtype: DtypeName = "smallest"

    def __post_init__(self) -> None:
        self._rule  # noqa: B018  (checks the fields)

    def plan(self, source: ExportInput, ranges: Sequence[tuple[Slice, ...]]) -> Iterator[Place]:
        """Yield the first row of each unit in the input and in the tensors."""
        self._tensors(source)
        firsts = []
        number = row = 0
        for slices in ranges:
            firsts.append((number, row))
            for part in token_rows(source, slices):
                self._rule.check(part.lengths, part.keys, source.folder)
                number += len(part)
                row += int(self._kept(part).sum())
        for first_number, first_row in firsts:
            yield {"number": first_number, "row": first_row, "rows": row}

    def shared_files(self, source: ExportInput, pieces: Sequence[Piece]) -> Mapping[str, int]:
        """Return the files of all tensors."""
        num_rows = pieces[0].place["rows"] if pieces else 0
        return file_sizes(self._tensors(source), num_rows)

    def write(self, source: ExportInput, piece: Piece, draft: Draft, tally: Tally) -> None:
        """Write the rows of a unit into their place."""
        tensors, space = self._tensors(source), source.space()
        number, row = piece.place["number"], piece.place["row"]
        max_rows = max(1, BATCH_CELLS // self.length)
        desk: Desk | None = None
        with RangeWriter(draft, piece.name) as ranges:
            for part in token_rows(source, piece.slices, max_rows=max_rows):
                kept = self._kept(part)
                part.account(self._rule, kept, tally)
                if desk is None or len(part) > desk.num_rows:
                    desk = Desk(max(max_rows, len(part)), self.length, space.dtype)
                values = self._values(part, kept, space, desk)
                values["idx"] = (np.flatnonzero(kept) + number)[:, None]
                write_rows(ranges, tensors, row, values)
                number, row = number + len(kept), row + int(kept.sum())
            ranges.finish(tally, num_samples=tally.num_kept)

    def finish(self, source: ExportInput, manifest: Manifest, out_dir: Path) -> None:
        """Write meta.json."""
        tensors = self._tensors(source)
        num_rows = (out_dir / "idx.memmap").stat().st_size // tensors["idx"].row_bytes
        write_meta(out_dir, tensors, num_rows)

    @property
    def _rule(self) -> FixedLength:
        return FixedLength(width=self.length, pad_id=self.pad_id, overlong=self.overlong)

    def _kept(self, part: TokenRows) -> NDArray[np.bool_]:
        return self._rule.kept(part.lengths, part.num_fixed) & (part.lengths > 0)

    def _values(
        self, part: TokenRows, kept: NDArray[np.bool_], space: TokenSpace, desk: Desk
    ) -> dict[str, NDArray[Any]]:
        stays = kept_tokens(part.bounds, kept, self.length, part.part.fixed_mask)
        lengths = np.minimum(part.lengths[kept], self.length)
        mask = desk.filled(lengths)
        ids = desk.padded(part.ids if stays is None else part.ids[stays], mask, self.pad_id or 0)
        codes = is_code(ids, space)
        codes &= mask  # padding is no code, whatever its id is
        if self.codes == "raw":
            make_raw(ids, codes, space)
        values = {"input_ids": ids, "attention_mask": mask, "modality": codes}
        if part.documents is not None:
            numbers = np.full(mask.shape, -1, np.int16)
            numbers[mask] = part.documents if stays is None else part.documents[stays]
            values["sample_ids"] = numbers
        return values

    def _tensors(self, source: ExportInput) -> dict[str, Tensor]:
        packed, shape = is_packed(source), (self.length,)
        if packed and self.overlong == "cut":
            raise ConfigError("packs are not cut: choose a greater length, or overlong=drop")
        dtype = id_dtype(source, self.codes, self.dtype, self.pad_id)
        tensors = {
            "input_ids": Tensor(dtype, shape),
            "attention_mask": Tensor("bool", shape),
            "modality": Tensor("int8", shape),
            "idx": Tensor("int32", (1,)),
        }
        if packed:
            tensors["sample_ids"] = Tensor("int16", shape)
        return tensors
