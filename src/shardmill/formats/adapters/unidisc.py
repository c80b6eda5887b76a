"""Reads UniDisc's folders of memory maps, several parts as one data set.

A folder holds `train_0`, `train_1`, ... from ranks that ended and `tmp_train_0`, ... from ranks
that were stopped, each a TensorDict with a column `idx`; or it is one merged TensorDict. A row was
written if its `idx` is not negative and its `write_flag`, if there is one, is set. Of rows with one
id the first is taken, finished parts before temporary ones: none is lost and none is doubled.
Folders that were made in advance and hold nothing yet are no parts.

    interleaved    input_ids, attention_mask, modality [N, L]: text ids and raw codes, padded;
                   the last two may be bits, uint8 [N, L / 8], the first token highest
    Chameleon      the same with ids of its vocabulary, of which modality says nothing: it is -1
    one modality   input_ids [N, L], modality [N, 1]
    packs          sample_ids [N, L] besides: the number of each token's document in its pack
    pairs          txt_input_ids, txt_attention_mask [N, T]; without a mask, ids below 0 are padding
                   img_input_ids [N, I]: the codes of one image
    labels         img_label [N, 1] or [N] and img_input_ids: a class and an image

Codes move behind the text ids of the space, padding goes, everything else is learned, as UniDisc
does. A pair becomes its text without end, the image's marker, the codes and the end; a class is one
id before the codes. The row of an origin is `idx`, so that an export has it again.

A TensorDict is read without torch: one raw file a tensor, sizes in JSON.

    NAME.memmap   the tensor, little-endian, C order, nothing before or after it
    meta.json     {NAME: {"device", "shape": [N, L], "dtype": "torch.int16", "is_nested"}, ...,
                   "shape": [N], "device": "cpu", "_type": "<class 'tensordict._td.TensorDict'>"}

A tensor without rows has no file. A file that is shorter than its shape says was cut off while it
was written, a longer one was written for another shape: a `FormatError`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import xxhash
from numpy.typing import NDArray

from shardmill.errors import ConfigError, FormatError
from shardmill.formats.format import (
    Aspect,
    Block,
    Part,
    Record,
    guarded,
    is_code,
    stamp,
    with_codes,
)
from shardmill.model.codec import PlaceName
from shardmill.model.sample import Origin
from shardmill.model.space import TokenSpace
from shardmill.model.tokenrow import MEDIA_COLUMNS, MODALITIES, MediaColumns
from shardmill.shards.arrays import NumberedKeys
from shardmill.shards.tokens.ids import map_bytes
from shardmill.storage.text import read_json

Table: TypeAlias = dict[str, NDArray[Any]]
CodeForm: TypeAlias = Literal["raw", "shifted"]
# Llama-2 with one id more, LlamaGen's codebook, and `<image>` on the id that UniDisc gives it.
UNIDISC_SPACE = TokenSpace(text_size=32001, specials={"eos": 2, "image": 811}, num_codes=16384)
# Chameleon's vocabulary: codes among the text, and the tokens that UniDisc puts around an image.
CHAMELEON_FIELDS = (
    'text_size=65536,num_codes=8192,codes_at=4,specials={"boi":8197,"eoi":8196,"row_end":8803}'
)
IMAGE = MODALITIES["image"]
NAMES = ("codes",)
TOKENS_AT_ONCE = 1 << 20  # a block: some MiB of ids, masks and kinds
Ids = Literal["global", "local"]
Convert: TypeAlias = "Callable[[UnidiscPart, NDArray[np.int64]], FlatRows]"
TEMPORARY = "tmp_"
PART = re.compile(rf"({TEMPORARY})?(?:split_(\d+)_)?(train|val)(?:_(.+))?")
ROWS_AT_ONCE = 256
TOKEN_NAMES = ("input_ids", "img_input_ids", "txt_input_ids")
MARK_NAMES = ("img_label", "attention_mask", "txt_attention_mask", "modality", "sample_ids")
MARK_BITS = 8  # of a uint8
META_NAME = "meta.json"
META_BYTES = 1 << 16
SUFFIX = ".memmap"
DTYPES = {
    "torch.bool": "|b1",
    "torch.uint8": "|u1",
    "torch.int8": "|i1",
    "torch.int16": "<i2",
    "torch.uint16": "<u2",
    "torch.int32": "<i4",
    "torch.int64": "<i8",
}


@dataclass(frozen=True, kw_only=True)
class UnidiscReader:
    """A folder of parts or one TensorDict; `ids` as in `choose_rows`.

    `codes` says whether images hold codes that count from 0, or ids of the space. With `end` a
    pair ends with the end token, whether its text did or not, as UniDisc trains it. `ours` says
    that shardmill wrote it, whose rows have keys elsewhere; otherwise a key is made of `idx`.
    """

    dir: PlaceName
    split: str = "train"
    ids: Ids | None = None
    skip_broken: bool = False
    codes: CodeForm = "raw"
    end: bool = True
    ours: bool = False
    space: TokenSpace = UNIDISC_SPACE

    @staticmethod
    def recognizes(path: Path) -> bool:
        """Say whether a folder is a TensorDict, or holds parts that are."""
        return path.is_dir() and (
            is_memmap_folder(path)
            or any(PART.fullmatch(p.name) and is_memmap_folder(p) for p in path.iterdir())
        )

    def holds(self) -> frozenset[Aspect]:
        """Return tokens and codes; documents if packs tell them; of pairs no order of the two."""
        columns = self._parts[0].table
        known: set[Aspect] = {"words", "codes", "idx"}
        known |= {"tokens", "modality"} if "input_ids" in columns else set()
        known |= {"documents", "packs"} if "sample_ids" in columns else set()
        known |= set() if self.ours else {"keys"}
        return frozenset(known)

    def token_space(self) -> TokenSpace:
        """Return the space that was given."""
        return self.space

    def as_stored(self) -> UnidiscReader:
        """Return the reader that adds no end to a pair."""
        return replace(self, end=False)

    @guarded
    def parts(self) -> Iterator[Part]:
        """Yield a part for each part, named with the rows that are taken from it."""
        num_left = len(
            {*part_folders(Path(self.dir), self.split)} - {p.folder for p in self._parts}
        )
        for chosen in choose_rows(self._parts, self.ids, self.convert):
            is_first = chosen.part is self._parts[0]
            yield Part(
                input={
                    "raw": [str(path) for path in _files(chosen.part.folder)],
                    "part": chosen.part.name,
                    "sizes": _sizes(chosen.part.folder),
                    "rows": xxhash.xxh3_64_hexdigest(chosen.rows.tobytes()),
                },
                num_records=len(chosen.rows),
                passed={
                    "rows never written": chosen.num_unwritten,
                    "ids of an earlier part": chosen.num_repeated,
                    "folders that are no parts": num_left * is_first,
                },
            )

    @guarded
    def read(self, input: Mapping[str, Any]) -> Iterator[Record]:
        """Yield the rows of a part that no part before it has."""
        for block in self.read_blocks(input):
            for record in block.records():
                yield with_codes(record, self.space)

    @guarded
    def read_blocks(self, input: Mapping[str, Any]) -> Iterator[Block]:
        """Yield the same rows, many at a time."""
        chosen = self._listed(input)
        step = max(1, TOKENS_AT_ONCE // max(1, _width(chosen.part)))
        for start in range(0, len(chosen.rows), step):
            some = slice(start, start + step)
            yield self._block(chosen, some, self.convert(chosen.part, chosen.rows[some]))

    def ids_file(self, input: Mapping[str, Any]) -> Path | None:
        """Return the file of ids if all its rows are taken as they are."""
        chosen = self._listed(input)
        is_all = chosen.num_unwritten + chosen.num_repeated == 0
        if not is_all or not is_verbatim(chosen.part.table, self.space, self.codes):
            return None
        return chosen.part.folder / f"input_ids{SUFFIX}"

    def inputs(self) -> Mapping[str, Any]:
        """Return size and time of each part's files."""
        return {str(path): stamp(path) for part in self._parts for path in _files(part.folder)}

    @cached_property
    def _parts(self) -> list[UnidiscPart]:
        return find_parts(Path(self.dir), self.split, skip_broken=self.skip_broken)

    @cached_property
    def _chosen(self) -> dict[str, PartRows]:
        # Whether repeats are equal was looked at when the parts were listed.
        chosen = choose_rows(self._parts, self.ids or "global", self.convert)
        return {rows.part.name: rows for rows in chosen}

    def _listed(self, input: Mapping[str, Any]) -> PartRows:
        """Return the rows of a part, which is what it was when it was listed."""
        chosen = self._chosen[input["part"]]
        digest = xxhash.xxh3_64_hexdigest(chosen.rows.tobytes())
        if digest != input["rows"] or _sizes(chosen.part.folder) != input["sizes"]:
            raise FormatError("was changed after it was listed", path=chosen.part.folder)
        return chosen

    def convert(self, part: UnidiscPart, numbers: NDArray[np.int64]) -> FlatRows:
        """Return some rows of a part as ids of the space, without padding."""
        table = part.table
        if "input_ids" in table and "modality" in table:
            return interleaved_rows(table, numbers, self.space, self.codes)
        if {"txt_input_ids", "img_input_ids"} <= table.keys():
            return paired_rows(table, numbers, self.space, self.codes, end=self.end)
        if {"img_label", "img_input_ids"} <= table.keys():
            labels = _as_column(table["img_label"])
            mask = np.ones(labels.shape, np.bool_)
            pairs = {**table, "txt_input_ids": labels, "txt_attention_mask": mask}
            return paired_rows(pairs, numbers, self.space, self.codes, end=False, marked=False)
        known = ", ".join(sorted(table))
        raise FormatError(
            f"holds {known}, which is no layout of UniDisc's tokens", path=part.folder
        )

    def _block(self, chosen: PartRows, some: slice, flat: FlatRows) -> Block:
        name, numbers = chosen.part.name, chosen.rows[some]
        keys = NumberedKeys(f"{self.split}-", 8, chosen.ids[some])
        if self.ids == "local":
            keys = NumberedKeys(f"{name}-", 8, numbers)
        return Block(
            ids=flat.ids,
            lengths=flat.lengths,
            per_record=flat.per_row,
            media=flat.media,
            keys=keys,
            origin=Origin(source=Path(self.dir).name, path=name, row=0),
            rows=chosen.ids[some],
        )


