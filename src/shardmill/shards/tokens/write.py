"""Writes token shards: ids stream into `.bin`, the columns are kept until the shard is closed.

Where a file holds the very bytes already, it gets a second name, and no id is written.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ConfigError, FormatError, SampleError
from shardmill.model.codec import to_plain
from shardmill.model.sample import Origin
from shardmill.model.space import TokenSpace
from shardmill.model.tokenrow import MEDIA_COLUMNS, MODALITIES, MediaColumns, MediaSpan, TokenRow
from shardmill.shards.arrays import (
    KeyList,
    NumberedKeys,
    encoded,
    narrow_bounds,
    narrow_column,
    pack_strings,
    write_arrays,
)
from shardmill.shards.tokens.ids import SPANS_FORMAT, block_sums, write_megatron_index
from shardmill.storage.files import link_or_copy

MAX_ROW_TOKENS = 2**31 - 1


def _numbers() -> array[int]:
    return array("q")


def _columns() -> dict[str, array[int]]:
    return {name: array("q") for name in (*MEDIA_COLUMNS, "grid")}


@dataclass(slots=True)
class TokenWriter:
    """Appends rows to the three files of a shard; use it as a context manager.

    `file` gives the path of a role, such as `lambda role: draft.file(unit.name, role)`. `about` is
    kept in the meta, for people who look at the shard later. `ids_file` is a file that holds the
    ids of all rows that will come, and nothing else.
    """

    file: Callable[[str], Path]
    space: TokenSpace
    about: Mapping[str, Any] = field(default_factory=dict)
    ids_file: Path | None = None
    num_rows: int = 0
    num_tokens: int = 0
    _bin: BinaryIO | None = None
    _lengths: array[int] = field(default_factory=_numbers)
    _documents: array[int] = field(default_factory=_numbers)
    _keys: KeyList = field(default_factory=KeyList)
    _num_loss: array[int] = field(default_factory=_numbers)
    _loss: array[int] = field(default_factory=_numbers)
    _num_media: array[int] = field(default_factory=_numbers)
    _visual: array[int] = field(default_factory=_numbers)
    _fixed: array[int] = field(default_factory=_numbers)
    _media: dict[str, array[int]] = field(default_factory=_columns)
    _media_names: dict[str, int] = field(default_factory=dict)
    _files: dict[tuple[str, str], int] = field(default_factory=dict)
    _origin_file: array[int] = field(default_factory=_numbers)
    _origin_row: array[int] = field(default_factory=_numbers)
    _origin_names: dict[int, bytes] = field(default_factory=dict)

    def __enter__(self) -> TokenWriter:
        if self.ids_file is None:
            self._bin = self.file("bin").open("wb")
        else:
            link_or_copy(self.ids_file, self.file("bin"))
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self._bin is not None:
            self._bin.close()
        if kind is None:
            self._check_ids_file()
            self._write_tables()

    def append(self, row: TokenRow) -> None:
        """Add one row."""
        if len(row.ids) > MAX_ROW_TOKENS:
            raise SampleError("too long", f"{len(row.ids)} tokens do not fit into one row")
        self._write_ids(row.ids)
        self._lengths.append(len(row.ids))
        if not row.continues:
            self._documents.append(self.num_rows)
        self._keys.append(row.key)
        self._num_loss.append(len(row.loss))
        self._loss.extend(row.loss.ravel().tolist())
        self._num_media.append(len(row.media))
        self._visual.append(row.num_visual)
        self._fixed.append(row.num_fixed)
        for span in row.media:
            self._append_medium(span)
        self._append_origin(row.origin)
        self.num_rows += 1

    def append_texts(
        self,
        ids: NDArray[Any],
        lengths: NDArray[Any],
        keys: Sequence[str] | NumberedKeys,
        origin: Origin,
        rows: Sequence[int] | NDArray[np.int64],
        continues: NDArray[np.bool_] | None = None,
        media: MediaColumns | None = None,
    ) -> None:
        """Add many rows at once: all their ids, all trained on, all from one file.

        `rows` are the row numbers in the file of `origin`; `continues` marks the rows that go on
        with the one before; without `media` they are plain texts.
        """
        count = len(keys)
        self._write_ids(ids)
        as_int64 = np.ascontiguousarray(lengths, np.int64)
        self._lengths.frombytes(as_int64.tobytes())
        starts = np.arange(count) if continues is None else np.flatnonzero(~continues)
        self._documents.frombytes((starts + self.num_rows).astype(np.int64).tobytes())
        self._keys.extend(keys)
        filled = as_int64[as_int64 > 0]
        self._num_loss.frombytes((as_int64 > 0).astype(np.int64).tobytes())
        self._loss.frombytes(np.stack([np.zeros_like(filled), filled], axis=1).tobytes())
        self._append_media(MediaColumns.none(count) if media is None else media)
        file = self._file_number(origin)
        self._origin_file.frombytes(np.full(count, file, np.int64).tobytes())
        self._origin_row.frombytes(np.array(rows, np.int64).tobytes())
        self.num_rows += count

    def _write_ids(self, ids: NDArray[Any]) -> None:
        lowest = int(ids.min()) if len(ids) and ids.dtype.kind != "u" else 0
        if lowest < 0 or int(ids.max(initial=0)) >= self.space.size:
            raise ConfigError(
                f"ids reach from {int(ids.min())} to {int(ids.max())}, the token space has "
                f"{self.space.size}: the tokenizer does not belong to this space"
            )
        if self._bin is not None:
            self._bin.write(np.ascontiguousarray(ids, self.space.dtype).data)
        self.num_tokens += len(ids)

    def _append_media(self, media: MediaColumns) -> None:
        self._num_media.frombytes(media.counts.tobytes())
        self._visual.frombytes(media.sums(media.columns["length"]).tobytes())
        length, before, after = (media.columns[name] for name in ("length", "before", "after"))
        self._fixed.frombytes(media.sums(length + before + after).tobytes())
        numbers = [self._media_names.setdefault(n, len(self._media_names)) for n in media.names]
        names = np.array(numbers, np.int64)[media.columns["name"]]
        for column in MEDIA_COLUMNS:
            values = names if column == "name" else media.columns[column]
            self._media[column].frombytes(values.astype(np.int64).tobytes())
        self._media["grid"].frombytes(media.grid.astype(np.int64).tobytes())

    def _append_medium(self, span: MediaSpan) -> None:
        name = self._media_names.setdefault(span.name, len(self._media_names))
        values = (span.position, span.num_tokens, span.before, span.after)
        for column, value in zip(MEDIA_COLUMNS, (*values, MODALITIES[span.kind], name)):
            self._media[column].append(value)
        self._media["grid"].extend(span.grid)

    def _append_origin(self, origin: Origin | None) -> None:
        self._origin_file.append(0 if origin is None else self._file_number(origin))
        row = 0 if origin is None else origin.row
        if isinstance(row, str) or row < 0:
            self._origin_names[self.num_rows] = encoded(str(row))
            row = 0
        self._origin_row.append(row)

    def _file_number(self, origin: Origin) -> int:
        return self._files.setdefault((origin.source, origin.path), len(self._files) + 1)

    def _check_ids_file(self) -> None:
        if self.ids_file is None:
            return
        num_bytes, wanted = (
            self.ids_file.stat().st_size,
            self.num_tokens * self.space.dtype.itemsize,
        )
        if num_bytes != wanted:
            raise FormatError(f"has {num_bytes} bytes, its rows take {wanted}", path=self.ids_file)

    def _write_tables(self) -> None:
        lengths = _int64(self._lengths)
        with self.file("idx").open("wb") as file:
            write_megatron_index(file, self.space.dtype, lengths, _int64(self._documents))
        with self.file("spans").open("wb") as file:
            write_arrays(file, SPANS_FORMAT, self._arrays(), self._meta())

    def _arrays(self) -> dict[str, NDArray[Any]]:
        loss = _int64(self._loss).reshape(-1, 2)
        narrow = {
            "num_visual": _int64(self._visual),
            "num_fixed": _int64(self._fixed),
            "loss_start": loss[:, 0],
            "loss_length": loss[:, 1],
            **{f"media_{name}": _int64(self._media[name]) for name in MEDIA_COLUMNS},
            "media_grid": _int64(self._media["grid"]).reshape(-1, 3),
            "origin_file": _int64(self._origin_file),
            "origin_row": _int64(self._origin_row),
            "origin_source": np.array([self._sources[source] for source, _ in self._files], int),
        }
        names = self._origin_names
        return {
            **{name: narrow_column(column) for name, column in narrow.items()},
            "loss_bounds": narrow_bounds(_int64(self._num_loss)),
            "media_bounds": narrow_bounds(_int64(self._num_media)),
            "ids_sums": block_sums(self.file("bin")),
            **self._keys.arrays(),
            **pack_strings("origin_path", [encoded(path) for _, path in self._files]),
            **pack_strings(
                "origin_name", [names.get(i, b"") for i in range(self.num_rows if names else 0)]
            ),
        }

    @property
    def _sources(self) -> dict[str, int]:
        names = dict.fromkeys(source for source, _ in self._files)
        return {name: number for number, name in enumerate(names)}

    def _meta(self) -> dict[str, Any]:
        return {
            "num_media": len(self._media["position"]),
            "num_loss": len(self._loss) // 2,
            "space": to_plain(self.space),
            "media_names": list(self._media_names),
            "sources": list(self._sources),
            "about": dict(self.about),
        }


def _int64(values: array[int]) -> NDArray[np.int64]:
    return np.frombuffer(values, np.int64) if len(values) else np.empty(0, np.int64)
