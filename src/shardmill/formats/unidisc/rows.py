"""UniDisc's fixed-length rows from token or pack shards, as a memory-mapped TensorDict.

    input_ids       int16 or int32 [rows, length]   padded with pad_id
    attention_mask  bool           [rows, length]   False where padded
    modality        int8           [rows, length]   1 for image codes, 0 for text and padding
    idx             int32          [rows, 1]        the number of the row in the input
    sample_ids      int16          [rows, length]   of packs only: document 0, 1, 2 ...; -1 padding

Of token shards each row is a row, of pack shards each pack. `tensordict_files` states the files.

A TensorDict on disk: one file of raw numbers for each tensor, and meta.json that makes it one.

    KEY.memmap   the numbers, C order, no header
    meta.json    {KEY: {"device", "shape", "dtype": "torch.int16", "is_nested"}, ...,
                  "shape": [rows], "device": "cpu", "_type": "<class 'tensordict._td.TensorDict'>"}

All units write their rows into the files in place; meta.json comes last, and without it
`TensorDict.load_memmap` finds nothing.

Rows of one shape, written by all units into the files of one TensorDict.

Which rows are kept follows from lengths alone, so `plan` knows the place of every row, and `write`
comes to the same rows. Beside the tensors of a format there is always `idx` int32 [rows, 1], the
number of the row in the input.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import orjson
from numpy.typing import NDArray

from shardmill.errors import ConfigError
from shardmill.formats.format import ExportInput, Format, Piece, Place, Slice
from shardmill.formats.rows import TokenRows, is_packed, token_rows
from shardmill.formats.sharedfiles import RangeWriter
from shardmill.formats.unidisc.codespace import CodeForm, is_code, make_raw, num_ids
from shardmill.formats.unidisc.fixedlength import (
    Desk,
    FixedLength,
    Overlong,
    kept_tokens,
    rows_at_once,
)
from shardmill.model.manifest import Manifest
from shardmill.model.stage import Draft, Tally
from shardmill.shards.weave import between
from shardmill.storage.atomic import write_file
from shardmill.storage.background import Scribe, in_turns

META_NAME = "meta.json"
INT16_SIZE = 1 << 15
DtypeName: TypeAlias = Literal["smallest", "int16", "int32"]


@dataclass(frozen=True, slots=True)
class Tensor:
    """What each row has under a key: its dtype and its shape."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        """The bytes of one row."""
        return prod(self.shape) * np.dtype(self.dtype).itemsize


def file_sizes(tensors: Mapping[str, Tensor], num_rows: int) -> dict[str, int]:
    """Return name -> size of the files of all rows."""
    return {f"{key}.memmap": num_rows * tensor.row_bytes for key, tensor in tensors.items()}


def write_rows(
    ranges: RangeWriter,
    tensors: Mapping[str, Tensor],
    first_row: int,
    values: Mapping[str, NDArray[Any]],
) -> None:
    """Write neighbouring rows of every tensor into their place."""
    for key, tensor in tensors.items():
        array = _as_dtype(values[key], np.dtype(tensor.dtype))
        assert array.shape[1:] == tensor.shape, (key, array.shape, tensor.shape)
        ranges.write(f"{key}.memmap", first_row * tensor.row_bytes, array)


def _as_dtype(array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    # Ids that fit into a signed number of the same width have the same bytes there.
    same_width = array.dtype.itemsize == dtype.itemsize and array.flags.c_contiguous
    return array.view(dtype) if same_width else array.astype(dtype)


def write_meta(out_dir: Path, tensors: Mapping[str, Tensor], num_rows: int) -> None:
    """Write the file that makes the others a TensorDict."""
    meta: dict[str, Any] = {
        key: {
            "device": "cpu",
            "shape": [num_rows, *tensor.shape],
            "dtype": f"torch.{np.dtype(tensor.dtype).name}",
            "is_nested": False,
        }
        for key, tensor in tensors.items()
    }
    meta |= {
        "shape": [num_rows],
        "device": "cpu",
        "_type": "<class 'tensordict._td.TensorDict'>",
    }
    write_file(out_dir / META_NAME, orjson.dumps(meta))


def id_dtype(source: ExportInput, form: CodeForm, name: DtypeName, pad_id: int | None) -> str:
    """Return the dtype of ids: the smallest that holds all of them, or the one asked for."""
    size = num_ids(source.space(), form)
    if pad_id is not None and not 0 <= pad_id < size:
        raise ConfigError(f"pad_id {pad_id} is none of the {size} ids of {source.folder}")
    if name == "smallest":
        return smallest_signed(size)
    if name == "int16" and size > INT16_SIZE:
        raise ConfigError(
            f"{source.folder} has {size} ids with {form} codes, int16 holds {INT16_SIZE}: "
            "export with dtype=int32"
        )
    return name


def smallest_signed(size: int) -> str:
    """Return the smallest of int16 and int32 that holds the numbers 0 .. size - 1."""
    return "int16" if size <= INT16_SIZE else "int32"


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
