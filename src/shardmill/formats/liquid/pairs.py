"""Liquid's rows for map-style data sets, as jsonl: an image by its codes, or by its file.

    {"data_type": "image_text", "text": T, "vq_code": [12, 7, ...]}           with codes
    {"data_type": "image_text", "text": T, "image_path": "00000.000042.jpg"}  without
    {"data_type": "text_pretrain", "text": T}

Without codes the images are written beside the jsonl, and their paths count from its folder.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from shardmill.errors import SampleError
from shardmill.formats.format import ExportInput, Format, Piece, Place, Slice
from shardmill.formats.huggingface.format import describe_files
from shardmill.formats.liquid.columns import data_types_json
from shardmill.formats.liquid.rows import PairBatch, PairRow, iter_pairs, pair_batches
from shardmill.model.manifest import Manifest
from shardmill.model.stage import Draft, Tally
from shardmill.shards.weave import (
    Column,
    json_object,
    number_lists,
    quoted_texts,
    texts,
    write_rows,
)
from shardmill.storage.background import Room, in_turns

ROLE = "jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class LiquidPairsFormat(Format):
    """One line of JSON a sample."""

    def plan(self, source: ExportInput, ranges: Sequence[tuple[Slice, ...]]) -> Iterator[Place]:
        """Yield nothing for each unit of samples."""
        source.check_samples()
        yield from ({} for _ in ranges)

    def write(self, source: ExportInput, piece: Piece, draft: Draft, tally: Tally) -> None:
        """Write the rows of a unit, and their images if there are no codes."""
        path = draft.file(piece.name, ROLE)
        if source.codes is None:
            with path.open("wb", buffering=1 << 20) as file:
                file.writelines(_lines_with_images(source, piece, draft, tally))
        else:
            batches, rooms = pair_batches(source, piece, tally, None), in_turns(Room)
            write_rows(path, (_coded_lines(batch, next(rooms)) for batch in batches))
        draft.finish(piece.name, num_samples=tally.num_kept)

    def finish(self, source: ExportInput, manifest: Manifest, out_dir: Path) -> None:
        """Write the card that names the files."""
        describe_files(out_dir, ROLE)


def _coded_lines(batch: PairBatch, room: Room) -> list[Column]:
    has_codes = (batch.num_codes > 0).astype(np.int64)
    opening, closing = texts([b"", b',"vq_code":[']), texts([b"}\n", b"]}\n"])
    fields = {"data_type": [data_types_json(batch)], "text": quoted_texts(batch.texts)}
    return [
        *json_object(fields, len(batch))[:-1],
        opening.taken(has_codes),
        number_lists(batch.codes, batch.code_bounds, room=room),
        closing.taken(has_codes),
    ]


def _lines_with_images(
    source: ExportInput, piece: Piece, draft: Draft, tally: Tally
) -> Iterator[bytes]:
    numbers = count()
    for part in piece.slices:
        name = source.shards[part.shard].name
        with source.sample_shard(part.shard) as shard:
            for row in iter_pairs(source, name, shard, range(part.start, part.stop), tally):
                try:
                    line = _line_with_image(row, piece.name, next(numbers), draft)
                except SampleError as error:
                    tally.skip(row.key, error)
                else:
                    tally.num_kept += 1
                    yield line


def _line_with_image(row: PairRow, shard: str, number: int, draft: Draft) -> bytes:
    if row.medium is None:
        return _line("text_pretrain", row.text)
    if row.medium not in row.raw:
        raise SampleError("missing media", f"{row.key!r} has no medium {row.medium!r}")
    role = f"{number:06d}.{row.medium.rpartition('.')[2]}"
    path = draft.file(shard, role)
    path.write_bytes(row.raw[row.medium])
    return _line("image_text", row.text, image_path=path.name)


def _line(data_type: str, text: str, **more: Any) -> bytes:
    plain = {"data_type": data_type, "text": text, **more}
    return orjson.dumps(plain, option=orjson.OPT_APPEND_NEWLINE)
