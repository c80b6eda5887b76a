"""Token shards: Megatron's `.bin` and `.idx`, and beside them a `.spans` file that says the rest.

The spans file is an array container (`io.arrays`) of format "token-spans", with columns as narrow
as they can be (`io.columns`). For S rows, M media and L loss spans:

    num_visual, num_fixed     S    tokens inside media; the same with their delimiters
    loss_bounds               S+1  the loss spans of row i are loss_bounds[i] to loss_bounds[i+1]
    loss_start, loss_length   L    in tokens from the start of the row
    media_bounds              S+1
    media_position, media_length, media_before, media_after   M
    media_grid                M,3  (t, h, w)
    media_kind, media_name    M    modality number; index into meta["media_names"]
    key_*                          the keys (`io.keycolumn`)
    origin_file, origin_row   S    index into origin_path (0: no origin); row number in it
    origin_path_*, origin_source, origin_name_*   per file; `origin_name` for rows that are names

Meta: "num_media", "num_loss", "space" (the TokenSpace), "media_names", "sources", "about". Rows are
found without reading the others; every bound is checked against the file before it is used.

Token ids that lie in a store, read by ranges as if they were an array in memory.

Rows that are read one after the other come in blocks, with the next ones on their way; rows that
are read here and there come each by itself, or together if they were announced. At most a few
blocks are held.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ConfigError, FormatError
from shardmill.model.codec import from_plain
from shardmill.model.sample import SEGMENT_KINDS, Origin
from shardmill.model.space import TokenSpace
from shardmill.model.tokenrow import MediaSpan, TokenRow
from shardmill.shards.arrays import Arrays, open_arrays
from shardmill.shards.columns import KeyColumn, open_keys, open_strings, row_slice, wide_column
from shardmill.shards.tokens.megatron import map_bytes, open_index
from shardmill.storage.blob import RemoteBlob
from shardmill.storage.path import UrlPath

BLOCK_BYTES = 8 << 20
BLOCKS_HELD = 3
BLOCKS_AHEAD = 2
# A row that begins so close behind a recent one is read on: other workers take what lies between.
NEAR_BYTES = 1 << 20
NUM_RECENT = 4


class RemoteIds:
    """The ids of one `.bin` object; slices are arrays. Safe to use from several threads."""

    def __init__(self, blob: RemoteBlob, dtype: np.dtype[Any]) -> None:
        self._blob, self.dtype = blob, dtype
        self._lock = Lock()
        self._recent: deque[int] = deque(maxlen=NUM_RECENT)
        self._blocks: OrderedDict[int, memoryview] = OrderedDict()

    @property
    def itemsize(self) -> int:
        """Bytes of an id."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all ids."""
        return self._blob.num_bytes

    @property
    def size(self) -> int:
        """The number of ids."""
        return self.nbytes // self.itemsize

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, wanted: slice) -> NDArray[Any]:
        first, last, step = wanted.indices(self.size)
        if step != 1:
            raise ValueError("ids in a store are read without a step")
        start, end = first * self.itemsize, max(first, last) * self.itemsize
        content = self._blob.take_announced(start, end - start)
        if content is None:
            content = self._read(start, end)
        return np.frombuffer(content, self.dtype)

    def prefetch(self, places: Sequence[tuple[int, int]]) -> None:
        """Say that these rows, as (first id, number of ids), will be read soon."""
        size = self.itemsize
        ranges = [(first * size, length * size) for first, length in places]
        self._blob.prefetch([r for r in ranges if not self._holds(*r)])

    def _read(self, start: int, end: int) -> memoryview:
        if end == start:
            return memoryview(b"")
        if not self._goes_on(start, end):
            return self._blob.view_all([(start, end - start)])[0]
        first, last = start // BLOCK_BYTES, (end - 1) // BLOCK_BYTES
        blocks = [self._block(number) for number in range(first, last + 1)]
        if len(blocks) == 1:
            return blocks[0][start - first * BLOCK_BYTES : end - first * BLOCK_BYTES]
        joined = memoryview(b"".join(blocks))
        return joined[start - first * BLOCK_BYTES : end - first * BLOCK_BYTES]

    def _goes_on(self, start: int, end: int) -> bool:
        with self._lock:
            found = any(0 <= start - recent <= NEAR_BYTES for recent in self._recent)
            self._recent.append(end)
            return found or start // BLOCK_BYTES in self._blocks

    def _holds(self, start: int, length: int) -> bool:
        with self._lock:
            return start // BLOCK_BYTES in self._blocks

    def _block(self, number: int) -> memoryview:
        with self._lock:
            if number not in self._blocks:
                (self._blocks[number],) = self._blob.view_all([self._place(number)])
                while len(self._blocks) > BLOCKS_HELD:
                    self._blocks.popitem(last=False)
            self._blocks.move_to_end(number)
            for coming in range(number + 1, number + 1 + BLOCKS_AHEAD):
                if coming * BLOCK_BYTES < self.nbytes and coming not in self._blocks:
                    self._blob.prefetch([self._place(coming)])
            return self._blocks[number]

    def _place(self, number: int) -> tuple[int, int]:
        start = number * BLOCK_BYTES
        return start, min(BLOCK_BYTES, self.nbytes - start)


