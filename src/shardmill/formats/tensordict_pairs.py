"""UniDisc's pairs of a picture and a text from token shards, as a memory-mapped TensorDict.

    img_input_ids       int16 or int32 [rows, img_length]   the codes of the one picture
    txt_input_ids       int32          [rows, txt_length]   padded with pad_id
    txt_attention_mask  bool           [rows, txt_length]   False where padded
    idx                 int32          [rows, 1]            the number of the row in the input

The text is what stands outside the picture and its delimiters. A row that has not just one picture
of `img_length` codes is refused, or dropped with its reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ConfigError, Filtered, FormatError
from shardmill.formats.codespace import CodeForm, is_code, make_raw
from shardmill.formats.contract import Format, Piece, Place
from shardmill.formats.fixedlength import (
    Desk,
    FixedLength,
    Overlong,
    account,
    kept_tokens,
)
from shardmill.formats.inplace import RangeWriter
from shardmill.formats.inputs import ExportInput, Slice
from shardmill.formats.tensordict_files import (
    Tensor,
    file_sizes,
    id_dtype,
    smallest_signed,
    write_meta,
    write_rows,
)
from shardmill.formats.tokenrows import KeysOfRows
from shardmill.formats.tokenslice import TokenSlice, token_slices
from shardmill.model.manifest import Manifest
from shardmill.model.stage import Draft, Tally

BATCH_CELLS = 1 << 19  # the arrays of a batch stay near the processor
NOT_A_PAIR = "not one picture of this size"


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Rows of which `is_pair` says whether they are one picture of the right size and a text."""

    part: TokenSlice
    is_pair: NDArray[np.bool_]
    text_lengths: NDArray[np.int64]


def find_pairs(part: TokenSlice, img_length: int) -> Pairs:
    """Look at the lengths of rows and pictures."""
    _, lengths, rows = part.media()
    count = np.bincount(rows, minlength=len(part))
    size = np.bincount(rows, weights=lengths, minlength=len(part))
    num_fixed = part.shard.num_fixed[part.start : part.stop].astype(np.int64)
    return Pairs(part, (count == 1) & (size == img_length), part.lengths - num_fixed)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairsFormat(Format):
    """Pictures of `img_length` codes with texts of `txt_length` tokens.

    `overlong` is for texts; `others` says what happens to rows that are no such pair.
    """

    img_length: int
    txt_length: int
    pad_id: int | None = None
    overlong: Overlong = "refuse"
    others: Literal["refuse", "drop"] = "refuse"
    codes: CodeForm = "raw"

    def __post_init__(self) -> None:
        if self.img_length < 1:
            raise ConfigError(f"img_length must be at least 1, got {self.img_length}")
        self._rule  # noqa: B018  (checks the fields)

    def plan(self, source: ExportInput, ranges: Sequence[tuple[Slice, ...]]) -> Iterator[Place]:
        """Yield the first row of each unit in the input and in the tensors."""
        self._tensors(source)
        firsts = []
        number = row = 0
        for slices in ranges:
            firsts.append((number, row))
            for part in token_slices(source, slices):
                pairs = find_pairs(part, self.img_length)
                self._check(pairs, source)
                number += len(part)
                row += int(self._kept(pairs).sum())
        for first_number, first_row in firsts:
            yield {"number": first_number, "row": first_row, "rows": row}

    def shared_files(self, source: ExportInput, pieces: Sequence[Piece]) -> Mapping[str, int]:
        """Return the files of all tensors."""
        return file_sizes(self._tensors(source), pieces[0].place["rows"] if pieces else 0)

    def write(self, source: ExportInput, piece: Piece, draft: Draft, tally: Tally) -> None:
        """Write the pairs of a unit into their place."""
        tensors = self._tensors(source)
        number, row = piece.place["number"], piece.place["row"]
        max_rows = max(1, BATCH_CELLS // (self.txt_length + self.img_length))
        desk: Desk | None = None
        with RangeWriter(draft, piece.name) as ranges:
            for part in token_slices(source, piece.slices, max_rows=max_rows):
                pairs = find_pairs(part, self.img_length)
                kept = self._kept(pairs)
                account(tally, kept, KeysOfRows(part), partial(self._explain, pairs))
                if desk is None or len(part) > desk.num_rows:
                    desk = Desk(max(max_rows, len(part)), self.txt_length, np.int32)
                values = self._values(pairs, kept, desk)
                values["idx"] = (np.flatnonzero(kept) + number)[:, None]
                write_rows(ranges, tensors, row, values)
                number, row = number + len(part), row + int(kept.sum())
            ranges.finish(tally, num_samples=tally.num_kept)

    def finish(self, source: ExportInput, manifest: Manifest, out_dir: Path) -> None:
        """Write meta.json."""
        write_meta(out_dir, self._tensors(source), manifest.num_samples)

    @property
    def _rule(self) -> FixedLength:
        return FixedLength(width=self.txt_length, pad_id=self.pad_id, overlong=self.overlong)

    def _kept(self, pairs: Pairs) -> NDArray[np.bool_]:
        nothing_fixed = np.zeros(len(pairs.part), np.int64)
        return pairs.is_pair & self._rule.kept(pairs.text_lengths, nothing_fixed)

    def _check(self, pairs: Pairs, source: ExportInput) -> None:
        keys = KeysOfRows(pairs.part)
        if self.others == "refuse" and not pairs.is_pair.all():
            raise ConfigError(
                f"{source.folder}: {keys[int(np.argmin(pairs.is_pair))]!r} is not one picture of "
                f"{self.img_length} codes and a text: set img_length, or others=drop"
            )
        # A row that is dropped anyway has any length.
        lengths = np.where(pairs.is_pair, pairs.text_lengths, self.txt_length)
        self._rule.check(lengths, keys, source.folder)

    def _explain(self, pairs: Pairs, row: int) -> Filtered:
        if pairs.is_pair[row]:
            return self._rule.explain(int(pairs.text_lengths[row]))
        return Filtered(NOT_A_PAIR, f"one of {self.img_length} codes is wanted")

    def _values(self, pairs: Pairs, kept: NDArray[np.bool_], desk: Desk) -> dict[str, NDArray[Any]]:
        part, space = pairs.part, pairs.part.shard.space
        in_kept = np.repeat(kept, part.lengths)
        picture = part.ids[in_kept & (part.modality() > 0)].reshape(-1, self.img_length)
        codes = is_code(picture, space)
        if not codes.all():
            raise FormatError("has a picture with ids that are no codes", path=part.shard.path)
        if self.codes == "raw":
            make_raw(picture, codes, space)
        text = part.ids[in_kept & (part.fixed_mask() == 0)]
        bounds = np.concatenate([[0], np.cumsum(pairs.text_lengths[kept])])
        stays = kept_tokens(bounds, np.ones(len(bounds) - 1, np.bool_), self.txt_length)
        mask = desk.filled(np.minimum(np.diff(bounds), self.txt_length))
        text = desk.padded(text if stays is None else text[stays], mask, self.pad_id or 0)
        return {"img_input_ids": picture, "txt_input_ids": text, "txt_attention_mask": mask}

    def _tensors(self, source: ExportInput) -> dict[str, Tensor]:
        space = source.space()
        size = space.num_codes if self.codes == "raw" else space.code_offset + space.num_codes
        id_dtype(source, self.codes, "int32", self.pad_id)
        return {
            "img_input_ids": Tensor(smallest_signed(size), (self.img_length,)),
            "txt_input_ids": Tensor("int32", (self.txt_length,)),
            "txt_attention_mask": Tensor("bool", (self.txt_length,)),
            "idx": Tensor("int32", (1,)),
        }
