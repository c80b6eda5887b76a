"""Hugging Face data sets on disk: tables in shards, and the small files that describe them.

    Arrow     shards/00000.arrow (IPC streams), state.json, dataset_info.json: `load_from_disk(OUT)`
    parquet   shards/00000.parquet, README.md with the list of files: `load_dataset(OUT)`
    jsonl     shards/00000.jsonl, README.md: `load_dataset(OUT)`

The features stand in dataset_info.json and in every table's schema. Lists are described as
`Sequence`, which old and new releases of `datasets` read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

import orjson

from shardmill.extras import need
from shardmill.io.atomic import write_file
from shardmill.io.jsontext import dump_page
from shardmill.io.pieces import open_to_write
from shardmill.io.scribe import Scribe
from shardmill.model.manifest import Manifest

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