FORMAT = "token-spans"
MAX_ENTRIES = 1 << 40
ROLES = ("bin", "idx", "spans")
ROW_COLUMNS = ("num_visual", "num_fixed", "origin_file", "origin_row")
LOSS_COLUMNS = ("start", "length")
MEDIA_COLUMNS = ("position", "length", "before", "after", "kind", "name")


@dataclass(frozen=True, slots=True, eq=False)
class TokenShard:
    """A mapped shard; ids and spans of a row are views into the files."""

    path: Path
    space: TokenSpace
    lengths: NDArray[np.int32]
    offsets: NDArray[np.int64]
    documents: NDArray[np.int64]
    data: NDArray[Any] | RemoteIds
    spans: Arrays
    keys: KeyColumn
    columns: Mapping[str, NDArray[Any]]

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[TokenRow]:
        return (self[row] for row in range(len(self)))

    def __getitem__(self, row: int) -> TokenRow:
        return TokenRow(
            key=self.keys[row],
            ids=self.ids(row),
            loss=self.loss(row),
            media=self.media(row),
            origin=self.origin(row),
            continues=self.continues(row),
        )

    @property
    def num_visual(self) -> NDArray[Any]:
        """The tokens inside media, of each row."""
        return self.columns["num_visual"]

    @property
    def num_fixed(self) -> NDArray[Any]:
        """The tokens of media with their delimiters, of each row."""
        return self.columns["num_fixed"]

    @property
    def source_names(self) -> list[str]:
        """The names that `source_numbers` counts in; the first is "", of rows without an origin."""
        return ["", *self.spans.meta["sources"]]

    @property
    def source_numbers(self) -> NDArray[np.int64]:
        """The number of the source of each row, 0 where a row has no origin."""
        of_file = np.append(0, self.columns["origin_source"].astype(np.int64) + 1)
        numbers: NDArray[np.int64] = of_file[self.columns["origin_file"]]
        return numbers

    @property
    def sources(self) -> list[str]:
        """The name of the source of each row, "" where a row has no origin."""
        names = self.source_names
        return [names[number] for number in self.source_numbers.tolist()]

    def ids(self, row: int) -> NDArray[Any]:
        """Return the ids of a row, mapped and not copied."""
        start, length = self.place(row)
        return self.data[start : start + length]

    def place(self, row: int) -> tuple[int, int]:
        """Return the number of a row's first id, and how many it has."""
        itemsize = self.data.itemsize
        start, odd = divmod(int(self.offsets[row]), itemsize)
        length = int(self.lengths[row])
        if start < 0 or length < 0 or odd or start + length > self.data.size:
            raise FormatError(
                f"row {row} claims {length} ids at byte {start * itemsize + odd} of a file with "
                f"{self.data.nbytes} bytes",
                path=self.path.with_suffix(".idx"),
            )
        return start, length

    def prefetch(self, rows: Sequence[int]) -> None:
        """Say that these rows will be read soon, so that a store is asked for all at once."""
        if isinstance(self.data, RemoteIds):
            self.data.prefetch([self.place(row) for row in rows])

    def loss(self, row: int) -> NDArray[np.int64]:
        """Return the (start, length) of each run of tokens that is trained on."""
        start, length = (self.columns[f"loss_{name}"] for name in LOSS_COLUMNS)
        mine = row_slice(self.spans, "loss_bounds", row, len(self), len(start))
        spans = np.stack([start[mine], length[mine]], axis=1).astype(np.int64)
        if len(spans) and int(spans.sum(axis=1).max()) > int(self.lengths[row]):
            raise FormatError(f"row {row} has loss beyond its end", path=self.spans.path)
        return spans

    def media(self, row: int) -> tuple[MediaSpan, ...]:
        """Return the media of a row in order."""
        grid = self.columns["media_grid"]
        mine = row_slice(self.spans, "media_bounds", row, len(self), len(grid))
        values = {name: self.columns[f"media_{name}"][mine].tolist() for name in MEDIA_COLUMNS}
        return tuple(
            self._medium(row, {name: values[name][i] for name in MEDIA_COLUMNS}, (t, h, w))
            for i, (t, h, w) in enumerate(grid[mine].tolist())
        )

    def origin(self, row: int) -> Origin | None:
        """Return where the row's sample came from."""
        file = int(self.columns["origin_file"][row])
        if file == 0:
            return None
        names = open_strings(self.spans, "origin_name")
        return Origin(
            source=self.spans.meta["sources"][int(self.columns["origin_source"][file - 1])],
            path=open_strings(self.spans, "origin_path")[file - 1],
            row=names[row] if len(names) and names[row] else int(self.columns["origin_row"][row]),
        )

    def continues(self, row: int) -> bool:
        """Whether this row goes on with the document of the row before it."""
        place = int(np.searchsorted(self.documents, row))
        return place == len(self.documents) or int(self.documents[place]) != row

    def _medium(self, row: int, at: dict[str, int], grid: tuple[int, int, int]) -> MediaSpan:
        names = self.spans.meta["media_names"]
        if (
            at["kind"] >= len(SEGMENT_KINDS)
            or at["name"] >= len(names)
            or at["position"] < at["before"]
            or at["position"] + at["length"] + at["after"] > int(self.lengths[row])
        ):
            raise FormatError(f"row {row} has a medium that is not in it", path=self.spans.path)
        return MediaSpan(
            name=names[at["name"]],
            kind=SEGMENT_KINDS[at["kind"]],
            position=at["position"],
            num_tokens=at["length"],
            grid=grid,
            before=at["before"],
            after=at["after"],
        )


