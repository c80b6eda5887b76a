"""Hugging Face data sets on disk: tables in shards, and the small files that describe them.

    Arrow     shards/00000.arrow (IPC streams), state.json, dataset_info.json: `load_from_disk(OUT)`
    parquet   shards/00000.parquet, README.md with the list of files: `load_dataset(OUT)`
    jsonl     shards/00000.jsonl, README.md: `load_dataset(OUT)`

The features stand in dataset_info.json and in every table's schema. Lists are described as
`Sequence`, which old and new releases of `datasets` read. Parquet has pyarrow's own settings, which
are those of `datasets`: snappy, dictionaries, statistics.

`HuggingFaceFormat` writes tokens or packs, a row each, with these columns:

    keys        string         list, the keys of a pack's documents; a row's own key
    input_ids   uint16, int32  list
    loss_mask   uint8          list, 1 where a token is trained on
    labels      int32          list, the id where it is trained on, else -100 (not shifted)
    modality    uint8          list, 0 text, 1 image, 2 video, 3 audio
    lengths     int32          list, the lengths of a pack's documents; a row's own length
    media       string         JSON, where the tokens of each medium lie (see packed.py)

The functions below it write and read any such tables; Liquid's rows use them too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
import orjson
from numpy.typing import NDArray

from shardmill.errors import ConfigError, FormatError, SampleError, need
from shardmill.formats.format import Aspect, Format, Place, Record
from shardmill.formats.packed import cut_document, stored_media
from shardmill.formats.rows import ExportInput, Piece, Slice, TokenBatch, batch_media, token_batches
from shardmill.model.manifest import Manifest, ShardEntry
from shardmill.model.sample import SEGMENT_KINDS
from shardmill.model.stage import Draft, Tally
from shardmill.model.tokenrow import MediaSpan, TokenRow, no_spans, spans_of
from shardmill.storage.files import write_file
from shardmill.storage.text import dump_page

TableFile: TypeAlias = Literal["arrow", "parquet"]
Features: TypeAlias = Mapping[str, Any]
# Rows become Python lists when they are read: 256 of 8k tokens are 2 million numbers.
ROWS_AT_ONCE = 256
CARD = """---
configs:
- config_name: default
  data_files:
  - split: train
    path: {pattern}
---

