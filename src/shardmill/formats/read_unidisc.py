"""Reads UniDisc's memory maps, several parts as one data set (see unidisc_parts.py).

    interleaved    input_ids, attention_mask, modality [N, L]: text ids and raw codes, padded
    paired         txt_input_ids, txt_attention_mask [N, T] and img_input_ids [N, I], raw codes
    one modality   input_ids [N, L], modality [N, 1]

Codes move behind the text ids of the space, padding goes, everything else is learned, as UniDisc
does. A pair becomes its text without end, the picture's marker, the codes and the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import isqrt
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import xxhash
from numpy.typing import NDArray

from shardmill.errors import FormatError
from shardmill.formats.reader import Aspect, Part, Record, stamp, with_codes
from shardmill.formats.unidisc_parts import Ids, PartRows, choose_rows, find_parts
from shardmill.io.memmaps import META_NAME, open_memmaps
from shardmill.model.sample import Origin
from shardmill.model.space import TokenSpace
from shardmill.model.tokenrow import MODALITIES, MediaSpan, TokenRow

# Llama-2 with one id more, LlamaGen's codebook, and `<image>` on the id that UniDisc gives it.
UNIDISC_SPACE = TokenSpace(text_size=32001, specials={"eos": 2, "image": 811}, num_codes=16384)
ROWS_AT_ONCE = 256
Table: TypeAlias = dict[str, NDArray[Any]]
Convert: TypeAlias = Callable[[NDArray[np.int64]], Iterator[list["_Document"]]]


@dataclass(frozen=True, kw_only=True)
class UnidiscReader:
    """A folder of parts or one TensorDict; `ids` as in unidisc_parts.py.

    `codes` says whether pictures hold codes that count from 0, or ids of the space. With `end` a
    pair ends with the end token, whether its text did or not, as UniDisc trains it.
    """

    dir: str
    split: str = "train"
    ids: Ids | None = None
    skip_broken: bool = False
    codes: Literal["raw", "shifted"] = "raw"
    end: bool = True
    space: TokenSpace = UNIDISC_SPACE

    def holds(self) -> frozenset[Aspect]:
        """Return tokens and codes; documents if packs tell them; of pairs no order of the two."""
        columns = open_memmaps(self._parts[0])
        known: set[Aspect] = {"words", "codes"}
        known |= {"tokens"} if "input_ids" in columns else set()
        known |= {"documents"} if "sample_ids" in columns else set()
        return frozenset(known)

    def token_space(self) -> TokenSpace:
        """Return the space that was given."""
        return self.space

    def parts(self) -> Iterator[Part]:
        """Yield a part for each part, named with the rows that are taken from it."""
        for part in choose_rows(self._parts, self.ids):
            yield Part(
                input={
                    "part": part.folder.name,
                    "stamps": _stamps(part.folder),
                    "rows": xxhash.xxh3_64_hexdigest(part.rows.tobytes()),
                },
                num_records=len(part.rows),
                passed={
                    "rows never written": part.num_unwritten,
                    "ids of an earlier part": part.num_repeated,
                },
            )

    def read(self, input: Mapping[str, Any]) -> Iterator[Record]:
        """Yield the rows of a part that no part before it has."""
        part = self._chosen[input["part"]]
        digest = xxhash.xxh3_64_hexdigest(part.rows.tobytes())
        if digest != input["rows"] or _stamps(part.folder) != input["stamps"]:
            raise FormatError("was changed after it was listed", path=part.folder)
        table = open_memmaps(part.folder)
        convert = self._converter(table, part.folder)
        for start in range(0, len(part.rows), ROWS_AT_ONCE):
            some = slice(start, start + ROWS_AT_ONCE)
            numbers, names = part.rows[some].tolist(), part.ids[some].tolist()
            for number, id_, made in zip(numbers, names, convert(part.rows[some])):
                yield self._record(part.folder.name, number, id_, made)

    def inputs(self) -> Mapping[str, Any]:
        """Return size and time of each part's files."""
        return {str(part): _stamps(part) for part in self._parts}

    @cached_property
    def _parts(self) -> list[Path]:
        return find_parts(Path(self.dir), self.split, skip_broken=self.skip_broken)

    @cached_property
    def _chosen(self) -> dict[str, PartRows]:
        # Whether repeats are equal was looked at when the parts were listed.
        chosen = choose_rows(self._parts, self.ids or "global")
        return {part.folder.name: part for part in chosen}

    def _record(self, part: str, number: int, id_: int, made: Iterable[_Document]) -> Record:
        key = f"{part}-{number:08d}" if self.ids == "local" else f"{self.split}-{id_:08d}"
        origin = Origin(source=Path(self.dir).name, path=part, row=number)
        rows = tuple(
            TokenRow(
                key=f"{key}~{at}" if at else key,
                ids=document.ids,
                loss=np.array([[0, len(document.ids)]], np.int64)[: len(document.ids)],
                media=document.media,
                origin=origin,
                continues=at > 0,
            )
            for at, document in enumerate(made)
        )
        return with_codes(Record(key=key, rows=rows), self.space)

    def _converter(self, table: Table, folder: Path) -> Convert:
        if "input_ids" in table and "modality" in table:
            return lambda rows: self._interleaved(table, rows)
        if {"txt_input_ids", "img_input_ids"} <= table.keys():
            return lambda rows: self._paired(table, rows)
        known = ", ".join(sorted(table))
        raise FormatError(f"holds {known}, which is no layout of UniDisc's tokens", path=folder)

    def _interleaved(self, table: Table, rows: NDArray[np.int64]) -> Iterator[list[_Document]]:
        ids = table["input_ids"][rows]
        is_code = np.broadcast_to(table["modality"][rows] == MODALITIES["image"], ids.shape)
        mask = table["attention_mask"][rows] if "attention_mask" in table else ids == ids
        parts = table["sample_ids"][rows] if "sample_ids" in table else np.zeros_like(ids)
        ids = ids.astype(self.space.dtype)
        if self.codes == "raw":
            ids = ids + self.space.dtype.type(self.space.code_offset) * is_code
        marker = self.space.names.get("image", -1)
        for values in zip(ids, mask, is_code, parts):
            kept, code, part = (value[values[1]] for value in (values[0], *values[2:]))
            cuts = [0, *(np.flatnonzero(np.diff(part)) + 1).tolist(), len(kept)]
            yield [
                _Document(kept[a:b], _pictures(kept[a:b], code[a:b], marker))
                for a, b in pairwise(cuts)
            ]

    def _paired(self, table: Table, rows: NDArray[np.int64]) -> Iterator[list[_Document]]:
        text, codes = table["txt_input_ids"][rows], table["img_input_ids"][rows]
        mask = table["txt_attention_mask"][rows] if "txt_attention_mask" in table else text >= 0
        codes = self.space.code_ids(codes) if self.codes == "raw" else codes
        marker = [self.space.names["image"]] if "image" in self.space.names else []
        last = [self.space.special("eos")] if self.end else []
        for row_text, row_mask, row_codes in zip(text, mask.astype(bool), codes):
            words = row_text[row_mask]
            words = words[:-1] if last and words[-1:].tolist() == last else words
            ids = np.concatenate([words, marker, row_codes, last]).astype(self.space.dtype)
            picture = _picture(len(words) + len(marker), len(row_codes), before=len(marker))
            yield [_Document(ids, (picture,))]


@dataclass(frozen=True, slots=True, eq=False)
class _Document:
    ids: NDArray[Any]
    media: tuple[MediaSpan, ...]


def _pictures(ids: NDArray[Any], is_code: NDArray[np.bool_], marker: int) -> tuple[MediaSpan, ...]:
    """Return the runs of codes; a marker just before one belongs to it."""
    if not is_code.any():
        return ()
    edges = np.flatnonzero(np.diff(is_code, prepend=False, append=False)).tolist()
    return tuple(
        _picture(start, end - start, before=int(start > 0 and ids[start - 1] == marker))
        for start, end in zip(edges[::2], edges[1::2])
    )


def _picture(position: int, count: int, *, before: int) -> MediaSpan:
    side = isqrt(count)
    grid = (1, side, side) if side * side == count else (1, 1, count)
    return MediaSpan(
        name="codes", kind="image", position=position, num_tokens=count, grid=grid, before=before
    )


def _stamps(part: Path) -> Any:
    return [[p.name, *stamp(p)] for p in sorted([part / META_NAME, *part.glob("*.memmap")])]