def open_token_shard(files: Mapping[str, Path]) -> TokenShard:
    """Map a shard from the paths of its roles "bin", "idx" and "spans"."""
    index = open_index(files["idx"])
    spans = open_arrays(files["spans"], FORMAT)
    space = _space(spans)
    if index.dtype != space.dtype:
        raise FormatError(
            f"holds {index.dtype.name} ids, its space says {space.dtype.name}", path=files["idx"]
        )
    columns = _columns(spans, len(index.lengths))
    data = _open_ids(files["bin"], index.dtype)
    if data.nbytes != int(index.lengths.sum(dtype=np.int64)) * index.dtype.itemsize:
        raise FormatError(f"has {data.nbytes} bytes, its index says otherwise", path=files["bin"])
    return TokenShard(
        files["bin"],
        space,
        index.lengths,
        index.offsets,
        index.documents,
        data,
        spans,
        open_keys(spans, len(index.lengths)),
        columns,
    )


def _open_ids(path: Path, dtype: np.dtype[Any]) -> NDArray[Any] | RemoteIds:
    if isinstance(path, UrlPath):
        return RemoteIds(RemoteBlob(str(path)), dtype)
    raw = map_bytes(path)
    if len(raw) % dtype.itemsize:
        raise FormatError(f"has {len(raw)} bytes, its index says otherwise", path=path)
    return np.frombuffer(raw, dtype)


def _space(spans: Arrays) -> TokenSpace:
    try:
        space = from_plain(spans.meta.get("space"), TokenSpace, where="space")
    except ConfigError as error:
        raise FormatError(f"its token space cannot be: {error}", path=spans.path) from error
    assert isinstance(space, TokenSpace)
    return space


def _columns(spans: Arrays, num_rows: int) -> dict[str, NDArray[Any]]:
    """Return the columns by name, each as long as its table, checked."""
    num_media, num_loss = (_count(spans, name) for name in ("num_media", "num_loss"))
    names, sources = spans.meta.get("media_names"), spans.meta.get("sources")
    if not isinstance(names, list) or not isinstance(sources, list):
        raise FormatError("its meta lacks 'media_names' or 'sources'", path=spans.path)
    columns = {name: wide_column(spans, name, num_rows) for name in ROW_COLUMNS}
    for name in (f"media_{name}" for name in MEDIA_COLUMNS):
        columns[name] = wide_column(spans, name, num_media)
    for name in (f"loss_{name}" for name in LOSS_COLUMNS):
        columns[name] = wide_column(spans, name, num_loss)
    columns["media_grid"] = wide_column(spans, "media_grid", num_media, width=3)
    num_files = len(open_strings(spans, "origin_path"))
    columns["origin_source"] = wide_column(spans, "origin_source", num_files)
    _check_origins(spans, columns, len(sources))
    return columns


def _count(spans: Arrays, name: str) -> int:
    count = spans.meta.get(name)
    if not isinstance(count, int) or not 0 <= count <= MAX_ENTRIES:
        raise FormatError(f"its meta says {name} = {count!r}", path=spans.path)
    return count


def _check_origins(spans: Arrays, columns: Mapping[str, NDArray[Any]], num_sources: int) -> None:
    file, source = columns["origin_file"], columns["origin_source"]
    if (
        int(file.max(initial=0)) > len(source)
        or (len(source) and int(source.max()) >= num_sources)
        or len(open_strings(spans, "origin_name")) not in (0, len(file))
    ):
        raise FormatError("its origins do not fit its rows", path=spans.path)
