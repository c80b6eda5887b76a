"""Hugging Face data sets on disk: tables in shards, and the small files that describe them.

    Arrow     shards/00000.arrow (IPC streams), state.json, dataset_info.json: `load_from_disk(OUT)`
    parquet   shards/00000.parquet, README.md with the list of files: `load_dataset(OUT)`
    jsonl     shards/00000.jsonl, README.md: `load_dataset(OUT)`

The features stand in dataset_info.json and in every table's schema. Lists are described as
`Sequence`, which old and new releases of `datasets` read. Parquet has pyarrow's own settings, which
are those of `datasets`: snappy, dictionaries, statistics.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import orjson
from numpy.typing import NDArray

from shardmill.errors import FormatError, need
from shardmill.model.manifest import Manifest
from shardmill.storage.files import write_file
from shardmill.storage.text import dump_page

TableFile: TypeAlias = Literal["arrow", "parquet"]
Features: TypeAlias = Mapping[str, Any]
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


def list_array(values: NDArray[Any], bounds: NDArray[Any]) -> Any:
    """Return an Arrow array of lists: list i has the values bounds[i] to bounds[i + 1]."""
    pa = need("pyarrow", extra="tables")
    items, offsets = number_array(values), pa.py_buffer(bounds.astype(np.int32))
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
                    yield from _slices(batch)
    except (pa.lib.ArrowException, OSError) as error:
        # Arrow raises OSError, without a number, for data that is cut off; a disk gives a number.
        if getattr(error, "errno", None) is not None:
            raise
        raise FormatError(f"cannot be read: {error}", path=path) from error


def _slices(batch: Any) -> Iterator[Any]:
    """Yield a batch in small parts, so that few rows at a time become Python lists."""
    return (batch.slice(at, ROWS_AT_ONCE) for at in range(0, batch.num_rows, ROWS_AT_ONCE))
