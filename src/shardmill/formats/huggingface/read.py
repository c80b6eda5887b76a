"""Reads tables that an export wrote: rows of tokens for Hugging Face, and rows of Liquid."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import xxhash

from shardmill.errors import FormatError, need
from shardmill.formats.packed import cut_document
from shardmill.formats.reader import Aspect, Part, Record, stamp
from shardmill.model.sample import SEGMENT_KINDS
from shardmill.model.space import TokenSpace
from shardmill.model.tokenrow import MediaSpan, TokenRow, no_spans, spans_of
from shardmill.shards.ledger import open_manifest

ASPECTS: dict[str, Aspect] = {
    "key": "keys",
    "input_ids": "tokens",
    "loss_mask": "loss",
    "labels": "loss",
    "modality": "modality",
    "lengths": "documents",
}
CODE_FIELDS = ("vqcode_512", "vqcode_multi768", "vq_code")
NO = "no"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTableReader:
    """Tokens in Arrow or parquet files, with some of the columns of `hf`."""

    dir: str
    files: str
    columns: tuple[str, ...]
    space: TokenSpace | None = None

    def holds(self) -> frozenset[Aspect]:
        """Return the aspects that the columns have."""
        return frozenset(ASPECTS[name] for name in self.columns)

    def token_space(self) -> TokenSpace | None:
        """Return the space that was given."""
        return self.space

    def parts(self) -> Iterator[Part]:
        """Yield a part for each file."""
        return _parts(self.dir, self.files)

    def read(self, input: Mapping[str, Any]) -> Iterator[Record]:
        """Yield the rows of a file."""
        for number, fields in enumerate(_rows(Path(input["path"]), self.files)):
            yield _token_record(fields, number)

    def inputs(self) -> Mapping[str, Any]:
        """Return size and time of the manifest."""
        path = Path(self.dir) / "manifest.json"
        return {str(path): stamp(path)}


@dataclass(frozen=True, slots=True, kw_only=True)
class LiquidReader:
    """Liquid's rows in Arrow, parquet or jsonl files."""

    dir: str
    files: str
    has_codes: bool = True

    def holds(self) -> frozenset[Aspect]:
        """Return text, and codes or images."""
        return frozenset({"text", "codes"} if self.has_codes else {"text", "media"})

    def token_space(self) -> None:
        """Return None: rows have no tokens."""

    def parts(self) -> Iterator[Part]:
        """Yield a part for each file."""
        return _parts(self.dir, self.files)

    def read(self, input: Mapping[str, Any]) -> Iterator[Record]:
        """Yield the rows of a file."""
        path = Path(input["path"])
        for number, fields in enumerate(_rows(path, self.files)):
            yield Record(
                key=f"{path.stem}-{number:08d}",
                text=fields["text"],
                codes=tuple(_codes_of(fields)),
                media=tuple(_images_of(fields, path.parent)),
            )

    def inputs(self) -> Mapping[str, Any]:
        """Return size and time of the manifest."""
        path = Path(self.dir) / "manifest.json"
        return {str(path): stamp(path)}


def _parts(folder: str, role: str) -> Iterator[Part]:
    for shard in open_manifest(Path(folder)).shards:
        path = Path(folder) / shard.files[role].path
        yield Part(input={"path": str(path)}, num_records=_count(path, role), passed={})


def _rows(path: Path, files: str) -> Iterator[dict[str, Any]]:
    if files == "jsonl":
        with path.open("rb") as lines:
            yield from map(orjson.loads, lines)
        return
    for batch in _batches(path, files):
        yield from batch.to_pylist()


def _count(path: Path, files: str) -> int:
    if files == "jsonl":
        with path.open("rb") as lines:
            return sum(1 for _ in lines)
    return sum(batch.num_rows for batch in _batches(path, files))


def _batches(path: Path, files: str) -> Iterator[Any]:
    pa = need("pyarrow", extra="tables")
    try:
        if files == "parquet":
            yield from need("pyarrow.parquet", extra="tables").ParquetFile(path).iter_batches(256)
        else:
            with pa.memory_map(str(path)) as file:
                for batch in pa.ipc.open_stream(file):
                    yield from (batch.slice(at, 256) for at in range(0, batch.num_rows, 256))
    except (pa.lib.ArrowException, OSError) as error:
        # Arrow raises OSError, without a number, for data that is cut off; a disk gives a number.
        if getattr(error, "errno", None) is not None:
            raise
        raise FormatError(f"cannot be read: {error}", path=path) from error


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


def _codes_of(fields: Mapping[str, Any]) -> Iterator[Any]:
    for name in CODE_FIELDS:
        value = fields.get(name, NO)
        if value != NO:
            yield np.array(orjson.loads(value) if isinstance(value, str) else value, np.int64)


def _images_of(fields: Mapping[str, Any], folder: Path) -> Iterator[str]:
    if "image_path" in fields:
        yield xxhash.xxh3_64_hexdigest((folder / fields["image_path"]).read_bytes())
