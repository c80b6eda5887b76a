"""Reads LitData's chunks of tokens: those that an export wrote; `litdata` states the bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from shardmill.errors import FormatError
from shardmill.formats.litdata import INDEX_NAME, NUMBERS
from shardmill.formats.reader import Aspect, Part, Record, stamp
from shardmill.io.jsontext import read_json
from shardmill.io.megatron import map_bytes
from shardmill.model.space import TokenSpace
from shardmill.model.tokenrow import TokenRow

DTYPES = {number: np.dtype(name) for name, number in NUMBERS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class LitDataReader:
    """The folder of an index.json; each row is a record."""

    dir: str
    space: TokenSpace | None = None

    def holds(self) -> frozenset[Aspect]:
        """Return tokens and the bounds of rows."""
        return frozenset({"tokens", "documents"})

    def token_space(self) -> TokenSpace | None:
        """Return the space that was given."""
        return self.space

    def parts(self) -> Iterator[Part]:
        """Yield a part for each chunk."""
        for number, chunk in enumerate(self._index()["chunks"]):
            yield Part(input={"chunk": number}, num_records=int(chunk["chunk_size"]), passed={})

    def read(self, input: Mapping[str, Any]) -> Iterator[Record]:
        """Yield the rows of a chunk."""
        index = self._index()
        chunk, dtype = index["chunks"][input["chunk"]], _dtype(index, Path(self.dir))
        path = Path(self.dir) / chunk["filename"]
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
