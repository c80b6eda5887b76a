"""Reads UniDisc's memory maps, several parts as one data set (see unidisc_parts.py).

Codes move behind the text ids of the space, padding goes, everything else is learned, as UniDisc
does. A pair becomes its text without end, the image's marker, the codes and the end.

Padded rows without their padding: the ids of many rows copied, those of images shifted.

A row is named by the place of its first value in a flat array, which may be a whole mapped file, so
that rows are copied once, from where they lie to where they are written from. The three loops are
compiled where there is a compiler; numpy does the same elsewhere, and says what is wrong where the
compiled loop only sees that something is.

UniDisc's padded rows as flat documents of a token space, many rows at a time.

    interleaved    input_ids, attention_mask, modality [N, L]: text ids and raw codes, padded
    one modality   input_ids [N, L], modality [N, 1]
    packs          sample_ids [N, L] besides: the number of each token's document in its pack

A row is copied once, without its padding and with its codes shifted (paddedrows.py); everything
else is arithmetic on the places where documents and images begin.

UniDisc's pairs as flat documents of a token space: text without end, marker, codes, end.

txt_input_ids, txt_attention_mask [N, T]    padded text; without a mask, ids below 0 are padding
img_input_ids [N, I]                        the codes of one image, raw or shifted
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import xxhash
from numpy.typing import NDArray

from shardmill.errors import FormatError
from shardmill.formats.reader import Aspect, Block, Part, Record, stamp, with_codes
from shardmill.formats.unidisc.parts import (
    META_NAME,
    SUFFIX,
    TOKEN_NAMES,
    Ids,
    PartRows,
    UnidiscPart,
    choose_rows,
    find_parts,
)
from shardmill.model.sample import Origin
from shardmill.model.space import TokenSpace
from shardmill.model.tokenrow import MODALITIES
from shardmill.shards.columns import NumberedKeys
from shardmill.shards.tokens.shard import MEDIA_COLUMNS
from shardmill.shards.tokens.write import MediaColumns

try:
    from shardmill.formats.unidisc import _paddedrows  # type: ignore[attr-defined, unused-ignore]
except ImportError:  # no compiler was there at the installation
    _paddedrows = None

RUNS_A_ROW = 4


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Where rows begin in a flat array, and how many values each has."""

    first: NDArray[np.int64]
    lengths: NDArray[np.int64]

    @property
    def starts(self) -> NDArray[np.int64]:
        """Where the rows begin once they are joined."""
        return np.cumsum(self.lengths) - self.lengths

    def join(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the values of all rows after each other."""
        ends = (self.first + self.lengths).tolist()
        rows = [values[a:b] for a, b in zip(self.first.tolist(), ends)]
        return np.concatenate([values[:0], *rows])


@dataclass(frozen=True, slots=True, kw_only=True)
class IdRule:
    """Which ids a row may have: those outside of runs below `size`, those in runs below `run_size`.

    The latter become ids of the space when `shift` is added.
    """

    size: int
    run_size: int
    shift: int

    @classmethod
    def of(cls, space: TokenSpace, *, is_shifted: bool) -> IdRule:
        """Return the rule of a space, for images of shifted ids or of codes that count from 0."""
        if is_shifted:
            return cls(size=space.size, run_size=space.size, shift=0)
        return cls(size=space.size, run_size=space.num_codes, shift=space.code_offset)


def prefix_lengths(mask: NDArray[Any], numbers: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """Return how many values of these rows are set if those are their first; None if not."""
    if _paddedrows is None or mask.itemsize > 1:
        return plain_lengths(mask, numbers)
    lengths, width = np.empty(len(numbers), np.int64), mask.shape[1]
    first = numbers * width
    good = _paddedrows.prefix_lengths(mask.reshape(-1), first, width, lengths)
    return lengths if good else None


def plain_lengths(mask: NDArray[Any], numbers: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """Do the same in numpy."""
    rows = mask[numbers]
    lengths = rows.sum(axis=1, dtype=np.int64)
    return lengths if bool((rows == (np.arange(mask.shape[1]) < lengths[:, None])).all()) else None


def find_runs(values: NDArray[Any], rows: Rows, value: int) -> NDArray[np.int64]:
    """Return where bytes have this value: (row, start in the row, length) of each run."""
    if _paddedrows is None or values.dtype.itemsize > 1:
        return plain_runs(values, rows, value)
    room = RUNS_A_ROW * len(rows.first)
    while True:
        runs = np.empty((room, 3), np.int64)
        count = _paddedrows.find_runs(values, rows.first, rows.lengths, value, runs)
        if count <= room:
            return runs[:count]
        room = count


def plain_runs(values: NDArray[Any], rows: Rows, value: int) -> NDArray[np.int64]:
    """Do the same in numpy."""
    has_value, starts = rows.join(values) == value, rows.starts
    begins, ends = has_value.copy(), has_value.copy()
    begins[1:] &= ~has_value[:-1]
    ends[:-1] &= ~has_value[1:]
    for edges, places in ((begins, starts), (ends, starts + rows.lengths - 1)):
        at_edge = places[rows.lengths > 0]
        edges[at_edge] = has_value[at_edge]
    first, last = np.flatnonzero(begins), np.flatnonzero(ends)
    owner = np.searchsorted(starts, first, side="right") - 1
    return np.stack([owner, first - starts[owner], last - first + 1], axis=1)


def copy_ids(
    ids: NDArray[Any],
    rows: Rows,
    runs: NDArray[np.int64],
    rule: IdRule,
    out: NDArray[Any],
    to: NDArray[np.int64],
) -> None:
    """Copy the ids of row i to `out[to[i]]` and on, its runs shifted."""
    if _paddedrows is not None and ids.itemsize in (2, 4) and (rule.run_size or not len(runs)):
        most = int(np.iinfo(ids.dtype).max)
        last, run_last = min(rule.size - 1, most), max(0, min(rule.run_size - 1, most))
        source = (ids, ids.itemsize, rows.first, rows.lengths, np.ascontiguousarray(runs))
        target = (to, out, out.itemsize)
        if _paddedrows.copy_rows(*source, *target, last, run_last, rule.shift):
            return
    plain_copy(ids, rows, runs, rule, out, to)


def plain_copy(
    ids: NDArray[Any],
    rows: Rows,
    runs: NDArray[np.int64],
    rule: IdRule,
    out: NDArray[Any],
    to: NDArray[np.int64],
) -> None:
    """Do the same in numpy; ids that the rule does not allow are a `FormatError`."""
    joined, starts = rows.join(ids), rows.starts
    begins = starts[runs[:, 0]] + runs[:, 1]
    pieces = [slice(*ends) for ends in zip(begins.tolist(), (begins + runs[:, 2]).tolist())]
    for piece in pieces:
        _check(joined[piece], rule.run_size, "code", "in an image")
    _check(joined, rule.size, "id", "among its tokens")
    joined = joined.astype(out.dtype)
    for piece in pieces:
        joined[piece] += out.dtype.type(rule.shift)
    for start, length, place in zip(starts.tolist(), rows.lengths.tolist(), to.tolist()):
        out[place : place + length] = joined[start : start + length]


def _check(values: NDArray[Any], size: int, what: str, where: str) -> None:
    if not len(values) or (int(values.min()) >= 0 and int(values.max()) < size):
        return
    value = int(values[(values < 0) | (values >= size)][0])
    problem = f"holds the {what} {value} {where}, the token space has {size}"
    raise FormatError(problem, path="input_ids")


Table: TypeAlias = dict[str, NDArray[Any]]
CodeForm: TypeAlias = Literal["raw", "shifted"]
IMAGE = MODALITIES["image"]
NAMES = ("codes",)
ROWS_AT_ONCE = 256
WIDE = ("input_ids", "attention_mask", "modality", "sample_ids")


@dataclass(frozen=True, slots=True, eq=False)
class FlatRows:
    """Documents after each other: `per_row` says how many each row is made of."""

    ids: NDArray[Any]
    lengths: NDArray[np.int64]
    per_row: NDArray[np.int64]
    media: MediaColumns


def interleaved_rows(
    table: Table,
    numbers: NDArray[np.int64],
    space: TokenSpace,
    codes: CodeForm,
    room: NDArray[Any] | None = None,
) -> FlatRows:
    """Return rows of text and images; the ids lie in `room` if they have room there."""
    rows, flat = without_padding(table, numbers)
    runs = _images(table, numbers, rows, flat)
    starts, per_row, total = rows.starts, np.ones_like(rows.lengths), int(rows.lengths.sum())
    ids = place_for(total, space, room)
    rule = IdRule.of(space, is_shifted=codes == "shifted")
    copy_ids(flat["input_ids"], rows, runs, rule, ids, starts)
    first = starts[runs[:, 0]] + runs[:, 1]
    ends = first + runs[:, 2]
    if "sample_ids" in flat:
        changes = _changes(rows.join(flat["sample_ids"]))
        documents = np.union1d(starts[rows.lengths > 0], changes)
        per_row = np.diff(np.searchsorted(documents, np.append(starts, total)))
        starts, (first, ends) = documents, _cut(first, ends, documents)
    media = _media_of(ids, starts, first, ends, space)
    return FlatRows(ids, np.append(starts[1:], total) - starts, per_row, media)


def is_verbatim(table: Table, space: TokenSpace, codes: CodeForm) -> bool:
    """Say whether the file of ids is what they become: no padding, and nothing to shift."""
    if "input_ids" not in table or "modality" not in table:
        return False
    ids, kinds = table["input_ids"], table["modality"]
    mask = table.get("attention_mask", np.ones(1, np.bool_))
    if not ids.size or ids.itemsize != space.dtype.itemsize or not mask.all():
        return False
    if codes == "shifted" or space.code_offset == 0:
        return True
    some = (kinds[start : start + ROWS_AT_ONCE] for start in range(0, len(kinds), ROWS_AT_ONCE))
    return not any((rows == IMAGE).any() for rows in some)


def place_for(count: int, space: TokenSpace, room: NDArray[Any] | None) -> NDArray[Any]:
    """Return where so many ids may be written: in `room` if they have room there."""
    if room is None or len(room) < count:
        return np.empty(count, space.dtype)
    return room[:count]


def without_padding(table: Table, numbers: NDArray[np.int64]) -> tuple[Rows, Table]:
    """Return the rows in flat columns; nothing is copied unless a mask has gaps."""
    wide = _wide_columns(table)
    width, mask = wide["input_ids"].shape[1], wide.pop("attention_mask", None)
    first, lengths = numbers * width, None
    if mask is None:
        lengths = np.full(len(first), width, np.int64)
    else:
        lengths = prefix_lengths(mask, numbers)
    if lengths is not None:
        return Rows(first, lengths), {name: column.reshape(-1) for name, column in wide.items()}
    assert mask is not None
    is_kept = mask[numbers] != 0
    lengths = is_kept.sum(axis=1, dtype=np.int64)
    flat = {name: column[numbers][is_kept] for name, column in wide.items()}
    return Rows(np.cumsum(lengths) - lengths, lengths), flat


def _wide_columns(table: Table) -> Table:
    """Return the columns that have a value for each token; only modality may have one a row."""
    shape = table["input_ids"].shape
    wide = {name: table[name] for name in WIDE if name in table}
    if "modality" in wide and wide["modality"].shape == (shape[0], 1):
        del wide["modality"]
    for name, column in wide.items():
        if column.shape != shape:
            raise FormatError(f"has the shape {column.shape}, input_ids has {shape}", path=name)
    return wide


def _images(table: Table, numbers: NDArray[np.int64], rows: Rows, flat: Table) -> NDArray[np.int64]:
    """Return the runs of codes in the rows: row, start and length."""
    if "modality" in flat:
        return find_runs(flat["modality"], rows, IMAGE)
    is_image = (table["modality"][numbers, 0] == IMAGE) & (rows.lengths > 0)
    owner = np.flatnonzero(is_image)
    return np.stack([owner, np.zeros_like(owner), rows.lengths[owner]], axis=1)


def _changes(values: NDArray[Any]) -> NDArray[np.int64]:
    return np.flatnonzero(values[1:] != values[:-1]) + 1


def _cut(
    first: NDArray[np.int64], ends: NDArray[np.int64], cuts: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the runs from `first` to `ends` in pieces that no cut goes through."""
    owner = np.searchsorted(first, cuts, side="left") - 1
    inside = cuts[(owner >= 0) & (cuts < np.append(ends, 0)[owner])]
    return np.sort(np.append(first, inside)), np.sort(np.append(ends, inside))


def _media_of(
    ids: NDArray[Any],
    starts: NDArray[np.int64],
    first: NDArray[np.int64],
    ends: NDArray[np.int64],
    space: TokenSpace,
) -> MediaColumns:
    """Return the images as media of the documents that begin at `starts`."""
    owner = np.searchsorted(starts, first, side="right") - 1
    counts = np.bincount(owner, minlength=len(starts)).astype(np.int64)
    position = first - starts[owner]
    has_marker = (position > 0) & (ids[first - 1] == space.names.get("image", -1))
    return media_columns(counts, position, ends - first, has_marker.astype(np.int64))


def media_columns(
    counts: NDArray[np.int64],
    position: NDArray[np.int64],
    length: NDArray[np.int64],
    before: NDArray[np.int64],
) -> MediaColumns:
    """Return images as media: `counts` of them in each row, square if they can be."""
    side = np.floor(np.sqrt(length) + 0.5).astype(np.int64)
    is_square = side * side == length
    ones = np.ones_like(length)
    grid = [ones, np.where(is_square, side, 1), np.where(is_square, side, length)]
    zeros = np.zeros_like(length)
    columns = dict.fromkeys(MEDIA_COLUMNS, zeros)
    columns |= {"position": position, "length": length, "before": before, "kind": IMAGE * ones}
    return MediaColumns(counts, columns, np.stack(grid, axis=1), NAMES)


def paired_rows(
    table: Table,
    numbers: NDArray[np.int64],
    space: TokenSpace,
    codes: CodeForm,
    room: NDArray[Any] | None = None,
    *,
    end: bool,
) -> FlatRows:
    """Return pairs of text and image, with `end` each with one end token."""
    marker, last = space.names.get("image"), space.special("eos") if end else None
    text, words = _words(table, numbers, last)
    images = _pair_images(table, numbers)
    position = words.lengths + (marker is not None)
    lengths = position + images.lengths + end
    starts = np.cumsum(lengths) - lengths
    ids = place_for(int(lengths.sum()), space, room)
    rule = IdRule.of(space, is_shifted=codes == "shifted")
    copy_ids(text, words, np.empty((0, 3), np.int64), rule, ids, starts)
    image_ids, codes_at = table["img_input_ids"].reshape(-1), starts + position
    copy_ids(image_ids, images, _whole_runs(images), rule, ids, codes_at)
    if marker is not None:
        ids[codes_at - 1] = marker
    if last is not None:
        ids[starts + lengths - 1] = last
    ones = np.ones_like(lengths)
    before = ones * (marker is not None)
    media = media_columns(ones, position, images.lengths, before)
    return FlatRows(ids, lengths, ones, media)


def _words(table: Table, numbers: NDArray[np.int64], last: int | None) -> tuple[NDArray[Any], Rows]:
    """Return flat ids of text, and the rows in them without padding and without their end."""
    columns = {"input_ids": table["txt_input_ids"]}
    if "txt_attention_mask" in table:
        columns["attention_mask"] = table["txt_attention_mask"]
    else:
        columns["input_ids"] = columns["input_ids"][numbers]
        columns["attention_mask"] = columns["input_ids"] >= 0
        numbers = np.arange(len(numbers))
    rows, flat = without_padding(columns, numbers)
    ids = flat["input_ids"]
    if last is None or not len(ids):
        return ids, rows
    final = np.maximum(rows.first + rows.lengths - 1, 0)
    has_end = (rows.lengths > 0) & (ids[final] == last)
    return ids, Rows(rows.first, rows.lengths - has_end)


def _pair_images(table: Table, numbers: NDArray[np.int64]) -> Rows:
    width = table["img_input_ids"].shape[1]
    return Rows(numbers * width, np.full(len(numbers), width, np.int64))


def _whole_runs(rows: Rows) -> NDArray[np.int64]:
    """Return each row as one run: all of it is codes."""
    numbers = np.arange(len(rows.lengths))
    return np.stack([numbers, np.zeros_like(numbers), rows.lengths], axis=1)


# Llama-2 with one id more, LlamaGen's codebook, and `<image>` on the id that UniDisc gives it.
UNIDISC_SPACE = TokenSpace(text_size=32001, specials={"eos": 2, "image": 811}, num_codes=16384)
TOKENS_AT_ONCE = 1 << 22


@dataclass(frozen=True, kw_only=True)
class UnidiscReader:
    """A folder of parts or one TensorDict; `ids` as in unidisc_parts.py.

    `codes` says whether images hold codes that count from 0, or ids of the space. With `end` a
    pair ends with the end token, whether its text did or not, as UniDisc trains it.
    """

    dir: str
    split: str = "train"
    ids: Ids | None = None
    skip_broken: bool = False
    codes: CodeForm = "raw"
    end: bool = True
    space: TokenSpace = UNIDISC_SPACE

    def holds(self) -> frozenset[Aspect]:
        """Return tokens and codes; documents if packs tell them; of pairs no order of the two."""
        columns = self._parts[0].table
        known: set[Aspect] = {"words", "codes"}
        known |= {"tokens"} if "input_ids" in columns else set()
        known |= {"documents"} if "sample_ids" in columns else set()
        return frozenset(known)

    def token_space(self) -> TokenSpace:
        """Return the space that was given."""
        return self.space

    def parts(self) -> Iterator[Part]:
        """Yield a part for each part, named with the rows that are taken from it."""
        for chosen in choose_rows(self._parts, self.ids):
            yield Part(
                input={
                    "part": chosen.part.name,
                    "stamps": _stamps(chosen.part.folder),
                    "rows": xxhash.xxh3_64_hexdigest(chosen.rows.tobytes()),
                },
                num_records=len(chosen.rows),
                passed={
                    "rows never written": chosen.num_unwritten,
                    "ids of an earlier part": chosen.num_repeated,
                },
            )

    def read(self, input: Mapping[str, Any]) -> Iterator[Record]:
        """Yield the rows of a part that no part before it has."""
        for block in self._blocks(input, reuse=False):
            for record in block.records():
                yield with_codes(record, self.space)

    def read_blocks(self, input: Mapping[str, Any]) -> Iterator[Block]:
        """Yield the same rows, many at a time, each block in the memory of the one before it."""
        yield from self._blocks(input, reuse=True)

    def ids_file(self, input: Mapping[str, Any]) -> Path | None:
        """Return the file of ids if all its rows are taken as they are."""
        chosen = self._listed(input)
        is_all = chosen.num_unwritten + chosen.num_repeated == 0
        if not is_all or not is_verbatim(chosen.part.table, self.space, self.codes):
            return None
        return chosen.part.folder / f"input_ids{SUFFIX}"

    def inputs(self) -> Mapping[str, Any]:
        """Return size and time of each part's files."""
        return {str(part.folder): _stamps(part.folder) for part in self._parts}

    @cached_property
    def _parts(self) -> list[UnidiscPart]:
        return find_parts(Path(self.dir), self.split, skip_broken=self.skip_broken)

    @cached_property
    def _chosen(self) -> dict[str, PartRows]:
        # Whether repeats are equal was looked at when the parts were listed.
        chosen = choose_rows(self._parts, self.ids or "global")
        return {rows.part.name: rows for rows in chosen}

    def _listed(self, input: Mapping[str, Any]) -> PartRows:
        """Return the rows of a part, which is what it was when it was listed."""
        chosen = self._chosen[input["part"]]
        digest = xxhash.xxh3_64_hexdigest(chosen.rows.tobytes())
        if digest != input["rows"] or _stamps(chosen.part.folder) != input["stamps"]:
            raise FormatError("was changed after it was listed", path=chosen.part.folder)
        return chosen

    def _blocks(self, input: Mapping[str, Any], *, reuse: bool) -> Iterator[Block]:
        chosen = self._listed(input)
        # A pair has a marker and an end besides.
        width = _width(chosen.part) + 2
        step = max(1, TOKENS_AT_ONCE // width)
        room = np.empty(step * width, self.space.dtype) if reuse else None
        for start in range(0, len(chosen.rows), step):
            some = slice(start, start + step)
            flat = self._convert(chosen.part, chosen.rows[some], room)
            yield self._block(chosen, some, flat)

    def _convert(
        self, part: UnidiscPart, numbers: NDArray[np.int64], room: NDArray[Any] | None
    ) -> FlatRows:
        table = part.table
        if "input_ids" in table and "modality" in table:
            return interleaved_rows(table, numbers, self.space, self.codes, room)
        if {"txt_input_ids", "img_input_ids"} <= table.keys():
            return paired_rows(table, numbers, self.space, self.codes, room, end=self.end)
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
            rows=numbers,
        )


def _width(part: UnidiscPart) -> int:
    """Return how many tokens a row has at most."""
    columns = {name: part.table[name] for name in TOKEN_NAMES if name in part.table}
    for name, column in columns.items():
        if column.ndim != 2:
            raise FormatError(f"has a tensor {name!r} of shape {column.shape}", path=part.folder)
    return sum(column.shape[1] for column in columns.values())


def _stamps(part: Path) -> Any:
    return [[p.name, *stamp(p)] for p in sorted([part / META_NAME, *part.glob(f"*{SUFFIX}")])]
