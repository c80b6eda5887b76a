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
from shardmill.formats.unidisc_pairs import paired_rows
from shardmill.formats.unidisc_parts import (
    TOKEN_NAMES,
    Ids,
    PartRows,
    UnidiscPart,
    choose_rows,
    find_parts,
)
from shardmill.formats.unidisc_rows import CodeForm, FlatRows, interleaved_rows, is_verbatim
from shardmill.io.keycolumn import NumberedKeys
from shardmill.io.memmaps import META_NAME, SUFFIX
from shardmill.model.sample import Origin
from shardmill.model.space import TokenSpace

# Llama-2 with one id more, LlamaGen's codebook, and `<image>` on the id that UniDisc gives it.
UNIDISC_SPACE = TokenSpace(text_size=32001, specials={"eos": 2, "image": 811}, num_codes=16384)
TOKENS_AT_ONCE = 1 << 22


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