@dataclass(frozen=True, slots=True, eq=False)
class FlatRows:
    """Documents after each other: `per_row` says how many each row is made of."""

    ids: NDArray[Any]
    lengths: NDArray[np.int64]
    per_row: NDArray[np.int64]
    media: MediaColumns

    def rows(self) -> Iterator[tuple[NDArray[np.int64], NDArray[Any]]]:
        """Yield the lengths of each row's documents, and its ids."""
        bounds = np.concatenate([[0], np.cumsum(self.per_row)])
        places = np.concatenate([[0], np.cumsum(self.lengths)])[bounds]
        for documents, tokens in zip(pairwise(bounds.tolist()), pairwise(places.tolist())):
            yield self.lengths[slice(*documents)], self.ids[slice(*tokens)]


def interleaved_rows(
    table: Table, numbers: NDArray[np.int64], space: TokenSpace, codes: CodeForm
) -> FlatRows:
    """Return rows of text and images without their padding."""
    _check_shapes(table)
    given = _rows_of(table["input_ids"], numbers)
    is_kept = np.ones(given.shape, np.bool_)
    if "attention_mask" in table:
        is_kept = _marks_of(table, "attention_mask", numbers) != 0
    lengths = is_kept.sum(axis=1, dtype=np.int64)
    starts, total = np.cumsum(lengths) - lengths, int(lengths.sum())
    kinds = _marks_of(table, "modality", numbers)
    kinds = kinds[is_kept] if kinds.shape == given.shape else np.repeat(kinds[:, 0], lengths)
    is_image, codes = _find_kinds(kinds, given[is_kept], space, codes)
    ids = _space_ids(given[is_kept], is_image, space, codes)
    per_row = np.ones_like(lengths)
    if "sample_ids" in table:
        samples = _rows_of(table["sample_ids"], numbers)[is_kept]
        changes = np.flatnonzero(samples[1:] != samples[:-1]) + 1
        documents = np.union1d(starts[lengths > 0], changes)
        per_row = np.diff(np.searchsorted(documents, np.append(starts, total)))
        starts = documents
        lengths = np.append(starts[1:], total) - starts
    return FlatRows(ids, lengths, per_row, _find_images(ids, is_image, starts, lengths, space))


