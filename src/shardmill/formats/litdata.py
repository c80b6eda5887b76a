"""LitData's token layout, which its `TokensLoader(block_size)` reads as one line of tokens a chunk.

    shards/00000.bin   u32 number of rows N, u32[N+1] bounds of the rows in bytes, and their ids
    index.json         {"chunks": [{"filename", "chunk_bytes", "chunk_size", "dim"}], "config": ...}

Blocks run across rows and nothing but tokens has a place: no loss, no media, no keys, no packs. The
bounds still tell the rows, which `PyTreeLoader` hands out one by one. Every token is learned.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import orjson

from shardmill.errors import ConfigError, FormatError
from shardmill.formats.format import (
    Aspect,
    Format,
    Part,
    Place,
    Reader,
    Record,
    file_inside,
    guarded,
    stamp,
)
from shardmill.formats.rows import ExportInput, Piece, Slice, token_batches
from shardmill.model.codec import PlaceName, digest
from shardmill.model.manifest import Manifest, ShardEntry
from shardmill.model.space import UINT16_SIZE, TokenSpace
from shardmill.model.stage import Draft, Tally
from shardmill.model.tokenrow import TokenRow
from shardmill.shards.tokens.ids import map_bytes
from shardmill.storage.files import write_file
from shardmill.storage.text import read_json

ROLE = "bin"
INDEX_NAME = "index.json"
MAX_BYTES = (1 << 32) - 1  # the bounds of rows are u32
# LitData's numbers of torch's dtypes; uint16 came late, so an older reader wants int32.
NUMBERS = {"uint16": 20, "int32": 15}
DTYPES = {number: np.dtype(name) for name, number in NUMBERS.items()}
# `torch.utils._pytree.treespec_dumps` of a sample that is one tensor.
SPEC = '[1, {"type": null, "context": null, "children_spec": []}]'


@dataclass(frozen=True, slots=True, kw_only=True)
class LitDataFormat(Format):
    """Chunks of tokens; `dtype` is the smallest that holds every id of the space, unless given."""

    dtype: Literal["smallest", "uint16", "int32"] = "smallest"

    @property
    def keeps(self) -> frozenset[Aspect]:
        """Tokens and the bounds of rows."""
        return frozenset({"tokens", "documents"})

    def plan(self, source: ExportInput, ranges: Sequence[tuple[Slice, ...]]) -> Iterator[Place]:
        """Yield sizes; refuses a vocabulary or chunks that are too large."""
        dtype = self._dtype(source)
        for number, slices in enumerate(ranges):
            num_rows = num_tokens = 0
            for batch in token_batches(source, slices):
                num_rows += batch.num_sequences
                num_tokens += batch.num_tokens
            if _header_bytes(num_rows) + num_tokens * dtype.itemsize > MAX_BYTES:
                raise ConfigError(
                    f"chunk {number} would have more than {MAX_BYTES:,} bytes: cut the rows with "
                    "--shards"
                )
            yield {"rows": num_rows, "tokens": num_tokens}

    def write(self, source: ExportInput, piece: Piece, draft: Draft, tally: Tally) -> None:
        """Write one chunk."""
        dtype, num_rows = self._dtype(source), piece.num_rows
        tally.num_in += num_rows
        bounds = [np.array([_header_bytes(num_rows)], np.int64)]
        with draft.file(piece.name, ROLE).open("wb") as file:
            # The bounds stand before the tokens, and are known after them.
            file.seek(_header_bytes(num_rows))
            for batch in token_batches(source, piece.slices):
                file.write(batch.ids.astype(dtype, copy=False).data)
                bounds.append(bounds[-1][-1] + batch.sequence_bounds[1:] * dtype.itemsize)
            file.seek(0)
            file.write(struct.pack("<I", num_rows))
            file.write(np.concatenate(bounds).astype("<u4").tobytes())
        tally.num_kept += num_rows
        tally.count("tokens", piece.place["tokens"])
        draft.finish(piece.name, num_samples=num_rows)

    def finish(self, source: ExportInput, manifest: Manifest, out_dir: Path) -> None:
        """Write index.json."""
        dtype = self._dtype(source)
        filled = [shard for shard in manifest.shards if shard.num_samples]
        index = {
            "chunks": [_chunk(shard, dtype.itemsize) for shard in filled],
            "config": self._config(dtype),
            # A time would make the bytes of every run differ, so that they could not be compared.
            "updated_at": digest([manifest.stage_digest, manifest.units_digest]),
        }
        write_file(out_dir / INDEX_NAME, orjson.dumps(index, option=orjson.OPT_SORT_KEYS))

    def open(self, folder: Path, space: TokenSpace | None) -> Reader:
        """Return the reader of an export."""
        return LitDataReader(dir=str(folder), space=space)

    def _dtype(self, source: ExportInput) -> np.dtype[Any]:
        space = source.space()
        if self.dtype == "uint16" and space.size > UINT16_SIZE:
            raise ConfigError(
                f"{source.folder} has a vocabulary of {space.size} ids, uint16 holds "
                f"{UINT16_SIZE}: export with dtype=int32"
            )
        return space.dtype if self.dtype == "smallest" else np.dtype(self.dtype)

    def _config(self, dtype: np.dtype[Any]) -> dict[str, Any]:
        return {
            "chunk_bytes": None,
            "chunk_size": None,
            "compression": None,
            "data_format": [f"no_header_tensor:{NUMBERS[dtype.name]}"],
            "data_spec": SPEC,
            "encryption": None,
            "item_loader": "TokensLoader",
        }


def _header_bytes(num_rows: int) -> int:
    return 4 + 4 * (num_rows + 1)


def _chunk(shard: ShardEntry, itemsize: int) -> dict[str, Any]:
    file = shard.files[ROLE]
    num_tokens = (file.num_bytes - _header_bytes(shard.num_samples)) // itemsize
    return {
        "filename": file.path,
        "chunk_bytes": file.num_bytes,
        "chunk_size": shard.num_samples,
        "dim": num_tokens,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class LitDataReader:
    """The folder of an index.json; each row is a record."""

    dir: PlaceName
    space: TokenSpace | None = None

    def holds(self) -> frozenset[Aspect]:
        """Return tokens and the bounds of rows."""
        return frozenset({"tokens", "documents"})

    def token_space(self) -> TokenSpace | None:
        """Return the space that was given."""
        return self.space

    @guarded
    def parts(self) -> Iterator[Part]:
        """Yield a part for each chunk."""
        for number, chunk in enumerate(self._index()["chunks"]):
            yield Part(input={"chunk": number}, num_records=int(chunk["chunk_size"]), passed={})

    @guarded
    def read(self, input: Mapping[str, Any]) -> Iterator[Record]:
        """Yield the rows of a chunk."""
        index = self._index()
        chunk, dtype = index["chunks"][input["chunk"]], _dtype(index, Path(self.dir))
        path = file_inside(self.dir, chunk["filename"])
        raw, count = map_bytes(path), int(chunk["chunk_size"])
        if len(raw) != chunk["chunk_bytes"] or int.from_bytes(raw[:4], "little") != count:
            raise FormatError(f"does not hold the {count} rows of its index", path=path)
        bounds = np.frombuffer(raw, "<u4", offset=4, count=count + 1).tolist()
        for number, (start, end) in enumerate(pairwise(bounds)):
            if not start <= end <= len(raw):
                raise FormatError(f"row {number} lies outside of the file", path=path)
            key = f"{path.stem}-{number:08d}"
            ids = np.frombuffer(raw[start:end], dtype)
            yield Record(key=key, rows=(TokenRow(key=key, ids=ids),))

    def inputs(self) -> Mapping[str, Any]:
        """Return size and time of the index."""
        path = Path(self.dir) / INDEX_NAME
        return {str(path): stamp(path)}

    def _index(self) -> dict[str, Any]:
        index = read_json(Path(self.dir) / INDEX_NAME)
        if not isinstance(index, dict) or "chunks" not in index or "config" not in index:
            raise FormatError("is not an index of LitData", path=Path(self.dir) / INDEX_NAME)
        return index


def _dtype(index: dict[str, Any], folder: Path) -> np.dtype[Any]:
    kind, _, number = str(index["config"]["data_format"][0]).partition(":")
    if kind != "no_header_tensor" or int(number) not in DTYPES:
        raise FormatError(f"holds {kind}:{number}, not tokens", path=folder / INDEX_NAME)
    return DTYPES[int(number)]