Exported by shardmill.
"""
NO_LABEL = -100
ASPECTS: dict[str, Aspect] = {
    "keys": "keys",
    "input_ids": "tokens",
    "loss_mask": "loss",
    "labels": "loss",
    "modality": "modality",
    "lengths": "documents",
    "media": "spans",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HuggingFaceFormat(Format):
    """A table in Arrow or parquet files, with these columns in this order."""

    needs: ClassVar[tuple[str, ...]] = ("pyarrow",)

    files: TableFile = "arrow"
    columns: tuple[str, ...] = ("keys", "input_ids", "loss_mask", "modality", "lengths", "media")

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

    @property
    def keeps(self) -> frozenset[Aspect]:
        """What the columns have; a pack is a row, and spans tell the modality too."""
        found: set[Aspect] = {"packs", *(ASPECTS[name] for name in self.columns)}
        if "spans" in found:
            found.add("modality")
        return frozenset(found)

    def records(self, folder: Path, shard: ShardEntry) -> Iterator[Record]:
        """Yield the rows of a file."""
        path = folder / shard.files[self.files].path
        for number, fields in enumerate(table_rows(path, self.files)):
            try:
                yield _token_record(fields, number)
            except SampleError as problem:
                yield Record(key=f"{path.stem}-{number:08d}", problem=problem)

    def count(self, folder: Path, shard: ShardEntry) -> int:
        """Return the rows of a file; of packs they are fewer than the documents."""
        return count_rows(folder / shard.files[self.files].path, self.files)

    def _features(self, source: ExportInput) -> Features:
        features = {
            "keys": sequence("string"),
            "input_ids": sequence(source.space().dtype.name),
            "loss_mask": sequence("uint8"),
            "labels": sequence("int32"),
            "modality": sequence("uint8"),
            "lengths": sequence("int32"),
            "media": value("string"),
        }
        return {name: features[name] for name in self.columns}

    def _table(self, batch: TokenBatch, schema: Any) -> Any:
        """Return the rows as an Arrow record batch; ids lie where they are mapped."""
        pa = need("pyarrow", extra="tables")
        return pa.record_batch([_column(batch, name) for name in self.columns], schema=schema)


def _column(batch: TokenBatch, name: str) -> Any:
    if name == "keys":
        return list_array(string_array([key.encode() for key in batch.keys]), batch.members)
    if name == "media":
        return string_array([orjson.dumps(media) for media in batch_media(batch)])
    if name == "lengths":
        return list_array(number_array(batch.sequence_lengths), batch.members)
    if name == "labels":
        ids = batch.ids.astype(np.int32)
        labels = np.where(batch.loss_mask() > 0, ids, NO_LABEL)
        return list_array(number_array(labels), batch.bounds)
    tokens: dict[str, Any] = {"loss_mask": batch.loss_mask, "modality": batch.modality}
    values: NDArray[Any] = batch.ids if name == "input_ids" else tokens[name]()
    return list_array(number_array(values), batch.bounds)


def _token_record(fields: Mapping[str, Any], number: int) -> Record:
    ids = np.array(fields.get("input_ids", ()), np.int64)
    keys = fields.get("keys") or [f"{number:08d}"]
    # Without its lengths a pack is one document.
    ends = np.cumsum(fields.get("lengths", [len(ids)])).tolist()
    if "media" in fields:
        media = stored_media(orjson.loads(fields["media"]), len(ids))
    else:
        media = _media_of(fields, ends)
    row = TokenRow(key=keys[0], ids=ids, loss=_loss_of(fields), media=media)
    starts = [0, *ends[:-1]]
    if len(keys) != len(ends):
        keys = [keys[0]] + [""] * (len(ends) - 1)
    rows = (cut_document(row, str(name), a, b) for name, a, b in zip(keys, starts, ends))
    return Record(key=keys[0], rows=tuple(rows))


def _loss_of(fields: Mapping[str, Any]) -> Any:
    if "loss_mask" in fields:
        return spans_of(np.array(fields["loss_mask"], bool))
    if "labels" in fields:
        return spans_of(np.array(fields["labels"]) >= 0)
    return no_spans()


def _media_of(fields: Mapping[str, Any], ends: list[int]) -> tuple[MediaSpan, ...]:
    """Return the runs of one modality in one document.

    The table does not say where one image ends and the next begins, so neighbours are one run.
    With the modality 0 1 1 1 0 and documents that end at 3 and 5, edges are 1 and 4: the runs are
    1 .. 3 and 3 .. 4.
    """
    modality = np.array(fields.get("modality", ()), np.int64)
    edges = np.flatnonzero(np.diff(modality, prepend=0, append=0)).tolist()
    return tuple(
        MediaSpan(name="", kind=SEGMENT_KINDS[modality[a]], position=a, num_tokens=b - a)
        for a, b in pairwise(sorted({*edges, *ends}))
        if b <= len(modality) and modality[a]
    )


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


def number_array(values: NDArray[Any]) -> Any:
    """Return an Arrow array of numbers, without a copy.

    Here and below arrays are made of buffers: `pyarrow.array` loads pandas to look at what it is
    given, which takes longer than many an export.
    """
    pa = need("pyarrow", extra="tables")
    content = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, content])


def list_array(items: Any, bounds: NDArray[Any]) -> Any:
    """Return an Arrow array of lists: list i has the items bounds[i] to bounds[i + 1]."""
    pa = need("pyarrow", extra="tables")
    offsets = pa.py_buffer(bounds.astype(np.int32))
    kind = pa.list_(items.type)
    return pa.Array.from_buffers(kind, len(bounds) - 1, [None, offsets], children=[items])


def string_array(texts: Sequence[bytes]) -> Any:
    """Return an Arrow array of texts in UTF-8."""
    pa = need("pyarrow", extra="tables")
    bounds = np.cumsum([0, *map(len, texts)]).astype(np.int32)
    content = pa.py_buffer(b"".join(texts))
    return pa.StringArray.from_buffers(len(texts), pa.py_buffer(bounds), content)


def write_table(path: Path, kind: TableFile, schema: Any, batches: Iterable[Any]) -> None:
    """Write record batches to a file, in parquet as a row group each."""
    with path.open("wb") as sink, _writer(sink, kind, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


def _writer(sink: Any, kind: TableFile, schema: Any) -> Any:
    if kind == "arrow":
        return need("pyarrow.ipc", extra="tables").new_stream(sink, schema)
    return need("pyarrow.parquet", extra="tables").ParquetWriter(sink, schema)


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


def _arrow_type(pa: Any, feature: Mapping[str, Any]) -> Any:
    if feature["_type"] == "Sequence":
        return pa.list_(_arrow_type(pa, feature["feature"]))
    return getattr(pa, feature["dtype"])()


def table_rows(path: Path, role: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file as plain values; a broken one is a `FormatError`."""
    if role == "jsonl":
        with path.open("rb") as lines:
            yield from map(orjson.loads, lines)
        return
    for batch in _batches(path, role):
        yield from batch.to_pylist()


def count_rows(path: Path, role: str) -> int:
    """Return how many rows a file has."""
    if role == "jsonl":
        with path.open("rb") as lines:
            return sum(1 for _ in lines)
    return sum(batch.num_rows for batch in _batches(path, role))


def _batches(path: Path, role: str) -> Iterator[Any]:
    pa = need("pyarrow", extra="tables")
    try:
        if role == "parquet":
            parquet = need("pyarrow.parquet", extra="tables")
            yield from parquet.ParquetFile(path).iter_batches(ROWS_AT_ONCE)
        else:
            with pa.memory_map(str(path)) as file:
                for batch in pa.ipc.open_stream(file):
                    # Offsets in the file are addresses to Arrow: a wrong one ends the process.
                    batch.validate(full=True)
                    yield from _slices(batch)
    except (pa.lib.ArrowException, OSError) as error:
        # Arrow raises OSError, without a number, for data that is cut off; a disk gives a number.
        if getattr(error, "errno", None) is not None:
            raise
        raise FormatError(f"cannot be read: {error}", path=path) from error


def _slices(batch: Any) -> Iterator[Any]:
    """Yield a batch in small parts, so that few rows at a time become Python lists."""
    return (batch.slice(at, ROWS_AT_ONCE) for at in range(0, batch.num_rows, ROWS_AT_ONCE))
