"""Rows of one shape from token or pack shards, as one memory-mapped TensorDict for UniDisc.

`TensorDictFormat` writes rows, or packs, of one length:

    input_ids       int16 or int32 [rows, length]   padded with pad_id
    attention_mask  bool           [rows, length]   False where padded
    modality        int8           [rows, length]   1 for image codes, 0 for text and padding; with
                                                    modality=false -1, as for Chameleon's ids
    sample_ids      int16          [rows, length]   of packs only: document 0, 1, 2 ...; -1 padding

`PairsFormat` writes the codes of one image and the text around it and its delimiters:

    img_input_ids       int16 or int32 [rows, img_length]
    txt_input_ids       int32          [rows, txt_length]   padded with pad_id
    txt_attention_mask  bool           [rows, txt_length]   False where padded

`LabelsFormat` writes the codes of one image and the id before them:

    img_input_ids       int16 or int32 [rows, img_length]
    img_label           int32          [rows, 1]

All have `idx` int32 [rows, 1] besides, of labels [rows]: the number of the row in the input, or the
one it had in UniDisc's data that it was adopted from. Codes are raw (0 .. K-1), so that the shift
can be chosen when a model is trained, or shifted as the model sees them.

All units write into the same files in place. Which rows are kept follows from lengths alone, so
`plan` knows the place of every row, and `write` comes to the same rows.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
import orjson
from numpy.typing import NDArray

from shardmill.errors import ConfigError, Filtered, FormatError
from shardmill.formats.adapters.unidisc import META_NAME, CodeForm, UnidiscReader
from shardmill.formats.format import Aspect, Format, Place, Reader, is_code, needed_space
from shardmill.formats.rows import ExportInput, Piece, Slice, TokenBatch, token_batches
from shardmill.formats.sharedfiles import RangeWriter
from shardmill.model.manifest import Manifest
from shardmill.model.space import TokenSpace
from shardmill.model.stage import Draft, Tally
from shardmill.model.tokenrow import MODALITIES
from shardmill.storage.files import write_file

DtypeName: TypeAlias = Literal["smallest", "int16", "int32"]
Overlong: TypeAlias = Literal["refuse", "drop", "cut"]

INT16_SIZE = 1 << 15
IGNORED_ID = -100  # with which UniDisc fills rows of Chameleon's ids
MAX_IDX = 1 << 31  # an int32
VALUES_AT_ONCE = 1 << 20  # padded values of a batch, however few of them are tokens
TOO_LONG = "longer than a row"
MEDIA_TOO_LONG = "media longer than a row"
EMPTY = "no tokens"
NOT_A_PAIR = "not one image of this size"


@dataclass(frozen=True, slots=True)
class Tensor:
    """What each row has under a key: its dtype and its shape."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        """The bytes of one row."""
        return prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedLength:
    """A row of `width` tokens; shorter ones end with `pad_id`, and are refused without it.

    `overlong` says what happens to longer ones: cut takes text from the end, and never media.
    """

    width: int
    pad_id: int | None = None
    overlong: Overlong = "refuse"

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ConfigError(f"a row needs at least one token, got {self.width}")

    def kept(self, lengths: NDArray[Any], num_fixed: NDArray[Any]) -> NDArray[np.bool_]:
        """Return which rows stay; `num_fixed` are the tokens of each that are never cut."""
        size = num_fixed if self.overlong == "cut" else lengths
        fits: NDArray[np.bool_] = size <= self.width
        return fits

    def check(self, lengths: NDArray[Any], batch: TokenBatch) -> None:
        """Raise `ConfigError` that names the first row which the policy refuses."""
        if self.overlong == "refuse" and (lengths > self.width).any():
            row = int(np.argmax(lengths > self.width))
            raise ConfigError(
                f"{batch.shard.path}: {batch.key(row)!r} has {lengths[row]} tokens, a row holds "
                f"{self.width}: choose a greater length, or overlong=cut or overlong=drop"
            )
        if self.pad_id is None and (lengths < self.width).any():
            row = int(np.argmax(lengths < self.width))
            raise ConfigError(
                f"{batch.shard.path}: {batch.key(row)!r} has {lengths[row]} tokens, a row "
                f"{self.width}: rows are "
                "of many lengths, say what fills them with pad_id=..."
            )

    def explain(self, length: int) -> Filtered:
        """Return why a row of this length is not kept."""
        reason = MEDIA_TOO_LONG if self.overlong == "cut" else TOO_LONG
        detail = f"{length} tokens, a row holds {self.width}"
        return Filtered(reason, detail) if length else Filtered(EMPTY)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRowsFormat(Format):
    """Rows of one shape; a format says which rows are kept and what their tensors hold.

    Codes count from 0 ("raw") or as the model sees them ("shifted").
    """

    # Whether packs are taken apart into the sequences that they are made of.
    by_sequence: ClassVar[bool] = False
    index: ClassVar[Tensor] = Tensor("int32", (1,))

    pad_id: int | None = None
    overlong: Overlong = "refuse"
    codes: CodeForm = "raw"

    @abstractmethod
    def tensors(self, source: ExportInput) -> dict[str, Tensor]:
        """Return the tensors by key; `ConfigError` if ids do not fit into them."""

    @abstractmethod
    def kept(self, batch: TokenBatch) -> NDArray[np.bool_]:
        """Return which rows are written, as they are or cut."""

    @abstractmethod
    def check(self, batch: TokenBatch) -> None:
        """Raise `ConfigError` for rows that the policy refuses."""

    @abstractmethod
    def explain(self, batch: TokenBatch, row: int) -> Filtered:
        """Return why a row is not kept."""

    @abstractmethod
    def values(self, batch: TokenBatch, kept: NDArray[np.bool_]) -> dict[str, NDArray[Any]]:
        """Return the kept rows of each tensor."""

    def loses(self, batch: TokenBatch, aspects: frozenset[Aspect]) -> Iterator[tuple[Aspect, int]]:
        """Yield what there is no tensor for; of modality there are image codes alone."""
        yield from Format.loses(self, batch, aspects - {"modality"})
        if "modality" in aspects:
            differs = batch.modality() != is_code(batch.ids, batch.shard.space)
            if differs.any():
                token = int(np.argmax(differs))
                yield "modality", int(np.searchsorted(batch.bounds, token, side="right")) - 1

    def plan(self, source: ExportInput, ranges: Sequence[tuple[Slice, ...]]) -> Iterator[Place]:
        """Yield the first row of each unit in the input and in the tensors."""
        self.tensors(source)  # refuses what cannot be
        firsts = []
        number = row = largest = 0
        for slices in ranges:
            firsts.append((number, row))
            for batch in self._batches(source, slices):
                self.check(batch)
                kept = self.kept(batch)
                number, row = number + len(kept), row + int(kept.sum())
                largest = max(largest, int(row_numbers(batch, number - len(kept)).max(initial=0)))
        if largest >= MAX_IDX:
            raise ConfigError(f"{source.folder} has a row {largest:,}, idx counts {MAX_IDX:,}")
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
            for batch in self._batches(source, piece.slices):
                kept = self.kept(batch)
                self._account(batch, kept, tally)
                values = self.values(batch, kept)
                numbers = row_numbers(batch, number)[kept]
                values["idx"] = numbers.reshape(-1, *self.index.shape)
                for key, tensor in tensors.items():
                    array = values[key].astype(tensor.dtype, copy=False)
                    assert array.shape[1:] == tensor.shape, (key, array.shape, tensor.shape)
                    ranges.write(f"{key}.memmap", row * tensor.row_bytes, array)
                number, row = number + len(kept), row + int(kept.sum())
            ranges.finish(tally, num_samples=tally.num_kept)

    def finish(self, source: ExportInput, manifest: Manifest, out_dir: Path) -> None:
        """Write meta.json."""
        num_rows = (out_dir / "idx.memmap").stat().st_size // self.index.row_bytes
        write_meta(out_dir, self._all_tensors(source), num_rows)

    def open(self, folder: Path, space: TokenSpace | None) -> Reader:
        """Return the reader of an export."""
        known = needed_space(space, folder)
        return UnidiscReader(dir=str(folder), codes=self.codes, end=False, ours=True, space=known)

    def _batches(self, source: ExportInput, slices: Sequence[Slice]) -> Iterator[TokenBatch]:
        width = sum(tensor.shape[0] for tensor in self.tensors(source).values())
        max_rows = max(1, VALUES_AT_ONCE // width)
        return token_batches(source, slices, max_rows=max_rows, by_sequence=self.by_sequence)

    def _all_tensors(self, source: ExportInput) -> dict[str, Tensor]:
        return {**self.tensors(source), "idx": self.index}

    def _account(self, batch: TokenBatch, kept: NDArray[np.bool_], tally: Tally) -> None:
        """Count the stored sequences; those of a dropped pack go with it."""
        counts, members = np.diff(batch.members), batch.members.tolist()
        tally.num_in += batch.num_sequences
        tally.num_kept += int(counts[kept].sum())
        for row in np.flatnonzero(~kept).tolist():
            for sequence in range(members[row], members[row + 1]):
                tally.skip(batch.sequence_key(sequence), self.explain(batch, row))


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorDictFormat(TensorRowsFormat):
    """Rows of `length` tokens."""

    length: int
    dtype: DtypeName = "smallest"
    modality: bool = True

    def __post_init__(self) -> None:
        self.rule()  # refuses a length that cannot be

    @property
    def keeps(self) -> frozenset[Aspect]:
        """Tokens, and of packs which of them share a document."""
        return frozenset({"tokens", "documents", "packs", "idx"})

    def loses(self, batch: TokenBatch, aspects: frozenset[Aspect]) -> Iterator[tuple[Aspect, int]]:
        """Yield what there is no tensor for, and modality if it is left out."""
        # A plain super() does not work in a dataclass with slots.
        form = TensorRowsFormat if self.modality else Format
        yield from form.loses(self, batch, aspects)

    def rule(self) -> FixedLength:
        """Return what becomes of rows that are shorter or longer."""
        return FixedLength(width=self.length, pad_id=self.pad_id, overlong=self.overlong)

    def tensors(self, source: ExportInput) -> dict[str, Tensor]:
        """Return the tensors by key."""
        packed, shape = source.holds_packs, (self.length,)
        if packed and self.overlong == "cut":
            raise ConfigError("packs are not cut: choose a greater length, or overlong=drop")
        tensors = {
            "input_ids": Tensor(id_dtype(source, self.codes, self.dtype, self.pad_id), shape),
            "attention_mask": Tensor("bool", shape),
            "modality": Tensor("int8", shape),
        }
        return {**tensors, "sample_ids": Tensor("int16", shape)} if packed else tensors

    def kept(self, batch: TokenBatch) -> NDArray[np.bool_]:
        """Return which rows fit, as they are or cut; empty ones are dropped."""
        lengths = batch.lengths
        return self.rule().kept(lengths, batch.num_fixed) & (lengths > 0)

    def check(self, batch: TokenBatch) -> None:
        """Refuse rows of other lengths, if that is the policy, and too many documents."""
        self.rule().check(batch.lengths, batch)
        counts = np.diff(batch.members)
        if (counts > INT16_SIZE).any():
            row = int(np.argmax(counts))
            raise ConfigError(
                f"{batch.shard.path}: the pack of {batch.key(row)!r} has {counts[row]:,} "
                f"documents, sample_ids counts {INT16_SIZE:,}: plan smaller packs"
            )

    def explain(self, batch: TokenBatch, row: int) -> Filtered:
        """Return why a row is not kept."""
        return self.rule().explain(int(batch.lengths[row]))

    def values(self, batch: TokenBatch, kept: NDArray[np.bool_]) -> dict[str, NDArray[Any]]:
        """Return the padded rows."""
        space = batch.shard.space
        stays = kept_tokens(batch.bounds, kept, self.length, batch.fixed_mask)
        ids = batch.ids[stays]
        codes = is_code(ids, space)
        lengths = np.minimum(batch.lengths[kept], self.length)
        mask = np.arange(self.length) < lengths[:, None]
        if self.codes == "raw":
            ids = local_ids(ids, codes, space)
        values = {
            "input_ids": padded(ids, mask, self.pad_id or 0),
            "attention_mask": mask,
            "modality": padded(codes, mask, 0) if self.modality else np.full(mask.shape, -1),
        }
        if batch.packed:
            # The number of each sequence in its pack, for each of its tokens.
            inside = np.arange(batch.num_sequences)
            inside -= np.repeat(batch.members[:-1], np.diff(batch.members))
            numbers = np.repeat(inside.astype(np.int16), batch.sequence_lengths)
            values["sample_ids"] = padded(numbers[stays], mask, -1)
        return values


@dataclass(frozen=True, slots=True, kw_only=True)
class PairsFormat(TensorRowsFormat):
    """Images of `img_length` codes with texts of `txt_length` tokens.

    `overlong` is for texts; one that is cut ends with `end_id`, if that is given, as where a
    tokenizer cuts before it adds the end. `others` is for rows that are no such pair.
    """

    by_sequence: ClassVar[bool] = True

    img_length: int
    txt_length: int
    end_id: int | None = None
    others: Literal["refuse", "drop"] = "refuse"

    def __post_init__(self) -> None:
        if self.img_length < 1:
            raise ConfigError(f"img_length must be at least 1, got {self.img_length}")
        self.rule()  # refuses a length that cannot be

    @property
    def keeps(self) -> frozenset[Aspect]:
        """Words and codes, each in a tensor of its own: where the image stood is not said."""
        return frozenset({"words", "codes", "documents", "idx"})

    def rule(self) -> FixedLength:
        """Return what becomes of texts that are shorter or longer."""
        return FixedLength(width=self.txt_length, pad_id=self.pad_id, overlong=self.overlong)

    def tensors(self, source: ExportInput) -> dict[str, Tensor]:
        """Return the tensors by key."""
        space = source.space()
        size = space.num_codes if self.codes == "raw" else space.code_offset + space.num_codes
        for name, token in (("pad_id", self.pad_id), ("end_id", self.end_id)):
            check_id(source, self.codes, name, token)
        return {
            "img_input_ids": Tensor(smallest_signed(size), (self.img_length,)),
            "txt_input_ids": Tensor("int32", (self.txt_length,)),
            "txt_attention_mask": Tensor("bool", (self.txt_length,)),
        }

    def kept(self, batch: TokenBatch) -> NDArray[np.bool_]:
        """Return which rows are pairs whose text fits, as it is or cut."""
        lengths = batch.lengths - batch.num_fixed
        return self._is_pair(batch) & self.rule().kept(lengths, np.zeros_like(lengths))

    def check(self, batch: TokenBatch) -> None:
        """Refuse what is no pair and texts of other lengths, if that is the policy."""
        is_pair = self._is_pair(batch)
        if self.others == "refuse" and not is_pair.all():
            raise ConfigError(
                f"{batch.shard.path}: {batch.key(int(np.argmin(is_pair)))!r} is not one image of "
                f"{self.img_length} codes and a text: set img_length, or others=drop"
            )
        # A row that is dropped anyway has any length.
        lengths = np.where(is_pair, batch.lengths - batch.num_fixed, self.txt_length)
        self.rule().check(lengths, batch)

    def explain(self, batch: TokenBatch, row: int) -> Filtered:
        """Return why a row is not kept."""
        if self._is_pair(batch)[row]:
            return self.rule().explain(int(batch.lengths[row] - batch.num_fixed[row]))
        return Filtered(NOT_A_PAIR, f"one of {self.img_length} codes is wanted")

    def values(self, batch: TokenBatch, kept: NDArray[np.bool_]) -> dict[str, NDArray[Any]]:
        """Return images, and padded texts: what stands before an image, then what follows it."""
        self._check_inside(batch, kept)
        of_kept = np.repeat(kept, batch.lengths)
        is_text = (batch.fixed_mask() == 0) & of_kept
        # The first tokens of each row's text stay, as many as there is room for.
        rank = np.concatenate([[0], np.cumsum(is_text)])
        first = np.repeat(rank[batch.bounds[:-1]], batch.lengths)
        is_text &= rank[1:] - first <= self.txt_length
        lengths = np.diff(rank[batch.bounds])[kept]
        mask = np.arange(self.txt_length) < lengths[:, None]
        texts = padded(batch.ids[is_text].astype(np.int32), mask, self.pad_id or 0)
        if self.end_id is not None:
            texts[lengths > self.txt_length, -1] = self.end_id
        return {
            "img_input_ids": self._codes(batch, (batch.modality() > 0) & of_kept),
            "txt_input_ids": texts,
            "txt_attention_mask": mask,
        }

    def _is_pair(self, batch: TokenBatch) -> NDArray[np.bool_]:
        """Return which rows are one image of the right size and a text."""
        owners, length = batch.media_owners, batch.media("length")
        is_image = batch.media("kind") == MODALITIES["image"]
        count = np.bincount(owners, np.where(is_image, 1, 2), minlength=len(batch))
        size = np.bincount(owners, weights=length, minlength=len(batch))
        is_pair: NDArray[np.bool_] = (count == 1) & (size == self.img_length)
        return is_pair

    def _check_inside(self, batch: TokenBatch, kept: NDArray[np.bool_]) -> None:
        """Raise `FormatError` if an image reaches out of its row, into the tokens of another."""
        begins, ends = (edge[kept[batch.media_owners]] for edge in batch.media_edges())
        bounds = batch.bounds
        if (begins < bounds[:-1][kept]).any() or (ends > bounds[1:][kept]).any():
            raise FormatError("has an image outside of its row", path=batch.shard.spans.path)

    def _codes(self, batch: TokenBatch, is_image: NDArray[np.bool_]) -> NDArray[Any]:
        """Return the codes of images, raw if the spec says so; all their ids must be codes."""
        ids, space = batch.ids[is_image], batch.shard.space
        codes = is_code(ids, space)
        if not codes.all():
            raise FormatError("has an image with ids that are no codes", path=batch.shard.path)
        chosen = local_ids(ids, codes, space) if self.codes == "raw" else ids
        return chosen.reshape(-1, self.img_length)


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelsFormat(PairsFormat):
    """Images of `img_length` codes, each with the id of its class before them."""

    index: ClassVar[Tensor] = Tensor("int32", ())

    txt_length: int = 1

    def __post_init__(self) -> None:
        PairsFormat.__post_init__(self)
        if self.txt_length != 1 or self.pad_id is not None or self.overlong == "cut":
            raise ConfigError("a label is one id: leave txt_length, pad_id and overlong=cut out")

    def tensors(self, source: ExportInput) -> dict[str, Tensor]:
        """Return the tensors by key."""
        tensors = PairsFormat.tensors(self, source)
        return {"img_input_ids": tensors["img_input_ids"], "img_label": tensors["txt_input_ids"]}

    def values(self, batch: TokenBatch, kept: NDArray[np.bool_]) -> dict[str, NDArray[Any]]:
        """Return images and labels."""
        values = PairsFormat.values(self, batch, kept)
        return {"img_input_ids": values["img_input_ids"], "img_label": values["txt_input_ids"]}


def row_numbers(batch: TokenBatch, first: int) -> NDArray[np.int64]:
    """Return the numbers of rows: counted on from `first`, or those of the data set they are of."""
    numbers = batch.shard.numbers
    if numbers is None:
        return np.arange(first, first + len(batch))
    return numbers[batch.start : batch.stop].astype(np.int64)


def padded(flat: NDArray[Any], mask: NDArray[np.bool_], fill: int) -> NDArray[Any]:
    """Return rows that have the flat values where the mask is True, and `fill` elsewhere."""
    rows = np.full(mask.shape, fill, np.result_type(flat.dtype, np.min_scalar_type(fill)))
    rows[mask] = flat
    return rows


def kept_tokens(
    bounds: NDArray[np.int64],
    kept: NDArray[np.bool_],
    width: int,
    is_fixed: Callable[[], NDArray[np.uint8]],
) -> NDArray[np.bool_] | slice:
    """Return which tokens stay of rows that begin at `bounds`; all of them are one slice.

    Rows that are not kept lose all, longer ones their last tokens that are not fixed: of
    t m m t t with a width of 4 the last t goes, with a width of 3 both.
    """
    lengths = np.diff(bounds)
    surplus = np.where(kept, np.maximum(lengths - width, 0), 0)
    if bool(kept.all()) and not surplus.any():
        return slice(None)
    stays = np.repeat(kept, lengths)
    if surplus.any():
        text = is_fixed() == 0
        rank = np.concatenate([[0], np.cumsum(text)])
        limit = rank[bounds[1:]] - surplus
        stays &= ~text | (rank[1:] <= np.repeat(limit, lengths))
    return stays


def id_dtype(source: ExportInput, form: CodeForm, name: DtypeName, pad_id: int | None) -> str:
    """Return the dtype of ids: the smallest that holds all of them, or the one asked for."""
    size = num_ids(source.space(), form)
    check_id(source, form, "pad_id", pad_id)
    if name == "smallest":
        return smallest_signed(size)
    if name == "int16" and size > INT16_SIZE:
        raise ConfigError(
            f"{source.folder} has {size} ids with {form} codes, int16 holds {INT16_SIZE}: "
            "export with dtype=int32"
        )
    return name


def check_id(source: ExportInput, form: CodeForm, name: str, token: int | None) -> None:
    """Raise `ConfigError` for what is no id; padding may also be the one that losses ignore."""
    size = num_ids(source.space(), form)
    if token is None or (name == "pad_id" and token == IGNORED_ID):
        return
    if not 0 <= token < size:
        raise ConfigError(f"{name} {token} is none of the {size} ids of {source.folder}")


def smallest_signed(size: int) -> str:
    """Return the smallest of int16 and int32 that holds the numbers 0 .. size - 1."""
    return "int16" if size <= INT16_SIZE else "int32"


def num_ids(space: TokenSpace, form: CodeForm) -> int:
    """Return how many different ids there are: with raw codes, text and codes share numbers."""
    if form == "shifted":
        return space.size
    text = max([space.text_size + len(space.added), *(1 + i for i in space.specials.values())])
    return max(text, space.num_codes)


def local_ids(ids: NDArray[Any], codes: NDArray[np.bool_], space: TokenSpace) -> NDArray[Any]:
    """Return the ids with those that are codes counted from 0."""
    if not codes.any():  # then the offset may be more than the dtype of the ids holds
        return ids
    local: NDArray[Any] = ids.copy()
    local[codes] -= space.code_offset
    return local


def file_sizes(tensors: Mapping[str, Tensor], num_rows: int) -> dict[str, int]:
    """Return name -> size of the files of all rows."""
    return {f"{key}.memmap": num_rows * tensor.row_bytes for key, tensor in tensors.items()}


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