def paired_rows(
    table: Table,
    numbers: NDArray[np.int64],
    space: TokenSpace,
    codes: CodeForm,
    *,
    end: bool,
    marked: bool = True,
) -> FlatRows:
    """Return pairs as text, marker if `marked`, and codes, with `end` each with one end token."""
    marker = space.names.get("image") if marked else None
    last = space.special("eos") if end else None
    text = _rows_of(table["txt_input_ids"], numbers)
    mask = _rows_of(table["txt_attention_mask"], numbers) if "txt_attention_mask" in table else None
    is_word = text >= 0 if mask is None else mask != 0
    if last is not None and text.size:
        is_word = _without_end(text, is_word, last)
    words = text[is_word]
    _check(words, space.size, "id", "among its tokens")
    if codes == "raw":
        _check_text(words, False, space)
    images = _rows_of(table["img_input_ids"], numbers)
    image_ids = _space_ids(images.reshape(-1), np.ones(images.size, np.bool_), space, codes)
    # Marker, codes and end are the last columns of a matrix, from which padding is left out.
    wide = np.zeros((len(text), text.shape[1] + images.shape[1] + 2), space.dtype)
    is_kept = np.ones(wide.shape, np.bool_)
    is_kept[:, : text.shape[1]] = is_word
    wide[:, : text.shape[1]][is_word] = words
    wide[:, text.shape[1] + 1 : -1] = image_ids.reshape(images.shape)
    for column, token in ((text.shape[1], marker), (-1, last)):
        wide[:, column], is_kept[:, column] = token or 0, token is not None
    lengths, ones = is_kept.sum(axis=1, dtype=np.int64), np.ones(len(text), np.int64)
    before = ones * (marker is not None)
    position = is_word.sum(axis=1, dtype=np.int64) + before
    media = _media_columns(ones, position, ones * images.shape[1], before, 0 * ones, 0 * ones)
    return FlatRows(wide[is_kept], lengths, ones, media)


