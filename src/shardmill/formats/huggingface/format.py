"""Tokens or packs as a Hugging Face data set, a row each.

    key         string         the sample's key; of a pack that of its first sample
    input_ids   uint16, int32  list
    loss_mask   uint8          list, 1 where a token is trained on
    labels      int32          list, the id where it is trained on, else -100 (not shifted)
    modality    uint8          list, 0 text, 1 image, 2 video, 3 audio
    lengths     int32          list, the lengths of a pack's documents; a row's own length

`hf_files` states the files.

Hugging Face data sets on disk: tables in shards, and the small files that describe them.

    Arrow     shards/00000.arrow (IPC streams), state.json, dataset_info.json: `load_from_disk(OUT)`
    parquet   shards/00000.parquet, README.md with the list of files: `load_dataset(OUT)`
    jsonl     shards/00000.jsonl, README.md: `load_dataset(OUT)`

The features stand in dataset_info.json and in every table's schema. Lists are described as
`Sequence`, which old and new releases of `datasets` read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import orjson
from numpy.typing import NDArray

from shardmill.errors import ConfigError, need
from shardmill.formats.format import ExportInput, Format, Piece, Place, Slice
from shardmill.formats.huggingface.arrays import list_array, string_array
from shardmill.formats.huggingface.parquet import NO_LABEL, Column, chunks_of, write_parquet
from shardmill.formats.rows import Runs, TokenRows, token_rows
from shardmill.model.manifest import Manifest
from shardmill.model.stage import Draft, Tally
from shardmill.storage.atomic import open_to_write, write_file
from shardmill.storage.background import Room, Scribe, in_turns
from shardmill.storage.text import dump_page

TableFile: TypeAlias = Literal["arrow", "parquet"]
Features: TypeAlias = Mapping[str, Any]
CARD = """---
configs:
- config_name: default
  data_files:
  - split: train
    path: {pattern}
---

