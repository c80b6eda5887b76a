"""Tokens or packs as a Hugging Face data set, a row each; `tables` states the files.

key         string         the sample's key; of a pack that of its first sample
input_ids   uint16, int32  list
loss_mask   uint8          list, 1 where a token is trained on
labels      int32          list, the id where it is trained on, else -100 (not shifted)
modality    uint8          list, 0 text, 1 image, 2 video, 3 audio
lengths     int32          list, the lengths of a pack's documents; a row's own length
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ConfigError, need
from shardmill.formats.format import ExportInput, Format, Piece, Place, Slice
from shardmill.formats.huggingface.tables import (
    Features,
    TableFile,
    count_rows,
    describe_arrow,
    describe_files,
    list_array,
    schema_of,
    sequence,
    string_array,
    table_rows,
    value,
    write_table,
)
from shardmill.formats.packed import cut_document
from shardmill.formats.reader import Aspect, Record
from shardmill.formats.rows import TokenBatch, token_batches
from shardmill.model.manifest import Manifest, ShardEntry
from shardmill.model.sample import SEGMENT_KINDS
from shardmill.model.stage import Draft, Tally
from shardmill.model.tokenrow import MediaSpan, TokenRow, no_spans, spans_of

NO_LABEL = -100
ASPECTS: dict[str, Aspect] = {
    "key": "keys",
    "input_ids": "tokens",
    "loss_mask": "loss",
    "labels": "loss",
    "modality": "modality",
    "lengths": "documents",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HuggingFaceFormat(Format):
    """A table in Arrow or parquet files, with these columns in this order."""

    files: TableFile = "arrow"
    columns: tuple[str, ...] = ("key", "input_ids", "loss_mask", "modality", "lengths")

    def __post_init__(self) -> None:
        unknown = [name for name in self.columns if name not in ASPECTS]
        if unknown or not self.columns or len(set(self.columns)) != len(self.columns):
            raise ConfigError(
                f"columns are some of {', '.join(ASPECTS)}, each once; got {list(self.columns)}"
            )

    def plan(self, source: ExportInput, ranges: Sequence[tuple[Slice, ...]]) -> Iterator[Place]:
        """Yield nothing for each unit, after a look at the space."""
        source.space()
        yield from ({} for _ in ranges)

    def write(self, source: ExportInput, piece: Piece, draft: Draft, tally: Tally) -> None:
        """Write the rows of a unit as one table."""
        schema = schema_of(self._features(source))
        batches = (self._table(batch, schema) for batch in token_batches(source, piece.slices))
        write_table(draft.file(piece.name, self.files), self.files, schema, batches)
        tally.num_in += piece.num_rows
        tally.num_kept += piece.num_rows
        draft.finish(piece.name, num_samples=piece.num_rows)

    def finish(self, source: ExportInput, manifest: Manifest, out_dir: Path) -> None:
        """Write what `load_from_disk` or `load_dataset` begins with."""
        if self.files == "arrow":
            describe_arrow(out_dir, manifest, self._features(source))
        else:
            describe_files(out_dir, self.files)

    def holds(self, folder: Path) -> frozenset[Aspect]:
        """Return the aspects that the columns have."""
        return frozenset(ASPECTS[name] for name in self.columns)

    def records(self, folder: Path, shard: ShardEntry) -> Iterator[Record]:
        """Yield the rows of a file."""
        path = folder / shard.files[self.files].path
        for number, fields in enumerate(table_rows(path, self.files)):
            yield _token_record(fields, number)

    def count(self, folder: Path, shard: ShardEntry) -> int:
        """Return the rows of a file; of packs they are fewer than the documents."""
        return count_rows(folder / shard.files[self.files].path, self.files)

    def _features(self, source: ExportInput) -> Features:
        features = {
            "key": value("string"),
            "input_ids": sequence(source.space().dtype.name),
            "loss_mask": sequence("uint8"),
            "labels": sequence("int32"),
            "modality": sequence("uint8"),
            "lengths": sequence("int32"),
        }
        return {name: features[name] for name in self.columns}

    def _table(self, batch: TokenBatch, schema: Any) -> Any:
        """Return the rows as an Arrow record batch; ids lie where they are mapped."""
        pa = need("pyarrow", extra="tables")
        return pa.record_batch([_column(batch, name) for name in self.columns], schema=schema)


def _column(batch: TokenBatch, name: str) -> Any:
    if name == "key":
        keys = batch.keys
        return string_array([keys[first].encode() for first in batch.members[:-1].tolist()])
    if name == "lengths":
        return list_array(batch.sequence_lengths, batch.members)
    if name == "labels":
        ids = batch.ids.astype(np.int32)
        return list_array(np.where(batch.loss_mask() > 0, ids, NO_LABEL), batch.bounds)
    tokens: dict[str, Any] = {"loss_mask": batch.loss_mask, "modality": batch.modality}
    values: NDArray[Any] = batch.ids if name == "input_ids" else tokens[name]()
    return list_array(values, batch.bounds)


def _token_record(fields: Mapping[str, Any], number: int) -> Record:
    ids = np.array(fields.get("input_ids", ()), np.int64)
    key = fields.get("key") or f"{number:08d}"
    ends = np.cumsum(fields.get("lengths", [len(ids)])).tolist()
    row = TokenRow(key=key, ids=ids, loss=_loss_of(fields), media=_media_of(fields, ends))
    # Only the key of a pack's first document is in the table.
    keys, starts = [key] + [""] * (len(ends) - 1), [0, *ends[:-1]]
    rows = (cut_document(row, name, a, b) for name, a, b in zip(keys, starts, ends))
    return Record(key=key, rows=tuple(rows))


def _loss_of(fields: Mapping[str, Any]) -> Any:
    if "loss_mask" in fields:
        return spans_of(np.array(fields["loss_mask"], bool))
    if "labels" in fields:
        return spans_of(np.array(fields["labels"]) >= 0)
    return no_spans()


def _media_of(fields: Mapping[str, Any], ends: list[int]) -> tuple[MediaSpan, ...]:
    """Return the runs of one modality in one document."""
    modality = np.array(fields.get("modality", ()), np.int64)
    edges = np.flatnonzero(np.diff(modality, prepend=0, append=0)).tolist()
    return tuple(
        MediaSpan(name="", kind=SEGMENT_KINDS[modality[a]], position=a, num_tokens=b - a)
        for a, b in pairwise(sorted({*edges, *ends}))
        if b <= len(modality) and modality[a]
    )