def is_verbatim(table: Table, space: TokenSpace, codes: CodeForm) -> bool:
    """Say whether the file of ids is what they become: no padding, and nothing to shift."""
    if "input_ids" not in table or "modality" not in table:
        return False
    ids = table["input_ids"]
    if not ids.size or ids.itemsize != space.dtype.itemsize:
        return False
    is_shifted = codes == "shifted" or space.code_offset == 0
    for start in range(0, len(ids), ROWS_AT_ONCE):
        some = np.arange(start, min(start + ROWS_AT_ONCE, len(ids)))
        if "attention_mask" in table and not _marks_of(table, "attention_mask", some).all():
            return False
        if not is_shifted and (_marks_of(table, "modality", some) == IMAGE).any():
            return False
    return True


def _rows_of(column: NDArray[Any], numbers: NDArray[np.int64]) -> NDArray[Any]:
    """Return some rows of a mapped tensor; neighbours are not copied."""
    if len(numbers) and bool((np.diff(numbers) == 1).all()):
        return column[int(numbers[0]) : int(numbers[-1]) + 1]
    return column[numbers]


def _marks_of(table: Table, name: str, numbers: NDArray[np.int64]) -> NDArray[Any]:
    """Return some rows of a column that has a value, or a bit, for each token."""
    marks = _rows_of(table[name], numbers)
    return np.unpackbits(marks, axis=1) if _is_bits(table, name) else marks


def _is_bits(table: Table, name: str) -> bool:
    (count, width), column = table["input_ids"].shape, table[name]
    return column.dtype == np.uint8 and column.shape == (count, width / MARK_BITS)


def _check_shapes(table: Table) -> None:
    """Raise `FormatError` unless columns have a value a token; only modality may have one a row."""
    shape = table["input_ids"].shape
    for name in ("attention_mask", "modality", "sample_ids"):
        found = table[name].shape if name in table else shape
        is_other = name in table and (
            (name == "modality" and found == (shape[0], 1))
            or (name != "sample_ids" and _is_bits(table, name))
        )
        if found != shape and not is_other:
            raise FormatError(f"has the shape {found}, input_ids has {shape}", path=name)


def _find_kinds(
    kinds: NDArray[Any], ids: NDArray[Any], space: TokenSpace, codes: CodeForm
) -> tuple[NDArray[np.bool_], CodeForm]:
    """Return which tokens are of images, and the form of their codes.

    Where modality says nothing of any token, the ids are those of the space.
    """
    is_unsaid = kinds < 0
    if not is_unsaid.any():
        return kinds == IMAGE, codes
    if space == UNIDISC_SPACE or not is_unsaid.all():
        raise FormatError(
            "does not say which tokens are images (it is -1), as runs with use_chameleon leave it: "
            f"give the space of Chameleon's ids, --space '{CHAMELEON_FIELDS}'",
            path="modality",
        )
    return is_code(ids, space), "shifted"