Exported by shardmill.
"""


def value(dtype: str) -> dict[str, Any]:
    """Return the feature of one value: "string", "int64", "uint16" ..."""
    return {"dtype": dtype, "_type": "Value"}


def sequence(dtype: str) -> dict[str, Any]:
    """Return the feature of a list of values."""
    return {"feature": value(dtype), "_type": "Sequence"}


def schema_of(features: Features) -> Any:
    """Return the Arrow schema of features, which it carries in its metadata."""
    pa = need("pyarrow", extra="tables")
    fields = [pa.field(name, _arrow_type(pa, feature)) for name, feature in features.items()]
    described = orjson.dumps({"info": {"features": features}})
    return pa.schema(fields, metadata={"huggingface": described})


def write_table(path: Path, kind: TableFile, schema: Any, batches: Iterable[Any]) -> int:
    """Write record batches to a file and return how many rows they have.

    Each is written while the next is made, and before the one after that.
    """
    num_rows = 0
    with (
        open_to_write(path) as sink,
        _writer(sink, kind, schema) as writer,
        Scribe() as scribe,
    ):
        for batch in batches:
            scribe.write(writer.write_batch, batch)
            num_rows += batch.num_rows
    return num_rows


def describe_arrow(out_dir: Path, manifest: Manifest, features: Features) -> None:
    """Write what `load_from_disk` begins with; state.json, which lists the files, comes last."""
    info = {
        "citation": "",
        "description": "",
        "features": features,
        "homepage": "",
        "license": "",
    }
    state: dict[str, Any] = {
        "_data_files": [{"filename": path} for path in _paths(manifest, "arrow")],
        "_fingerprint": manifest.units_digest[:16],
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": None,
    }
    write_file(out_dir / "dataset_info.json", orjson.dumps(info, option=orjson.OPT_INDENT_2))
    write_file(out_dir / "state.json", dump_page(state))


def describe_files(out_dir: Path, suffix: str) -> None:
    """Write the card that tells `load_dataset` which files are the data."""
    write_file(out_dir / "README.md", CARD.format(pattern=f"shards/*.{suffix}").encode())


def _paths(manifest: Manifest, role: str) -> list[str]:
    return [shard.files[role].path for shard in manifest.shards]


def _writer(sink: Any, kind: TableFile, schema: Any) -> Any:
    if kind == "arrow":
        return need("pyarrow.ipc", extra="tables").new_stream(sink, schema)
    parquet = need("pyarrow.parquet", extra="tables")
    return parquet.ParquetWriter(sink, schema, compression="none", use_dictionary=False)


def _arrow_type(pa: Any, feature: Mapping[str, Any]) -> Any:
    if feature["_type"] == "Sequence":
        return pa.list_(_arrow_type(pa, feature["feature"]))
    return getattr(pa, feature["dtype"])()


GROUP_TOKENS = 1 << 22  # the dictionary of ids is a small part of it
BATCH_TOKENS = 1 << 20  # few calls, and the masks of a batch still fit into a cache
TOKEN_COLUMNS: dict[str, tuple[str, Callable[[TokenRows, Room], NDArray[Any]]]] = {
    "loss_mask": ("uint8", lambda rows, room: painted(rows.part.loss_runs(), room)),
    "labels": ("int32", lambda rows, _: labels_of(rows)),
    "modality": ("uint8", lambda rows, room: painted(rows.part.modality_runs(), room)),
}
COLUMNS = ("key", "input_ids", *TOKEN_COLUMNS, "lengths")


@dataclass(frozen=True, slots=True, kw_only=True)
class HuggingFaceFormat(Format):
    """A table in Arrow or parquet files, with these columns in this order."""

    files: TableFile = "arrow"
    columns: tuple[str, ...] = ("key", "input_ids", "loss_mask", "modality", "lengths")

    def __post_init__(self) -> None:
        unknown = [name for name in self.columns if name not in COLUMNS]
        if unknown or not self.columns or len(set(self.columns)) != len(self.columns):
            raise ConfigError(
                f"columns are some of {', '.join(COLUMNS)}, each once; got {list(self.columns)}"
            )

    def plan(self, source: ExportInput, ranges: Sequence[tuple[Slice, ...]]) -> Iterator[Place]:
        """Yield nothing for each unit, after a look at the space."""
        source.space()
        yield from ({} for _ in ranges)

    def write(self, source: ExportInput, piece: Piece, draft: Draft, tally: Tally) -> None:
        """Write the rows of a unit as one table."""
        schema = schema_of(self._features(source))
        path = draft.file(piece.name, self.files)
        if self.files == "arrow":
            rows = token_rows(source, piece.slices, BATCH_TOKENS)
            rooms = in_turns(lambda: defaultdict[str, Room](Room))
            batches = (self._batch(part, schema, next(rooms)) for part in rows)
            write_table(path, self.files, schema, batches)
        else:
            rows = token_rows(source, piece.slices, GROUP_TOKENS)
            groups = ((len(part), chunks_of(part, self.columns)) for part in rows)
            write_parquet(path, self._parquet_columns(source), schema, groups)
        tally.num_in += piece.num_rows
        tally.num_kept += piece.num_rows
        draft.finish(piece.name, num_samples=piece.num_rows)

    def finish(self, source: ExportInput, manifest: Manifest, out_dir: Path) -> None:
        """Write what `load_from_disk` or `load_dataset` begins with."""
        if self.files == "arrow":
            describe_arrow(out_dir, manifest, self._features(source))
        else:
            describe_files(out_dir, self.files)

    def _features(self, source: ExportInput) -> Features:
        all_features = {
            "key": value("string"),
            "input_ids": sequence(source.space().dtype.name),
            "lengths": sequence("int32"),
            **{name: sequence(dtype) for name, (dtype, _) in TOKEN_COLUMNS.items()},
        }
        return {name: all_features[name] for name in self.columns}

    def _parquet_columns(self, source: ExportInput) -> list[Column]:
        return [
            Column(name, dtype="string", is_list=False)
            if feature["_type"] == "Value"
            else Column(name, feature["feature"]["dtype"])
            for name, feature in self._features(source).items()
        ]

    def _batch(self, rows: TokenRows, schema: Any, rooms: Mapping[str, Room]) -> Any:
        """Return a record batch whose masks lie in the room of their column."""
        pa = need("pyarrow", extra="tables")
        columns = [_column(name, rows, rooms[name]) for name in self.columns]
        return pa.record_batch(columns, schema=schema)


def painted(runs: Runs, room: Room) -> NDArray[np.uint8]:
    """Return the value of each token in turn, in `room`."""
    values = np.repeat(*runs)
    place = room.take(len(values))
    place[:] = values
    return place


def labels_of(rows: TokenRows) -> NDArray[np.int32]:
    """Return each id that is trained on, and -100 for the others."""
    return np.where(rows.part.loss_mask() > 0, rows.ids.astype(np.int32), np.int32(NO_LABEL))


def _column(name: str, rows: TokenRows, room: Room) -> Any:
    if name == "key":
        return string_array(rows.key_texts())
    if name == "lengths":
        return list_array(rows.part.lengths, rows.stored)
    values = rows.ids if name == "input_ids" else TOKEN_COLUMNS[name][1](rows, room)
    return list_array(values, rows.bounds)
