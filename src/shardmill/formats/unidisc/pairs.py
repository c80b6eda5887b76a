"""UniDisc's pairs of an image and a text from token shards, as a memory-mapped TensorDict.

    img_input_ids       int16 or int32 [rows, img_length]   the codes of the one image
    txt_input_ids       int32          [rows, txt_length]   padded with pad_id
    txt_attention_mask  bool           [rows, txt_length]   False where padded
    idx                 int32          [rows, 1]            the number of the row in the input

The text is what stands outside the image and its delimiters. A row that has not just one image
of `img_length` codes is refused, or dropped with its reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ConfigError, Filtered, FormatError
from shardmill.formats.format import ExportInput, Slice
from shardmill.formats.rows import KeysOfRows, TokenSlice, token_slices
from shardmill.formats.unidisc.codespace import CodeForm, is_code, make_raw
from shardmill.formats.unidisc.fixedlength import Desk, FixedLength, Overlong, account, rows_at_once
from shardmill.formats.unidisc.rows import (
    Tensor,
    TensorBatch,
    TensorRowsFormat,
    id_dtype,
    smallest_signed,
)
from shardmill.model.stage import Tally
from shardmill.shards.weave import Column, weave
from shardmill.storage.background import in_turns

NOT_A_PAIR = "not one image of this size"


@dataclass(frozen=True, slots=True, kw_only=True)
class PairsFormat(TensorRowsFormat):
    """Images of `img_length` codes with texts of `txt_length` tokens.

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
        self.rule()  # refuses a length that cannot be

    def rule(self) -> FixedLength:
        """Return what becomes of texts that are shorter or longer."""
        return FixedLength(width=self.txt_length, pad_id=self.pad_id, overlong=self.overlong)

    def tensors(self, source: ExportInput) -> dict[str, Tensor]:
        """Return the tensors by key."""
        space = source.space()
        size = space.num_codes if self.codes == "raw" else space.code_offset + space.num_codes
        return {
            "img_input_ids": Tensor(smallest_signed(size), (self.img_length,)),
            "txt_input_ids": Tensor(
                id_dtype(source, self.codes, "int32", self.pad_id), (self.txt_length,)
            ),
            "txt_attention_mask": Tensor("bool", (self.txt_length,)),
        }

    def batches(self, source: ExportInput, slices: Sequence[Slice]) -> Iterator[TensorBatch]:
        """Yield the rows in order."""
        desks = in_turns(lambda: Desk(self.txt_length, np.int32))
        max_rows = rows_at_once(self.txt_length + self.img_length)
        for part in token_slices(source, slices, max_rows=max_rows):
            yield pair_batch(self, part, next(desks))


@dataclass(frozen=True, slots=True, eq=False)
class Images:
    """Among all tokens, the first of each image, and the edges around its delimiters."""

    begins: NDArray[np.int64]
    first: NDArray[np.int64]
    ends: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class PairBatch:
    """Rows of which `is_pair` says whether they are one image of the right size and a text."""

    spec: PairsFormat
    part: TokenSlice
    desk: Desk
    is_pair: NDArray[np.bool_]
    text_lengths: NDArray[np.int64]

    def kept(self) -> NDArray[np.bool_]:
        """Return which rows are pairs whose text fits, as it is or cut."""
        nothing_fixed = np.zeros(len(self.part), np.int64)
        return self.is_pair & self.spec.rule().kept(self.text_lengths, nothing_fixed)

    def check(self) -> None:
        """Refuse what is no pair and texts of other lengths, if that is the policy."""
        keys, where = KeysOfRows(self.part), self.part.shard.path
        if self.spec.others == "refuse" and not self.is_pair.all():
            raise ConfigError(
                f"{where}: {keys[int(np.argmin(self.is_pair))]!r} is not one image of "
                f"{self.spec.img_length} codes and a text: set img_length, or others=drop"
            )
        # A row that is dropped anyway has any length.
        lengths = np.where(self.is_pair, self.text_lengths, self.spec.txt_length)
        self.spec.rule().check(lengths, keys, where)

    def account(self, tally: Tally) -> None:
        """Enter all rows into the books."""
        account(tally, self.kept(), KeysOfRows(self.part), self._explain)

    def values(self) -> dict[str, NDArray[Any]]:
        """Return images, and padded texts: what stands before an image, then what follows it."""
        ids, kept, most = self.part.ids, self.kept(), self.spec.txt_length
        bounds, images = self.part.bounds, self._images(kept)
        begins, ends = bounds[:-1][kept], bounds[1:][kept]
        before = np.minimum(images.begins - begins, most)
        after = np.minimum(ends - images.ends, most - before)
        wide = ids.astype(np.int32)
        texts = [_cut(wide, begins, before), _cut(wide, images.ends, after)]
        return {
            "img_input_ids": self._codes(ids, images.first),
            "txt_input_ids": self.desk.padded(texts, self.spec.pad_id or 0),
            "txt_attention_mask": self.desk.filled(before + after),
        }

    def _images(self, kept: NDArray[np.bool_]) -> Images:
        """Return where the images of the kept rows lie."""
        first, _, rows = self.part.media()
        begins, ends = (edge[kept[rows]] for edge in self.part.media_edges())
        bounds = self.part.bounds
        if (begins < bounds[:-1][kept]).any() or (ends > bounds[1:][kept]).any():
            path = self.part.shard.spans.path
            raise FormatError("has an image outside of its row", path=path)
        return Images(begins, first[kept[rows]], ends)

    def _codes(self, ids: NDArray[Any], first: NDArray[np.int64]) -> NDArray[Any]:
        """Return the codes of images, raw if the spec says so; all their ids must be codes."""
        space, length = self.part.shard.space, self.spec.img_length
        woven = weave([_cut(ids, first, np.full(len(first), length))])
        image = woven.data.view(ids.dtype).reshape(-1, length)
        codes = is_code(image, space)
        if not codes.all():
            raise FormatError("has an image with ids that are no codes", path=self.part.shard.path)
        if self.spec.codes == "raw":
            make_raw(image, codes, space)
        return image

    def _explain(self, row: int) -> Filtered:
        if self.is_pair[row]:
            return self.spec.rule().explain(int(self.text_lengths[row]))
        return Filtered(NOT_A_PAIR, f"one of {self.spec.img_length} codes is wanted")


def _cut(flat: NDArray[Any], starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> Column:
    """Return so many values from each start on."""
    return Column(flat.view(np.uint8), starts * flat.itemsize, lengths * flat.itemsize)


def pair_batch(spec: PairsFormat, part: TokenSlice, desk: Desk) -> PairBatch:
    """Return the batch, after a look at the lengths of rows and images."""
    _, lengths, rows = part.media()
    count = np.bincount(rows, minlength=len(part))
    size = np.bincount(rows, weights=lengths, minlength=len(part))
    num_fixed = part.shard.num_fixed[part.start : part.stop].astype(np.int64)
    is_pair = (count == 1) & (size == spec.img_length)
    return PairBatch(spec, part, desk, is_pair, part.lengths - num_fixed)