def _space_ids(
    ids: NDArray[Any], is_image: NDArray[np.bool_], space: TokenSpace, codes: CodeForm
) -> NDArray[Any]:
    """Return ids of the space; an id or a code that it does not have is a `FormatError`."""
    _check(ids, space.size, "id", "among its tokens")
    found = ids.astype(space.dtype)
    if codes == "raw":
        _check_text(ids, is_image, space)
        if is_image.any():
            _check(ids[is_image], space.num_codes, "code", "in an image")
            found += is_image * found.dtype.type(space.code_offset)
    return found


def _check_text(ids: NDArray[Any], is_image: NDArray[np.bool_] | bool, space: TokenSpace) -> None:
    is_wrong = is_code(ids, space) & ~np.asarray(is_image)
    if is_wrong.any():
        raise FormatError(
            f"holds the id {int(ids[np.argmax(is_wrong)])} in its text, where the token space has "
            "image codes: give the space of its tokenizer, --space text_size=N,num_codes=N",
            path="input_ids",
        )


def _check(values: NDArray[Any], size: int, what: str, where: str) -> None:
    if not len(values) or (int(values.min()) >= 0 and int(values.max()) < size):
        return
    value = int(values[(values < 0) | (values >= size)][0])
    problem = f"holds the {what} {value} {where}, the token space has {size}"
    raise FormatError(problem, path="input_ids")


def _find_images(
    ids: NDArray[Any],
    is_image: NDArray[np.bool_],
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    space: TokenSpace,
) -> MediaColumns:
    """Return the runs of codes as media of the documents that begin at `starts`.

    Where the space has a token `row_end`, those behind codes belong to the image.
    """
    names = space.names
    is_row_end = np.zeros(len(ids), np.bool_)
    if "row_end" in names:
        is_row_end[1:] = (ids[1:] == names["row_end"]) & is_image[:-1]
        is_image = is_image | is_row_end
    # A run ends where codes end, and where a document does.
    # With codes at 1 1 1 0 1 and documents that begin at 0 and 2: runs 0 .. 1, 2 .. 2 and 4 .. 4.
    is_start = np.zeros(len(ids) + 1, np.bool_)
    is_start[starts[lengths > 0]] = is_start[-1] = True
    begins, ends = is_image.copy(), is_image.copy()
    begins[1:] &= ~is_image[:-1] | is_start[1:-1]
    ends[:-1] &= ~is_image[1:] | is_start[1:-1]
    first, last = np.flatnonzero(begins), np.flatnonzero(ends)
    owner = np.searchsorted(starts, first, side="right") - 1
    position = first - starts[owner]

    def stands(name: str, offset: int) -> NDArray[np.bool_]:
        """Say of each run whether the token of a name is so far before it, in its document."""
        found: NDArray[np.bool_] = ids[np.maximum(first - offset, 0)] == names.get(name, -1)
        return found & (position >= offset)

    # Where rows have ends, two tokens between the beginning and the codes say height and width.
    has_sizes = stands("boi", 3) & ("row_end" in names)
    before = np.where(stands("image", 1) | stands("boi", 1), 1, 3 * has_sizes)
    is_inside = last + 1 < starts[owner] + lengths[owner]
    after = is_inside & (ids[np.minimum(last + 1, len(ids) - 1)] == names.get("eoi", -1))
    counts = np.bincount(owner, minlength=len(starts)).astype(np.int64)
    num_rows = np.concatenate([[0], np.cumsum(is_row_end)])
    height = num_rows[last + 1] - num_rows[first]
    return _media_columns(counts, position, last - first + 1, before, after, height)


