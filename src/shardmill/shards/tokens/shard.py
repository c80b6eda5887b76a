"""Token shards: Megatron's `.bin` and `.idx`, and beside them a `.spans` file that says the rest.

The spans file is an array container (`shards.arrays`) of format "token-spans", with columns as
narrow as they can be (`shards.arrays`). For S rows, M media and L loss spans:

    num_visual, num_fixed     S    tokens inside media; the same with their delimiters
    loss_bounds               S+1  the loss spans of row i are loss_bounds[i] to loss_bounds[i+1]
    loss_start, loss_length   L    in tokens from the start of the row
    media_bounds              S+1
    media_position, media_length, media_before, media_after   M
    media_grid                M,3  (t, h, w)
    media_kind, media_name    M    modality number; index into meta["media_names"]
    key_*                          the keys (`shards.arrays`)
    origin_file, origin_row   S    index into origin_path (0: no origin); row number in it
    origin_path_*, origin_source, origin_name_*   per file; `origin_name` for rows that are names
    ids_sums                       u64, the xxh3-64 of each 64 KiB of `.bin`

Meta: "num_media", "num_loss", "space" (the TokenSpace), "media_names", "sources", "about". Rows are
found without reading the others; every bound is checked against the file before it is used.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from shardmill.errors import ConfigError, Damaged, FormatError
from shardmill.model.codec import from_plain
from shardmill.model.manifest import Manifest, ShardEntry, shards_digest
from shardmill.model.plan import LengthTable, PackPlan, join_tables, length_table
from shardmill.model.sample import SEGMENT_KINDS, Origin
from shardmill.model.space import TokenSpace
from shardmill.model.tokenrow import MEDIA_COLUMNS, MediaSpan, TokenRow
from shardmill.shards.arrays import (
    Arrays,
    KeyColumn,
    open_arrays,
    open_keys,
    open_strings,
    row_slice,
    wide_column,
)
from shardmill.shards.commit import REPAIR, verify_file
from shardmill.shards.ledger import open_manifest
from shardmill.shards.plans import TABLE_NAME, open_lengths
from shardmill.shards.tokens.ids import (
    SPANS_FORMAT,
    SUM_BYTES,
    RemoteIds,
    open_ids,
    open_megatron_index,
)
from shardmill.storage.cache import StagedCopies, fetch_copies, remembered
from shardmill.storage.path import UrlPath, as_path

# The meta of a hostile file could say any number; this one still fits into an index.
MAX_ENTRIES = 1 << 40
ROLES = ("bin", "idx", "spans")
ROW_COLUMNS = ("num_visual", "num_fixed", "origin_file", "origin_row")
LOSS_COLUMNS = ("start", "length")


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
    def holds_packs(self) -> bool:
        """Whether each document is a pack, which `shardmill pack` marks."""
        about = self.spans.meta.get("about")
        return isinstance(about, dict) and bool(about.get("packs"))

    @property
    def numbers(self) -> NDArray[Any] | None:
        """The number of each row in the data set that it was adopted from, if that has numbers."""
        about = self.spans.meta.get("about")
        is_numbered = isinstance(about, dict) and bool(about.get("numbered"))
        return self.columns["origin_row"] if is_numbered else None

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
        return int(self.offsets[row]) // self.data.itemsize, int(self.lengths[row])

    def verify(self, row: int) -> None:
        """Raise `Damaged` unless the ids around a row have the checksums they were written with."""
        start, length = self.place(row)
        size = SUM_BYTES // self.data.itemsize
        for block in range(start // size, -(-(start + length) // size)):
            content = self.data[block * size : (block + 1) * size]
            if xxh3_64_intdigest(content.data) != int(self.spans["ids_sums"][block]):
                at = block * SUM_BYTES
                raise Damaged(
                    f"{self.path}: the bytes {at} to {at + content.nbytes} are not those that were "
                    f"written; row {row} is there, at byte {start * self.data.itemsize}: {REPAIR}"
                )

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
    index = open_megatron_index(files["idx"])
    spans = open_arrays(files["spans"], SPANS_FORMAT)
    space = _space(spans)
    if index.dtype != space.dtype:
        raise FormatError(
            f"holds {index.dtype.name} ids, its space says {space.dtype.name}", path=files["idx"]
        )
    bounds, num_rows = index.documents, len(index.lengths)
    if num_rows and int(index.lengths.min()) < 0:
        raise FormatError("has a row of less than no ids", path=files["idx"])
    if (
        not len(bounds)
        or bounds[0] < 0
        or bounds[-1] != num_rows
        or (bounds[1:] < bounds[:-1]).any()
    ):
        raise FormatError(f"its documents do not rise to {num_rows}", path=files["idx"])
    ends = np.cumsum(index.lengths, dtype=np.int64) * index.dtype.itemsize
    if num_rows and (index.offsets[0] != 0 or (index.offsets[1:] != ends[:-1]).any()):
        raise FormatError("its rows do not lie after each other", path=files["idx"])
    columns = _columns(spans, num_rows)
    data = open_ids(files["bin"], index.dtype)
    if data.nbytes != (int(ends[-1]) if num_rows else 0):
        raise FormatError(f"has {data.nbytes} bytes, its index says otherwise", path=files["bin"])
    spans.checked("ids_sums", np.uint64, -(-data.nbytes // SUM_BYTES))
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


@dataclass(slots=True, eq=False)
class TokenDataset:
    """All token rows of a folder as one list, shard by shard in manifest order.

    Shards are opened when first touched; copies of them may be staged in `staged_dir`. A dataset
    can be sent to another process: what travels is the list of files, not the maps.
    """

    folder: Path
    entries: tuple[ShardEntry, ...]
    staged_dir: Path | None = None
    _staged: StagedCopies | None = None
    _starts: list[int] = field(default_factory=list)
    _open: dict[int, TokenShard] = field(default_factory=dict)
    _verified: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._starts = list(accumulate((e.num_samples for e in self.entries), initial=0))
        self._staged = None if self.staged_dir is None else StagedCopies(self.staged_dir)

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, number: int) -> TokenRow:
        shard, row = self.locate(number)
        return self.shard(shard)[row]

    def __iter__(self) -> Iterator[TokenRow]:
        return (row for shard in range(len(self.entries)) for row in self.shard(shard))

    def __getstate__(self) -> tuple[Path, tuple[ShardEntry, ...], Path | None]:
        return self.folder, self.entries, self.staged_dir

    def __setstate__(self, state: tuple[Path, tuple[ShardEntry, ...], Path | None]) -> None:
        self.folder, self.entries, self.staged_dir = state
        self._open, self._verified = {}, {}
        self.__post_init__()

    @property
    def space(self) -> TokenSpace | None:
        """The token space of the first shard; None if there is none."""
        return self.shard(0).space if self.entries else None

    def locate(self, number: int) -> tuple[int, int]:
        """Return (shard number, row in it) of a row of the data set."""
        if not 0 <= number < len(self):
            raise IndexError(f"row {number} of {len(self)}")
        shard = bisect_right(self._starts, number) - 1
        return shard, number - self._starts[shard]

    def find(self, key: str) -> int | None:
        """Return the number of the row with this key, or None."""
        for shard, start in enumerate(self._starts[:-1]):
            row = self.shard(shard).keys.find(key)
            if row is not None:
                return start + row
        return None

    def ids(self, number: int) -> Any:
        """Return the ids of a row, mapped and not copied."""
        shard, row = self.locate(number)
        return self.shard(shard).ids(row)

    def verify(self, number: int) -> None:
        """Raise `Damaged` unless a row is as it was written: its ids, and its shard's tables.

        The tables are compared as a whole with the receipt, at the first row and again after so
        many rows that it costs as much as the ids do.
        """
        place, row = self.locate(number)
        tables = [self.entries[place].files[role] for role in ROLES if role != "bin"]
        count = self._verified.get(place, 0)
        if count % (1 + sum(entry.num_bytes for entry in tables) // SUM_BYTES) == 0:
            for entry in tables:
                verify_file(self._place(entry.path), entry)
        self._verified[place] = count + 1
        self.shard(place).verify(row)

    def prefetch(self, numbers: Sequence[int]) -> None:
        """Say that these rows will be read soon; of a local folder nothing is done."""
        if not isinstance(self.folder, UrlPath):
            return
        places = [self.locate(number) for number in numbers]
        for shard in dict.fromkeys(shard for shard, _ in places):
            self.shard(shard).prefetch([row for other, row in places if other == shard])

    def renew(self) -> bool:
        """Open all shards again if more copies have been staged; say whether they have."""
        if self._staged is None or not self._staged.has_news():
            return False
        self._open = {}  # maps that are in use stay as long as they are
        return True

    def shard(self, number: int) -> TokenShard:
        """Return a shard by its place in the manifest; all shards must have one token space."""
        found = self._open.get(number)
        if found is None:
            found = self._open[number] = self._opened(self.entries[number])
            if number and self._open.get(0) is not None:
                self._open[0].space.check_same(found.space)
        return found

    def _opened(self, entry: ShardEntry) -> TokenShard:
        missing = [role for role in ROLES if role not in entry.files]
        if missing:
            what = f"holds no tokens: shard {entry.name} has no file {missing[0]!r}"
            to_do = "tokenize it first, or measure it for a model that takes pixels"
            raise FormatError(f"{what}; {to_do}", path=self.folder)
        shard = open_token_shard({r: self._place(entry.files[r].path) for r in ROLES})
        if len(shard) != entry.num_samples:
            raise FormatError(
                f"has {len(shard)} rows, the manifest says {entry.num_samples}", path=shard.path
            )
        return shard

    def _place(self, relative: str) -> Path:
        original = self.folder / relative
        if self._staged is None:
            return original
        return as_path(self._staged.find(str(original), relative))


def open_tokens(
    folder: Path | str, manifest: Manifest | None = None, *, staged_dir: Path | None = None
) -> TokenDataset:
    """Open a finished folder of token shards.

    `manifest` is that of the folder, if it is at hand; copies of the shards may be staged in
    `staged_dir`. A shard without tokens is a `FormatError` when it is touched.
    """
    return TokenDataset(as_path(folder), (manifest or open_manifest(folder)).shards, staged_dir)


def read_lengths(path: Path) -> LengthTable:
    """Return the table of a file, of a folder of `measure`, or of a folder of token shards."""
    if path.is_file():
        try:
            return open_lengths(path)
        except FormatError as error:
            raise ConfigError(
                f"{error}\nGive a folder of tokens, or what `shardmill measure` wrote"
            ) from error
    if (path / TABLE_NAME).is_file():
        return open_lengths(path / TABLE_NAME)
    return token_lengths(path)


def token_lengths(folder: Path) -> LengthTable:
    """Return the lengths of all rows of a finished folder, in manifest order."""
    tokens = open_tokens(folder)
    fetch_copies(
        tokens.folder / entry.files[role].path
        for entry in tokens.entries
        for role in ("idx", "spans")
        if role in entry.files
    )
    tables = [
        shard_lengths(entry.name, tokens.shard(number))
        for number, entry in enumerate(tokens.entries)
    ]
    return join_tables(tables) if tables else length_table(np.empty(0, np.int32))


def lengths_digest(tokens: TokenDataset) -> str:
    """Return the digest of `token_lengths`, which a plan of these tokens carries.

    Reading all lengths takes 0.05 s a million rows, and of a store fetches every index: so it is
    done once on a machine, and remembered for the checksums in the manifest.
    """
    name = f"lengths-{shards_digest(tokens.entries)}"
    return remembered(name, lambda: token_lengths(tokens.folder).digest)


def check_plan(plan: PackPlan, tokens: TokenDataset) -> None:
    """Raise `StaleError` unless the plan was made from the lengths of these tokens."""
    plan.check_lengths(lengths_digest(tokens), len(tokens), tokens.folder)


def shard_lengths(name: str, shard: TokenShard) -> LengthTable:
    """Return the lengths of one shard; a row without tokens is rejected with that reason."""
    return length_table(
        shard.lengths,
        num_visual=shard.num_visual.astype(np.int32),
        num_fixed=shard.num_fixed.astype(np.int32),
        source=shard.source_numbers,
        source_names=["unknown", *shard.source_names[1:]],
        reject=shard.lengths == 0,
        reject_reasons=["no tokens"],
        shard_names=[name],
        shard_starts=[0, len(shard)],
    )


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
