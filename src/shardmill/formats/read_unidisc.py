"""Reads UniDisc's memory maps, several parts as one data set (see unidisc_parts.py).

Codes move behind the text ids of the space, padding goes, everything else is learned, as UniDisc
does. A pair becomes its text without end, the picture's marker, the codes and the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from shardmill.errors import FormatError
from shardmill.formats.reader import Aspect, Block, Part, Record, stamp, with_codes
from shardmill.formats.unidisc_parts import Ids, PartRows, choose_rows, find_parts
from shardmill.formats.unidisc_rows import (
    CodeForm,
    FlatRows,
    Table,
    interleaved_rows,
    paired_rows,
)
from shardmill.io.memmaps import META_NAME, open_memmaps
from shardmill.model.sample import Origin
from shardmill.model.space import TokenSpace

# Llama-2 with one id more, LlamaGen's codebook, and `<image>` on the id that UniDisc gives it.
UNIDISC_SPACE = TokenSpace(text_size=32001, specials={"eos": 2, "image": 811}, num_codes=16384)
ROWS_AT_ONCE = 256


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
    codes: CodeForm = "raw"
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
        for block in self.read_blocks(input):
            for record in block.records():
                yield with_codes(record, self.space)

    def read_blocks(self, input: Mapping[str, Any]) -> Iterator[Block]:
        """Yield the same rows, many at a time."""
        part = self._chosen[input["part"]]
        digest = xxhash.xxh3_64_hexdigest(part.rows.tobytes())
        if digest != input["rows"] or _stamps(part.folder) != input["stamps"]:
            raise FormatError("was changed after it was listed", path=part.folder)
        table = open_memmaps(part.folder)
        for start in range(0, len(part.rows), ROWS_AT_ONCE):
            some = slice(start, start + ROWS_AT_ONCE)
            flat = self._convert(table, neighbours(part.rows[some]), part.folder)
            yield self._block(part, some, flat)

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

    def _convert(self, table: Table, rows: Any, folder: Path) -> FlatRows:
        if "input_ids" in table and "modality" in table:
            return interleaved_rows(table, rows, self.space, self.codes)
        if {"txt_input_ids", "img_input_ids"} <= table.keys():
            return paired_rows(table, rows, self.space, self.codes, end=self.end)
        known = ", ".join(sorted(table))
        raise FormatError(f"holds {known}, which is no layout of UniDisc's tokens", path=folder)

    def _block(self, part: PartRows, some: slice, flat: FlatRows) -> Block:
        numbers, ids, name = part.rows[some], part.ids[some].tolist(), part.folder.name
        keys = [f"{self.split}-{id_:08d}" for id_ in ids]
        if self.ids == "local":
            keys = [f"{name}-{number:08d}" for number in numbers.tolist()]
        return Block(
            ids=flat.ids,
            lengths=flat.lengths,
            per_record=flat.per_row,
            media=flat.media,
            keys=keys,
            origin=Origin(source=Path(self.dir).name, path=name, row=0),
            rows=numbers,
        )


def neighbours(rows: NDArray[np.int64]) -> Any:
    """Return numbers that follow each other as a slice, which copies nothing."""
    is_run = len(rows) > 0 and rows[-1] - rows[0] == len(rows) - 1
    return slice(int(rows[0]), int(rows[-1]) + 1) if is_run else rows


def _stamps(part: Path) -> Any:
    return [[p.name, *stamp(p)] for p in sorted([part / META_NAME, *part.glob("*.memmap")])]