def _media_columns(
    counts: NDArray[np.int64],
    position: NDArray[np.int64],
    length: NDArray[np.int64],
    before: NDArray[Any],
    after: NDArray[Any],
    height: NDArray[np.int64],
) -> MediaColumns:
    """Return images as media: `counts` of them in each row, with `height` ends of rows in each.

    Without any, an image is square if it can be.
    """
    side = np.floor(np.sqrt(length) + 0.5).astype(np.int64)
    is_square = side * side == length
    ones = np.ones_like(length)
    rows = np.where(is_square, side, 1)
    width = np.where(is_square, side, length)
    has_rows = (height > 0) & (length % np.maximum(height, 1) == 0)
    rows = np.where(has_rows, height, rows)
    width = np.where(has_rows, length // np.maximum(height, 1) - 1, width)
    columns = dict.fromkeys(MEDIA_COLUMNS, np.zeros_like(length))
    columns |= {"position": position, "length": length, "kind": IMAGE * ones}
    columns |= {"before": before.astype(np.int64), "after": after.astype(np.int64)}
    return MediaColumns(counts, columns, np.stack([ones, rows, width], axis=1), NAMES)


def _without_end(text: NDArray[Any], is_word: NDArray[Any], last: int) -> NDArray[np.bool_]:
    """Return the mask of the words without the end token, of rows that end with one."""
    rows = np.arange(len(text))
    final = text.shape[1] - 1 - np.argmax(is_word[:, ::-1], axis=1)
    shorter: NDArray[np.bool_] = is_word.copy()
    shorter[rows, final] &= text[rows, final] != last
    return shorter


def _width(part: UnidiscPart) -> int:
    """Return how many tokens a row has at most."""
    columns = {name: part.table[name] for name in TOKEN_NAMES if name in part.table}
    for name, column in columns.items():
        if column.ndim != 2:
            raise FormatError(f"has a tensor {name!r} of shape {column.shape}", path=part.folder)
    return sum(column.shape[1] for column in columns.values())


def _files(part: Path) -> list[Path]:
    return sorted([part / META_NAME, *part.glob(f"*{SUFFIX}")])


def _sizes(part: Path) -> Any:
    return [[path.name, stamp(path)[0]] for path in _files(part)]


@dataclass(frozen=True, slots=True, eq=False)
class UnidiscPart:
    """The folder of a part and its columns, mapped."""

    folder: Path
    table: dict[str, NDArray[Any]]

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.folder.name

    @property
    def is_temporary(self) -> bool:
        """Whether its rank had not ended when it was written."""
        return self.name.startswith(TEMPORARY)


@dataclass(frozen=True, slots=True, eq=False)
class PartRows:
    """A part, the rows that are taken from it in order, and how many are not and why."""

    part: UnidiscPart
    rows: NDArray[np.int64]
    ids: NDArray[np.int64]
    num_unwritten: int
    num_repeated: int


def part_folders(root: Path, split: str) -> list[Path]:
    """Return the folders of a split in order: finished ones by number, then the temporary ones."""
    found = sorted((key, path) for path in root.iterdir() if (key := _sort_key(path, split)))
    return [path for _, path in found]


def find_parts(root: Path, split: str, *, skip_broken: bool) -> list[UnidiscPart]:
    """Return the parts of a split in order; a folder that holds nothing is none.

    What is left of a temporary part whose rank has ended is none either. Another broken part is an
    error; with `skip_broken` a temporary one is left out and stands in for a finished one.
    """
    folders = part_folders(root, split)
    if is_memmap_folder(root) and (split == "train" or not folders):
        return [UnidiscPart(root, open_memmaps(root))]
    opened: dict[str, UnidiscPart] = {}
    broken: dict[str, FormatError] = {}
    for folder in folders:
        if any(folder.iterdir()):
            try:
                opened[folder.name] = UnidiscPart(folder, open_memmaps(folder))
            except FormatError as error:
                broken[folder.name] = error
    for name, problem in broken.items():
        is_temporary = name.startswith(TEMPORARY)
        ended = opened.get(name.removeprefix(TEMPORARY)) if is_temporary else None
        if ended is not None and len(ended.table.get("idx", ())):
            continue
        if not is_temporary and TEMPORARY + name not in opened:
            raise problem
        if not skip_broken:
            what = "leaves it out" if is_temporary else f"takes {TEMPORARY}{name} in its place"
            hint = f"; --from unidisc,skip_broken=true {what}"
            raise FormatError(problem.problem + hint, path=problem.path) from problem
    if not opened:
        raise ConfigError(f"{root} holds no parts of split {split!r}, such as {split}_0")
    return [*opened.values()]


def choose_rows(
    parts: Sequence[UnidiscPart], ids: Ids | None, convert: Convert
) -> Iterator[PartRows]:
    """Yield what is taken from each part; holds 9 bytes a row of all parts.

    With `ids` None rows of one id must hold the same tokens once they are converted, whatever their
    dtype and padding, because nothing else tells whether the parts count their samples together or
    each from 0.
    """
    columns = [_id_column(part) for part in parts]
    taken = _all_of_ranks(parts, columns) if ids == "local" else _first_of_each(columns)
    if ids is None:
        _check_repeats(parts, columns, taken, convert)
    for part, column, rows in zip(parts, columns, taken):
        num_written = int((column >= 0).sum())
        yield PartRows(part, rows, column[rows], len(column) - num_written, num_written - len(rows))


def _sort_key(path: Path, split: str) -> tuple[bool, int, str] | None:
    found = PART.fullmatch(path.name)
    if found is None or found[3] != split or not path.is_dir():
        return None
    number = found[4] or found[2] or ""
    return bool(found[1]), int(number) if number.isdecimal() else -1, number


def _id_column(part: UnidiscPart) -> NDArray[np.int64]:
    """Return the id of each row, -1 where none was written."""
    table = part.table
    if "idx" not in table:
        raise FormatError("has no column 'idx': it was not written by UniDisc", path=part.folder)
    ids = _as_column(table["idx"])[:, 0].astype(np.int64)
    if "write_flag" in table:
        ids = np.where(_as_column(table["write_flag"])[:, 0], ids, -1)
    return np.maximum(ids, -1)


def _as_column(values: NDArray[Any]) -> NDArray[Any]:
    """Return [N] as [N, 1], as some runs and combining store what others store as [N, 1]."""
    return values[:, None] if values.ndim == 1 else values


def _all_of_ranks(
    parts: Sequence[UnidiscPart], columns: Sequence[NDArray[np.int64]]
) -> list[NDArray[np.int64]]:
    """Return the written rows of each part; none of a temporary one whose rank has ended."""
    rows = [np.flatnonzero(column >= 0) for column in columns]
    ended = {part.name for part, some in zip(parts, rows) if len(some)}
    merged = [part for part in parts if part.name in ("train", "val")]
    if merged and len(ended) > 1:
        raise ConfigError(
            f"{merged[0].folder} is what combine_token_dicts made of the parts beside it, and ids "
            f"that each part counts from 0 do not tell which: give {merged[0].folder} alone, or "
            "move it away"
        )
    return [
        some[:0] if part.is_temporary and part.name.removeprefix(TEMPORARY) in ended else some
        for part, some in zip(parts, rows)
    ]


def _first_of_each(columns: Sequence[NDArray[np.int64]]) -> list[NDArray[np.int64]]:
    """Return, for each part, the rows whose id no earlier row of any part has."""
    # Ids 4 5 -1 and 5 6: joined 4 5 -1 5 6, first places of 4 5 6 are 0 1 4, so part 0 gives its
    # rows 0 and 1, part 1 its row 1.
    joined = np.concatenate(columns)
    ids, first = np.unique(joined, return_index=True)
    is_taken = np.zeros(len(joined), np.bool_)
    is_taken[first[ids >= 0]] = True
    bounds = np.cumsum([len(column) for column in columns])[:-1]
    return [np.flatnonzero(part) for part in np.split(is_taken, bounds)]


def _check_repeats(
    parts: Sequence[UnidiscPart],
    columns: Sequence[NDArray[np.int64]],
    taken: Sequence[NDArray[np.int64]],
    convert: Convert,
) -> None:
    """Raise `ConfigError` unless every row that is left out repeats the one that is taken."""
    owner_ids = np.concatenate([column[rows] for column, rows in zip(columns, taken)])
    owner_part = np.repeat(np.arange(len(parts)), [len(rows) for rows in taken])
    owner_row = np.concatenate(taken)
    order = np.argsort(owner_ids, kind="stable")
    for number, (column, rows) in enumerate(zip(columns, taken)):
        is_left = column >= 0
        is_left[rows] = False
        left = np.flatnonzero(is_left)
        at = order[np.searchsorted(owner_ids, column[left], sorter=order)]
        for mine, other, theirs in _runs(left, owner_part[at], owner_row[at]):
            if _is_equal(parts[number].table, mine, parts[other].table, theirs):
                continue
            numbers = (np.arange(some.start, some.stop) for some in (mine, theirs))
            differs = _differing_row(*map(convert, (parts[number], parts[other]), numbers))
            if differs is not None:
                raise _conflict(int(column[mine][differs]), parts[other], parts[number])


def _runs(
    rows: NDArray[np.int64], parts: NDArray[np.int64], others: NDArray[np.int64]
) -> Iterator[tuple[slice, int, slice]]:
    """Yield (my rows, other part, its rows) for runs that go on by one in both, as slices."""
    breaks = (np.diff(rows) != 1) | (np.diff(parts) != 0) | (np.diff(others) != 1)
    cuts = [0, *(np.flatnonzero(breaks) + 1).tolist(), len(rows)]
    for first, end in pairwise(cuts):
        for start in range(first, end, ROWS_AT_ONCE):
            count = min(ROWS_AT_ONCE, end - start)
            mine, theirs = int(rows[start]), int(others[start])
            yield slice(mine, mine + count), int(parts[start]), slice(theirs, theirs + count)


def _is_equal(a: Table, mine: slice, b: Table, theirs: slice) -> bool:
    """Say whether all that decides about tokens is the same, byte for byte."""
    names = [name for name in (*TOKEN_NAMES, *MARK_NAMES) if name in a or name in b]
    if any(name not in a or name not in b or a[name].dtype != b[name].dtype for name in names):
        return False
    pairs = ((a[name][mine], b[name][theirs]) for name in names)
    return all(x.shape == y.shape and np.array_equal(_words(x), _words(y)) for x, y in pairs)


def _differing_row(a: FlatRows, b: FlatRows) -> int | None:
    """Return the first row whose documents are not the same, None if there is none."""
    for number, (row, other) in enumerate(zip(a.rows(), b.rows())):
        if not all(map(np.array_equal, row, other)):
            return number
    return None


def _words(rows: NDArray[Any]) -> NDArray[Any]:
    """Return the rows as numbers of eight bytes, which are compared faster, if they can be cut."""
    return rows if rows.nbytes % 8 or not rows.size else rows.reshape(-1).view(np.uint64)


def _conflict(id_: int, first: UnidiscPart, second: UnidiscPart) -> ConfigError:
    return ConfigError(
        f"id {id_} has other tokens in {second.name} than in {first.name}: choose "
        "--from unidisc,ids=global if it is one sample that was tokenized twice (the first is "
        "kept), or --from unidisc,ids=local if each part counts its own samples from 0 (all are)"
    )


def is_memmap_folder(folder: Path) -> bool:
    """Say whether a folder holds at least the description of memory maps."""
    meta_path = folder / META_NAME
    if not meta_path.is_file() or any(folder.glob(f"*{SUFFIX}")):
        return meta_path.is_file()
    with meta_path.open("rb") as file:  # tensors without rows have no files
        return b"tensordict" in file.read(META_BYTES)


def open_memmaps(folder: Path) -> dict[str, NDArray[Any]]:
    """Return the tensors of a folder by name, mapped read-only; all have equally many rows."""
    meta_path = folder / META_NAME
    try:
        meta = read_json(meta_path)
    except FileNotFoundError as error:
        raise FormatError(
            "is missing: the folder was not written to its end", path=meta_path
        ) from (error)
    entries = meta.items() if isinstance(meta, dict) else ()
    tensors = {
        name: _open_tensor(folder, name, entry)
        for name, entry in entries
        if isinstance(entry, dict) and "dtype" in entry
    }
    if not tensors:
        raise FormatError("describes no tensors", path=meta_path)
    num_rows = {len(tensor) for tensor in tensors.values()}
    if len(num_rows) > 1:
        raise FormatError(f"has tensors of {sorted(num_rows)} rows", path=meta_path)
    return tensors


def _open_tensor(folder: Path, name: str, entry: dict[str, Any]) -> NDArray[Any]:
    meta_path, path = folder / META_NAME, folder / f"{name}{SUFFIX}"
    dtype, shape = DTYPES.get(str(entry["dtype"])), entry.get("shape")
    if dtype is None or "/" in name or name.startswith("."):
        raise FormatError(f"has a tensor {name!r} of type {entry['dtype']}", path=meta_path)
    if (
        not isinstance(shape, list)
        or not 1 <= len(shape) <= 8
        or not all(type(n) is int and n >= 0 for n in shape)
    ):
        raise FormatError(f"has a tensor {name!r} of shape {shape!r:.100}", path=meta_path)
    wanted = prod(shape) * np.dtype(dtype).itemsize
    if wanted == 0:
        return np.empty(shape, dtype)
    if not path.is_file():
        raise FormatError("is missing: the folder was not written to its end", path=path)
    raw = map_bytes(path)
    if len(raw) != wanted:
        why = "was cut off" if len(raw) < wanted else "is too long, and was made for another shape"
        raise FormatError(
            f"has {len(raw)} bytes, its shape {shape} says {wanted}: it {why}", path=path
        )
    return np.frombuffer(raw, dtype).reshape(shape)
