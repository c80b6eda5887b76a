"""Liquid's rows: a text with the codes of one image, as unified columns or as lines of JSON.

`LiquidFormat` has the same columns for pairs and plain text, in Arrow, parquet or jsonl:

    data_type        "image_text" or "text_pretrain"
    text             the caption or the text
    length           characters of the text, and 4 for each code
    vqcode_512       the codes of an image of 512 x 512 as JSON text, "[12, 7, 4095]", or "no"
    vqcode_multi768  the codes of an image of any size as JSON text, or "no"
    width, height    of that image in pixels, as text, or "no"

`LiquidPairsFormat` is for map-style data sets, as jsonl:

    {"data_type": "image_text", "text": T, "vq_code": [12, 7, ...]}           with codes
    {"data_type": "image_text", "text": T, "image_path": "00000.000042.jpg"}  without
    {"data_type": "text_pretrain", "text": T}

Without codes the images are written beside the jsonl, and their paths count from its folder.

Rows come in the order of the samples. With `shuffle` = S, row i of N is sample number
`numpy.random.default_rng(S).permutation(N)[i]`, of those that have codes or need none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import orjson
import xxhash

from shardmill.errors import SampleError, need
from shardmill.formats.format import Aspect, Format, Place, Record
from shardmill.formats.huggingface import (
    describe_arrow,
    describe_files,
    number_array,
    schema_of,
    string_array,
    table_rows,
    value,
    write_table,
)
from shardmill.formats.rows import ExportInput, PairRow, Piece, Slice, pair_rows
from shardmill.model.manifest import Manifest, ShardEntry
from shardmill.model.stage import Draft, Tally
from shardmill.shards.ledger import open_manifest

NONE = "no"
SQUARE = 512
CHARACTERS_A_CODE = 4
ROWS_AT_ONCE = 2000
FEATURES = {
    "data_type": value("string"),
    "text": value("string"),
    "length": value("int64"),
    "vqcode_512": value("string"),
    "vqcode_multi768": value("string"),
    "width": value("string"),
    "height": value("string"),
}
CODE_FIELDS = ("vqcode_512", "vqcode_multi768", "vq_code")


@dataclass(frozen=True, slots=True, kw_only=True)
class LiquidFormat(Format):
    """Rows of Liquid; `column` says where codes go, and with it which sizes images may have.

    `shuffle` is a seed: the rows come in the order of `datasets` for it, as Liquid packs them.
    """

    files: Literal["arrow", "parquet", "jsonl"] = "arrow"
    column: Literal["vqcode_512", "vqcode_multi768"] = "vqcode_512"
    shuffle: int | None = None

    @property
    def needs(self) -> tuple[str, ...]:
        """The package that writes tables."""
        return () if self.files == "jsonl" else ("pyarrow",)

    @property
    def keeps(self) -> frozenset[Aspect]:
        """Text and codes; the shape of an image follows from its size."""
        return frozenset({"text", "codes", "spans"})

    def plan(self, source: ExportInput, ranges: Sequence[tuple[Slice, ...]]) -> Iterator[Place]:
        """Yield nothing for each unit of samples."""
        source.check_samples()
        yield from ({} for _ in ranges)

    def write(self, source: ExportInput, piece: Piece, draft: Draft, tally: Tally) -> None:
        """Write the rows of a unit as one table; images without codes are skipped."""
        rows = _kept_rows(pair_rows(source, piece, tally, self.shuffle), tally, self._size)
        plain = (self._row(row) for row in rows)
        path = draft.file(piece.name, self.files)
        if self.files == "jsonl":
            _write_lines(path, plain)
        else:
            schema = schema_of(FEATURES)
            write_table(path, self.files, schema, _tables(plain, schema))
        draft.finish(piece.name, num_samples=tally.num_kept)

    def finish(self, source: ExportInput, manifest: Manifest, out_dir: Path) -> None:
        """Write what `load_from_disk` or `load_dataset` begins with."""
        if self.files == "arrow":
            describe_arrow(out_dir, manifest, FEATURES)
        else:
            describe_files(out_dir, self.files)

    def holds(self, folder: Path) -> frozenset[Aspect]:
        """Return text and codes."""
        return frozenset({"text", "codes"})

    def records(self, folder: Path, shard: ShardEntry) -> Iterator[Record]:
        """Yield the rows of a file."""
        return _records(folder / shard.files[self.files].path, self.files)

    @property
    def _size(self) -> tuple[int, int] | None:
        return (SQUARE, SQUARE) if self.column == "vqcode_512" else None

    def _row(self, row: PairRow) -> dict[str, Any]:
        codes = row.codes
        plain: dict[str, Any] = dict.fromkeys(FEATURES, NONE)
        plain["data_type"] = _data_type(row)
        plain["text"] = row.text
        plain["length"] = len(row.text)
        if codes is not None:
            plain["length"] += CHARACTERS_A_CODE * codes.codes.size
            # The text is that of json.dumps, which Liquid's own scripts write.
            plain[self.column] = _json(codes.codes.reshape(-1)).replace(b",", b", ").decode()
            if self._size is None:
                plain["width"], plain["height"] = str(codes.width), str(codes.height)
        return plain


@dataclass(frozen=True, slots=True, kw_only=True)
class LiquidPairsFormat(Format):
    """One line of JSON a sample; `shuffle` is the seed of their order."""

    shuffle: int | None = None

    @property
    def keeps(self) -> frozenset[Aspect]:
        """Text, and codes in one line or the image itself."""
        return frozenset({"text", "codes", "media"})

    def plan(self, source: ExportInput, ranges: Sequence[tuple[Slice, ...]]) -> Iterator[Place]:
        """Yield nothing for each unit of samples."""
        source.check_samples()
        yield from ({} for _ in ranges)

    def write(self, source: ExportInput, piece: Piece, draft: Draft, tally: Tally) -> None:
        """Write the rows of a unit, and their images if there are no codes."""
        rows = pair_rows(source, piece, tally, self.shuffle)
        path = draft.file(piece.name, "jsonl")
        if source.codes is None:
            _write_lines(path, _rows_with_images(rows, piece.name, draft, tally))
        else:
            _write_lines(path, map(_row_with_codes, _kept_rows(rows, tally, None)))
        draft.finish(piece.name, num_samples=tally.num_kept)

    def finish(self, source: ExportInput, manifest: Manifest, out_dir: Path) -> None:
        """Write the card that names the files."""
        describe_files(out_dir, "jsonl")

    def holds(self, folder: Path) -> frozenset[Aspect]:
        """Return text and codes; text and media where images lie beside the lines."""
        has_images = any(len(shard.files) > 1 for shard in open_manifest(folder).shards)
        return frozenset({"text", "media"} if has_images else {"text", "codes"})

    def records(self, folder: Path, shard: ShardEntry) -> Iterator[Record]:
        """Yield the lines of a file."""
        return _records(folder / shard.files["jsonl"].path, "jsonl")


def _kept_rows(
    rows: Iterator[PairRow], tally: Tally, size: tuple[int, int] | None
) -> Iterator[PairRow]:
    """Yield the rows that can be written, and count them; plain texts need no codes."""
    for row in rows:
        found = None if row.codes is None else (row.codes.width, row.codes.height)
        if row.medium is not None and found is None:
            tally.skip(row.key, SampleError("no image codes", "name their folder with --codes"))
        elif found is not None and size is not None and found != size:
            reason = f"not {size[0]} x {size[1]} pixels"
            tally.skip(
                row.key,
                SampleError(
                    reason, f"{found[0]} x {found[1]}; column=vqcode_multi768 takes any size"
                ),
            )
        else:
            tally.num_kept += 1
            yield row


def _tables(rows: Iterator[Mapping[str, Any]], schema: Any) -> Iterator[Any]:
    """Yield the rows as Arrow record batches of some thousand each."""
    pa = need("pyarrow", extra="tables")
    while some := list(islice(rows, ROWS_AT_ONCE)):
        yield pa.record_batch([_column(some, name) for name in FEATURES], schema=schema)


def _column(rows: Sequence[Mapping[str, Any]], name: str) -> Any:
    values = [row[name] for row in rows]
    if FEATURES[name] == value("int64"):
        return number_array(np.array(values, np.int64))
    return string_array([text.encode() for text in values])


def _write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    with path.open("wb") as file:
        file.writelines(map(_line, rows))


def _line(plain: Mapping[str, Any]) -> bytes:
    return orjson.dumps(plain, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY)


def _json(codes: Any) -> bytes:
    return orjson.dumps(codes, option=orjson.OPT_SERIALIZE_NUMPY)


def _data_type(row: PairRow) -> str:
    return "text_pretrain" if row.codes is None and row.medium is None else "image_text"


def _row_with_codes(row: PairRow) -> dict[str, Any]:
    plain: dict[str, Any] = {"data_type": _data_type(row), "text": row.text}
    return plain if row.codes is None else {**plain, "vq_code": row.codes.codes.reshape(-1)}


def _rows_with_images(
    rows: Iterator[PairRow], shard: str, draft: Draft, tally: Tally
) -> Iterator[dict[str, Any]]:
    """Yield the rows, with each image in a file of its own that is numbered by its row."""
    for number, row in enumerate(rows):
        plain = {"data_type": _data_type(row), "text": row.text}
        if row.medium is not None:
            if row.medium not in row.raw:
                problem = f"{row.key!r} has no medium {row.medium!r}"
                tally.skip(row.key, SampleError("missing media", problem))
                continue
            path = draft.file(shard, f"{number:06d}.{row.medium.rpartition('.')[2]}")
            path.write_bytes(row.raw[row.medium])
            plain["image_path"] = path.name
        tally.num_kept += 1
        yield plain


def _records(path: Path, role: str) -> Iterator[Record]:
    for number, fields in enumerate(table_rows(path, role)):
        yield Record(
            key=f"{path.stem}-{number:08d}",
            text=fields["text"],
            codes=tuple(_codes_of(fields)),
            media=tuple(_images_of(fields, path.parent)),
        )


def _codes_of(fields: Mapping[str, Any]) -> Iterator[Any]:
    for name in CODE_FIELDS:
        value = fields.get(name, NONE)
        if value != NONE:
            yield np.array(orjson.loads(value) if isinstance(value, str) else value, np.int64)


def _images_of(fields: Mapping[str, Any], folder: Path) -> Iterator[str]:
    if "image_path" in fields:
        yield xxhash.xxh3_64_hexdigest((folder / fields["image_path"]).read_bytes())
