"""UniDisc's fixed-length rows from token or pack shards, as a memory-mapped TensorDict.

    input_ids       int16 or int32 [rows, length]   padded with pad_id
    attention_mask  bool           [rows, length]   False where padded
    modality        int8           [rows, length]   1 for image codes, 0 for text and padding
    idx             int32          [rows, 1]        the number of the row in the input
    sample_ids      int16          [rows, length]   of packs only: document 0, 1, 2 ...; -1 padding

Of token shards each row is a row, of pack shards each pack. `tensordict_files` states the files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ConfigError
from shardmill.formats.codespace import CodeForm, is_code, make_raw
from shardmill.formats.fixedlength import Desk, FixedLength, Overlong, kept_tokens, rows_at_once
from shardmill.formats.inputs import ExportInput, Slice
from shardmill.formats.tensordict_files import DtypeName, Tensor, id_dtype
from shardmill.formats.tensordict_rows import TensorBatch, TensorRowsFormat
from shardmill.formats.tokenrows import TokenRows, is_packed, token_rows
from shardmill.io.scribe import in_turns
from shardmill.io.weave import between
from shardmill.model.stage import Tally


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorDictFormat(TensorRowsFormat):
    """Rows of `length` tokens; codes count from 0 ("raw") or as the model sees them ("shifted")."""

    length: int
    pad_id: int | None = None
    overlong: Overlong = "refuse"
    codes: CodeForm = "raw"
    dtype: DtypeName = "smallest"

    def __post_init__(self) -> None:
        self.rule()  # refuses a length that cannot be

    def rule(self) -> FixedLength:
        """Return what becomes of rows that are shorter or longer."""
        return FixedLength(width=self.length, pad_id=self.pad_id, overlong=self.overlong)

    def tensors(self, source: ExportInput) -> dict[str, Tensor]:
        """Return the tensors by key."""
        packed, shape = is_packed(source), (self.length,)
        if packed and self.overlong == "cut":
            raise ConfigError("packs are not cut: choose a greater length, or overlong=drop")
        tensors = {
            "input_ids": Tensor(id_dtype(source, self.codes, self.dtype, self.pad_id), shape),
            "attention_mask": Tensor("bool", shape),
            "modality": Tensor("int8", shape),
        }
        return {**tensors, "sample_ids": Tensor("int16", shape)} if packed else tensors

    def batches(self, source: ExportInput, slices: Sequence[Slice]) -> Iterator[TensorBatch]:
        """Yield the rows or packs in order."""
        desks = in_turns(lambda: Desk(self.length, source.space().dtype))
        for rows in token_rows(source, slices, max_rows=rows_at_once(self.length)):
            yield FixedBatch(self, rows, source, next(desks))


@dataclass(frozen=True, slots=True, eq=False)
class FixedBatch:
    """Rows that are padded to one length."""

    spec: TensorDictFormat
    rows: TokenRows
    source: ExportInput
    desk: Desk

    def kept(self) -> NDArray[np.bool_]:
        """Return which rows fit, as they are or cut."""
        lengths = self.rows.lengths
        return self.spec.rule().kept(lengths, self.rows.num_fixed) & (lengths > 0)

    def check(self) -> None:
        """Refuse rows of other lengths, if that is the policy."""
        self.spec.rule().check(self.rows.lengths, self.rows.keys, self.source.folder)

    def account(self, tally: Tally) -> None:
        """Enter the stored rows into the books."""
        self.rows.account(self.spec.rule(), self.kept(), tally)

    def values(self) -> dict[str, NDArray[Any]]:
        """Return the padded rows."""
        rows, kept, space = self.rows, self.kept(), self.source.space()
        stays = kept_tokens(rows.bounds, kept, self.spec.length, rows.part.fixed_mask)
        lengths = np.minimum(rows.lengths[kept], self.spec.length)
        mask, bounds = self.desk.filled(lengths), np.concatenate([[0], np.cumsum(lengths)])
        flat = rows.ids if stays is None else rows.ids[stays]
        ids = self.desk.padded([between(flat, bounds)], self.spec.pad_id or 0)
        codes = is_code(ids, space)
        codes &= mask  # padding is no code, whatever its id is
        if self.spec.codes == "raw":
            make_raw(ids, codes, space)
        values = {"input_ids": ids, "attention_mask": mask, "modality": codes}
        if rows.documents is not None:
            numbers = np.full(mask.shape, -1, np.int16)
            numbers[mask] = rows.documents if stays is None else rows.documents[stays]
            values["sample_ids"] = numbers
        return values
