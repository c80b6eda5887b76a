"""Liquid's unified columns from samples and their codes, the same for pairs and for plain text.

    data_type        "image_text" or "text_pretrain"
    text             the caption or the text
    length           characters of the text, and 4 for each code
    vqcode_512       the codes of an image of 512 x 512 as JSON text, or "no"
    vqcode_multi768  the codes of an image of any size as JSON text, or "no"
    width, height    of that image in pixels, as text, or "no"

Files are Arrow, parquet or jsonl (`hf_files`), with the same rows in each.

Codes as JSON text, "[12, 7, 4095]", for many images at once; "no" where there are none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import orjson
from numpy.typing import NDArray

from shardmill.errors import need
from shardmill.formats.format import ExportInput, Format, Piece, Place, Slice
from shardmill.formats.huggingface.arrays import number_array, string_array
from shardmill.formats.huggingface.format import (
    describe_arrow,
    describe_files,
    schema_of,
    value,
    write_table,
)
from shardmill.formats.liquid.rows import PairBatch, pair_batches
from shardmill.model.manifest import Manifest
from shardmill.model.stage import Draft, Tally
from shardmill.shards.weave import (
    Column,
    chosen,
    constant,
    json_object,
    number_lists,
    numbers,
    quoted,
    quoted_texts,
    texts,
    weave,
    write_rows,
)
from shardmill.storage.background import Room, in_turns

NONE = "no"


def code_texts(codes: NDArray[Any], bounds: NDArray[np.int64], room: Room | None = None) -> Column:
    """Return the text of the codes bounds[i] to bounds[i + 1], in `room` if it is given."""
    listed = number_lists(codes, bounds, b", ", b"[]", room)
    is_empty = np.diff(bounds) == 0
    if not is_empty.any():
        return listed
    kept = Column(listed.data, listed.starts, np.where(is_empty, 0, listed.lengths))
    return weave([kept, texts([b"", NONE.encode()]).taken(is_empty.astype(np.int64))])


DATA_TYPES = ("text_pretrain", "image_text")  # without codes and with them
SQUARE = 512
CHARACTERS_A_CODE = 4
SIZES = ("width", "height")
FEATURES = {
    "data_type": value("string"),
    "text": value("string"),
    "length": value("int64"),
    "vqcode_512": value("string"),
    "vqcode_multi768": value("string"),
    "width": value("string"),
    "height": value("string"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LiquidFormat(Format):
    """Rows of Liquid; `column` says where codes go, and with it which sizes images may have."""

    files: Literal["arrow", "parquet", "jsonl"] = "arrow"
    column: Literal["vqcode_512", "vqcode_multi768"] = "vqcode_512"

    def plan(self, source: ExportInput, ranges: Sequence[tuple[Slice, ...]]) -> Iterator[Place]:
        """Yield nothing for each unit of samples."""
        source.check_samples()
        yield from ({} for _ in ranges)

    def write(self, source: ExportInput, piece: Piece, draft: Draft, tally: Tally) -> None:
        """Write the rows of a unit as one table."""
        batches = pair_batches(source, piece, tally, self._size)
        path = draft.file(piece.name, self.files)
        rooms = in_turns(Room)
        if self.files == "jsonl":
            write_rows(path, (self._lines(batch, next(rooms)) for batch in batches))
        else:
            schema = schema_of(FEATURES)
            tables = (self._table(batch, schema, next(rooms)) for batch in batches)
            write_table(path, self.files, schema, tables)
        draft.finish(piece.name, num_samples=tally.num_kept)

    def finish(self, source: ExportInput, manifest: Manifest, out_dir: Path) -> None:
        """Write what `load_from_disk` or `load_dataset` begins with."""
        if self.files == "arrow":
            describe_arrow(out_dir, manifest, FEATURES)
        else:
            describe_files(out_dir, self.files)

    @property
    def _size(self) -> tuple[int, int] | None:
        return (SQUARE, SQUARE) if self.column == "vqcode_512" else None

    def _table(self, batch: PairBatch, schema: Any, room: Room) -> Any:
        """Return the rows as an Arrow record batch, their codes in `room`."""
        pa = need("pyarrow", extra="tables")
        columns = {
            **dict.fromkeys(FEATURES, string_array(weave([constant(NONE.encode(), len(batch))]))),
            "data_type": string_array(weave([_data_types(batch)])),
            "text": string_array(batch.texts),
            "length": number_array(_lengths(batch)),
            self.column: string_array(code_texts(batch.codes, batch.code_bounds, room)),
        }
        if self._size is None:
            sizes = {name: map(str.encode, _sizes(batch, name)) for name in SIZES}
            columns |= {name: string_array(texts([*some])) for name, some in sizes.items()}
        return pa.record_batch([columns[name] for name in FEATURES], schema=schema)

    def _lines(self, batch: PairBatch, room: Room) -> list[Column]:
        """Return the rows as lines of JSON, to be woven, with their columns in the same order."""
        no, quote = [constant(orjson.dumps(NONE), len(batch))], constant(b'"', len(batch))
        fields: dict[str, list[Column]] = {
            **dict.fromkeys(FEATURES, no),
            "data_type": [data_types_json(batch)],
            "text": quoted_texts(batch.texts),
            "length": [numbers(_lengths(batch))],
            self.column: [quote, code_texts(batch.codes, batch.code_bounds, room), quote],
        }
        if self._size is None:
            fields |= {name: [quoted(_sizes(batch, name))] for name in SIZES}
        return [*json_object(fields, len(batch)), constant(b"\n", len(batch))]


def data_types_json(batch: PairBatch) -> Column:
    """Return the type of each row, as JSON."""
    return chosen(DATA_TYPES, batch.num_codes > 0)


def _data_types(batch: PairBatch) -> Column:
    return texts([*map(str.encode, DATA_TYPES)]).taken((batch.num_codes > 0).astype(np.int64))


def _lengths(batch: PairBatch) -> NDArray[np.int64]:
    return batch.num_chars + CHARACTERS_A_CODE * batch.num_codes


def _sizes(batch: PairBatch, name: str) -> list[str]:
    return [str(size) if size else NONE for size in getattr(batch, name).tolist()]
