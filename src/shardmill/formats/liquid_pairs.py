"""Liquid's rows for map-style data sets, as jsonl: a picture by its codes, or by its file.

    {"data_type": "image_text", "text": T, "vq_code": [12, 7, ...]}           with codes
    {"data_type": "image_text", "text": T, "image_path": "00000.000042.jpg"}  without
    {"data_type": "text_pretrain", "text": T}

Without codes the pictures are written beside the jsonl, and their paths count from its folder.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from shardmill.errors import SampleError
from shardmill.formats.contract import Format, Piece
from shardmill.formats.hf_files import describe_files
from shardmill.formats.inputs import ExportInput
from shardmill.formats.pairrows import PairRow, pair_rows
from shardmill.model.manifest import Manifest
from shardmill.model.stage import Draft, Tally

ROLE = "jsonl"
LINE = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE


@dataclass(frozen=True, slots=True, kw_only=True)
class LiquidPairsFormat(Format):
    """One line of JSON a sample."""

    def write(self, source: ExportInput, piece: Piece, draft: Draft, tally: Tally) -> None:
        """Write the rows of a unit, and their pictures if there are no codes."""
        with draft.file(piece.name, ROLE).open("wb", buffering=1 << 20) as file:
            for number, row in enumerate(pair_rows(source, piece, tally)):
                try:
                    plain = _plain(row, piece.name, number, draft)
                except SampleError as error:
                    tally.skip(row.key, error)
                    continue
                file.write(orjson.dumps(plain, option=LINE))
                tally.num_kept += 1
        draft.finish(piece.name, num_samples=tally.num_kept)

    def finish(self, source: ExportInput, manifest: Manifest, out_dir: Path) -> None:
        """Write the card that names the files."""
        describe_files(out_dir, ROLE)


def _plain(row: PairRow, shard: str, number: int, draft: Draft) -> dict[str, Any]:
    if row.medium is None:
        return {"data_type": "text_pretrain", "text": row.text}
    if row.codes is not None:
        return {"data_type": "image_text", "text": row.text, "vq_code": row.codes.codes}
    if row.medium not in row.raw:
        raise SampleError("missing media", f"{row.key!r} has no medium {row.medium!r}")
    role = f"{number:06d}.{row.medium.rpartition('.')[2]}"
    path = draft.file(shard, role)
    path.write_bytes(row.raw[row.medium])
    return {"data_type": "image_text", "text": row.text, "image_path": path.name}
