"""Liquid's unified columns from samples and their codes, the same for pairs and for plain text.

    data_type        "image_text" or "text_pretrain"
    text             the caption or the text
    length           characters of the text, and 4 for each code
    vqcode_512       the codes of a picture of 512 x 512 as JSON text, or "no"
    vqcode_multi768  the codes of a picture of any size as JSON text, or "no"
    width, height    of that picture in pixels, as text, or "no"

Files are Arrow, parquet or jsonl (`hf_files`), with the same rows in each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from shardmill.errors import ConfigError, SampleError
from shardmill.extras import need
from shardmill.formats.codetext import code_texts
from shardmill.formats.contract import Format, Piece, Place
from shardmill.formats.hf_files import (
    describe_arrow,
    describe_files,
    schema_of,
    value,
    write_table,
)
from shardmill.formats.inputs import ExportInput, Slice
from shardmill.formats.pairrows import PairRow, pair_rows
from shardmill.io.jsontext import dump_line
from shardmill.model.manifest import Manifest
from shardmill.model.stage import Draft, Tally

NO = "no"
SQUARE = 512
CHARACTERS_A_CODE = 4
BATCH_ROWS = 1000
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
    """Rows of Liquid; `column` says where codes go, and with it which sizes pictures may have."""

    files: Literal["arrow", "parquet", "jsonl"] = "arrow"
    column: Literal["vqcode_512", "vqcode_multi768"] = "vqcode_512"

    def plan(self, source: ExportInput, ranges: Sequence[tuple[Slice, ...]]) -> Iterator[Place]:
        """Yield nothing for each unit; pictures need their codes."""
        if source.codes is None:
            raise ConfigError(
                "Liquid's rows hold the codes of pictures: name their folder with --codes"
            )
        yield from ({} for _ in ranges)

    def write(self, source: ExportInput, piece: Piece, draft: Draft, tally: Tally) -> None:
        """Write the rows of a unit as one table."""
        rows = self._fitting(pair_rows(source, piece, tally), tally)
        batches = (self._columns(batch) for batch in _batches(rows))
        path = draft.file(piece.name, self.files)
        if self.files == "jsonl":
            _write_lines(path, batches)
        else:
            schema, pa = schema_of(FEATURES), need("pyarrow", extra="tables")
            made = (pa.record_batch(_arrays(pa, batch), schema=schema) for batch in batches)
            write_table(path, self.files, schema, made)
        draft.finish(piece.name, num_samples=tally.num_kept)

    def finish(self, source: ExportInput, manifest: Manifest, out_dir: Path) -> None:
        """Write what `load_from_disk` or `load_dataset` begins with."""
        if self.files == "arrow":
            describe_arrow(out_dir, manifest, FEATURES)
        else:
            describe_files(out_dir, self.files)

    def _fitting(self, rows: Iterable[PairRow], tally: Tally) -> Iterator[PairRow]:
        """Yield the rows whose pictures may stand in the column, and count them as kept."""
        for row in rows:
            size = None if row.codes is None else (row.codes.width, row.codes.height)
            if size is None or self.column != "vqcode_512" or size == (SQUARE, SQUARE):
                tally.num_kept += 1
                yield row
            else:
                detail = f"{size[0]} x {size[1]}: export with column=vqcode_multi768"
                tally.skip(row.key, SampleError("not 512 x 512 pixels", detail))

    def _columns(self, rows: Sequence[PairRow]) -> dict[str, Any]:
        """Return the columns of a batch; those of codes are Arrow arrays."""
        pa = need("pyarrow", extra="tables")
        no = pa.repeat(NO, len(rows))
        many = self.column == "vqcode_multi768"
        columns: dict[str, Any] = {
            "data_type": ["image_text" if row.codes else "text_pretrain" for row in rows],
            "text": [row.text for row in rows],
            "length": [_length(row) for row in rows],
            "vqcode_512": no,
            "vqcode_multi768": no,
            "width": [str(row.codes.width) if row.codes and many else NO for row in rows],
            "height": [str(row.codes.height) if row.codes and many else NO for row in rows],
        }
        columns[self.column] = _texts_of(pa, rows)
        return columns


def _length(row: PairRow) -> int:
    return len(row.text) + (CHARACTERS_A_CODE * len(row.codes.codes) if row.codes else 0)


def _texts_of(pa: Any, rows: Sequence[PairRow]) -> Any:
    """Return the codes of each row as text, or "no"."""
    with_codes = [row.codes.codes for row in rows if row.codes]
    texts = code_texts(with_codes)
    if len(with_codes) == len(rows):
        return texts
    places = iter(range(len(with_codes)))
    chosen = [next(places) if row.codes else len(with_codes) for row in rows]
    return pa.concat_arrays([texts, pa.array([NO])]).take(pa.array(chosen))


def _arrays(pa: Any, columns: dict[str, Any]) -> list[Any]:
    kinds = {"length": pa.int64()}
    return [
        pa.array(column, kinds.get(name, pa.string())) if isinstance(column, list) else column
        for name, column in columns.items()
    ]


def _write_lines(path: Path, batches: Iterable[dict[str, Any]]) -> None:
    with path.open("wb") as file:
        for columns in batches:
            plain = [c if isinstance(c, list) else c.to_pylist() for c in columns.values()]
            file.writelines(dump_line(dict(zip(columns, row))) for row in zip(*plain))


def _batches(rows: Iterable[PairRow]) -> Iterator[list[PairRow]]:
    left = iter(rows)
    while batch := list(islice(left, BATCH_ROWS)):
        yield batch
