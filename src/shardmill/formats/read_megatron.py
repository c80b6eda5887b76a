"""Reads Megatron's indexed data sets: prefixes of `.bin` and `.idx`, each of them a part.

A Megatron document is a record, its sequences are the record's rows. Keys are the prefix's name and
the number of the document. Nothing says what is learned, so everything is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ConfigError, FormatError
from shardmill.formats.reader import Aspect, Part, Record, stamp
from shardmill.io.megatron import MegatronIndex, map_bytes, open_index
from shardmill.io.urls import expand
from shardmill.model.sample import Origin
from shardmill.model.space import TokenSpace
from shardmill.model.tokenrow import TokenRow


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronReader:
    """Prefixes by path (with or without suffix), folder, glob or braces."""

    files: tuple[str, ...]
    space: TokenSpace | None = None
    name: str = "megatron"

    def holds(self) -> frozenset[Aspect]:
        """Return tokens and the ends of documents."""
        return frozenset({"tokens", "documents"})

    def token_space(self) -> TokenSpace | None:
        """Return the space that was given."""
        return self.space

    def parts(self) -> Iterator[Part]:
        """Yield a part for each prefix."""
        for prefix in self.prefixes():
            opened = open_prefix(prefix)
            stamps = [stamp(path) for path in paths_of(prefix)]
            yield Part(
                input={"prefix": str(prefix), "stamps": stamps},  # type: ignore[dict-item]
                num_records=len(opened.documents),
                passed={},
            )

    def read(self, input: Mapping[str, Any]) -> Iterator[Record]:
        """Yield the documents of a prefix."""
        prefix = Path(input["prefix"])
        if [stamp(path) for path in paths_of(prefix)] != input["stamps"]:
            raise FormatError("was changed after it was listed", path=prefix)
        opened = open_prefix(prefix)
        for number, (first, last) in enumerate(opened.documents):
            key = f"{prefix.name.replace('.', '_')}-{number:08d}"
            origin = Origin(source=self.name, path=prefix.name, row=number)
            rows = tuple(
                _row(key, at - first, opened.ids(at), origin, is_more=at > first)
                for at in range(first, last)
            )
            yield Record(key=key, rows=rows)

    def ids_file(self, input: Mapping[str, Any]) -> Path | None:
        """Return the `.bin` if its sequences follow each other in it, in the dtype of the space."""
        opened = open_prefix(Path(input["prefix"]))
        is_same = self.space is not None and opened.index.dtype == self.space.dtype
        return opened.path if is_same and opened.has_no_gaps() else None

    def inputs(self) -> Mapping[str, Any]:
        """Return size and time of each file."""
        return {str(path): stamp(path) for p in self.prefixes() for path in paths_of(p)}

    def prefixes(self) -> list[Path]:
        """Return the prefixes in order, each once."""
        found: dict[Path, None] = {}
        for given in self.files:
            for name in expand(given) if not _is_prefix(given) else [given]:
                path = Path(name)
                indexes = sorted(path.glob("*.idx")) if path.is_dir() else [_idx(path)]
                if not indexes:
                    raise ConfigError(f"{path} holds no .idx files")
                found |= dict.fromkeys(index.with_suffix("") for index in indexes)
        return list(found)


@dataclass(frozen=True, slots=True, eq=False)
class OpenPrefix:
    """A mapped prefix; every sequence is checked against the file before it is read."""

    path: Path
    index: MegatronIndex
    data: NDArray[Any]

    @property
    def documents(self) -> list[tuple[int, int]]:
        """First and last sequence of each document; those without any are left out."""
        bounds = self.index.documents.tolist()
        return [(a, b) for a, b in pairwise(bounds) if b > a]

    def has_no_gaps(self) -> bool:
        """Say whether the sequences fill the file in their order."""
        num_bytes = self.index.lengths.astype(np.int64) * self.data.itemsize
        ends = np.cumsum(num_bytes)
        starts = ends - num_bytes
        is_filled = int(num_bytes.sum()) == self.data.nbytes and int(num_bytes.min(initial=0)) >= 0
        return is_filled and np.array_equal(starts, self.index.offsets)

    def ids(self, sequence: int) -> NDArray[Any]:
        """Return the ids of a sequence, mapped and not copied."""
        size = self.data.itemsize
        start, odd = divmod(int(self.index.offsets[sequence]), size)
        length = int(self.index.lengths[sequence])
        if odd or start < 0 or length < 0 or start + length > len(self.data):
            raise FormatError(
                f"sequence {sequence} has {length} ids at byte {start * size + odd}, the file has "
                f"{self.data.nbytes} bytes: it was cut off",
                path=self.path,
            )
        return self.data[start : start + length]


def open_prefix(prefix: Path) -> OpenPrefix:
    """Map a prefix whose document bounds rise from the first sequence to the last."""
    bin_path, idx_path = paths_of(prefix)
    for path in (bin_path, idx_path):
        if not path.is_file():
            raise FormatError("is missing: a prefix is a .bin and an .idx", path=path)
    index = open_index(idx_path)
    bounds = index.documents
    if len(bounds) and (
        bounds[0] != 0 or bounds[-1] != len(index.lengths) or bool((np.diff(bounds) < 0).any())
    ):
        raise FormatError("its document bounds do not rise over all sequences", path=idx_path)
    raw = map_bytes(bin_path)
    if len(raw) % index.dtype.itemsize:
        raise FormatError(f"has {len(raw)} bytes, which are no whole ids", path=bin_path)
    return OpenPrefix(bin_path, index, np.frombuffer(raw, index.dtype))


def paths_of(prefix: Path) -> tuple[Path, Path]:
    """Return the two files of a prefix."""
    return prefix.with_name(prefix.name + ".bin"), prefix.with_name(prefix.name + ".idx")


def _row(key: str, at: int, ids: NDArray[Any], origin: Origin, *, is_more: bool) -> TokenRow:
    loss = np.array([[0, len(ids)]] if len(ids) else np.empty((0, 2)), np.int64)
    name = f"{key}~{at}" if is_more else key
    return TokenRow(key=name, ids=ids, loss=loss, origin=origin, continues=is_more)


def _is_prefix(given: str) -> bool:
    return _idx(Path(given)).is_file()


def _idx(path: Path) -> Path:
    if path.suffix in (".idx", ".bin"):
        return path.with_suffix(".idx")
    return path.with_name(path.name + ".idx")
