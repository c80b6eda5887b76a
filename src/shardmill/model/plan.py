"""What packing starts from and what it makes: the length table and the pack plan.

**Lengths**: one row a sample, in the order of the data. Row r is sample number r of the data set:
shard by shard in manifest order, and inside a shard in the order of its index. Planning reads only
this table, so it never touches a tar.

**A plan** says which samples stand together in which pack, and in which order packs are alike. It
is arithmetic over a length table: rows are numbers of samples, nothing is copied. It belongs to the
table whose digest it carries and is refused for any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any

import numpy as np
import xxhash
from numpy.typing import ArrayLike, NDArray

from shardmill.errors import ConfigError, StaleError
from shardmill.model.tokenrow import Overlong
from shardmill.plugins import BALANCERS, PACKERS, resolve

MAX_SAMPLES = 2**31 - 1
# Rows are checked so many at a time: masks over a billion rows would take gigabytes.
CHUNK = 1 << 20
COLUMNS = ("num_tokens", "num_visual", "num_fixed", "source", "reject")
MAX_CAPACITY = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthTable:
    """Token counts of every sample; make one with `length_table`, which checks it.

    `num_tokens` counts everything, `num_visual` the tokens that the vision tower makes or that are
    image codes, `num_fixed` the tokens that must never be cut: media with their delimiters.
    `source` indexes `source_names`. `reject` is 0 for a sample that can be used, else one more
    than an index into `reject_reasons`; the planner leaves such a sample out and counts it.
    `exact` is False for estimates, which get the headroom of the pack spec. Shard s holds the rows
    from `shard_starts[s]` to `shard_starts[s + 1]`. A column that is zero everywhere may be a
    broadcast scalar that takes no memory.
    """

    num_tokens: NDArray[np.int32]
    num_visual: NDArray[np.int32]
    num_fixed: NDArray[np.int32]
    source: NDArray[np.uint16]
    source_names: tuple[str, ...]
    reject: NDArray[np.uint8]
    reject_reasons: tuple[str, ...]
    shard_names: tuple[str, ...]
    shard_starts: NDArray[np.int64]
    exact: bool
    digest: str

    def __len__(self) -> int:
        return len(self.num_tokens)

    def locate(self, row: int) -> tuple[str, int]:
        """Return the name of the shard that holds a row, and the row's number in that shard."""
        shard = int(np.searchsorted(self.shard_starts, row, side="right")) - 1
        if not 0 <= shard < len(self.shard_names):
            raise ConfigError(f"row {row} lies in no shard: the table has {len(self)} rows")
        return self.shard_names[shard], row - int(self.shard_starts[shard])


def length_table(
    num_tokens: ArrayLike,
    *,
    num_visual: ArrayLike = 0,
    num_fixed: ArrayLike = 0,
    source: ArrayLike = 0,
    source_names: Sequence[str] = ("all",),
    reject: ArrayLike = 0,
    reject_reasons: Sequence[str] = (),
    shard_names: Sequence[str] = (),
    shard_starts: ArrayLike = (0,),
    exact: bool = True,
) -> LengthTable:
    """Return a checked table; a scalar stands for a column that is the same everywhere."""
    total = _column(num_tokens, np.int32, "num_tokens", None)
    size = len(total)
    table = LengthTable(
        num_tokens=total,
        num_visual=_column(num_visual, np.int32, "num_visual", size),
        num_fixed=_column(num_fixed, np.int32, "num_fixed", size),
        source=_column(source, np.uint16, "source", size),
        source_names=tuple(source_names),
        reject=_column(reject, np.uint8, "reject", size),
        reject_reasons=tuple(reject_reasons),
        shard_names=tuple(shard_names),
        shard_starts=np.asarray(shard_starts, np.int64),
        exact=exact,
        digest="",
    )
    check_lengths(table)
    return replace(table, digest=lengths_digest(table))


def join_tables(tables: Sequence[LengthTable]) -> LengthTable:
    """Return the rows of several tables after each other, as one table over all their sources."""
    if not tables:
        raise ConfigError("no length tables to join")
    sources = list(dict.fromkeys(name for t in tables for name in t.source_names))
    reasons = list(dict.fromkeys(name for t in tables for name in t.reject_reasons))
    first_row = np.cumsum([0] + [len(t) for t in tables])
    return length_table(
        np.concatenate([t.num_tokens for t in tables]),
        num_visual=np.concatenate([t.num_visual for t in tables]),
        num_fixed=np.concatenate([t.num_fixed for t in tables]),
        source=np.concatenate(
            [np.array([sources.index(n) for n in t.source_names])[t.source] for t in tables]
        ),
        source_names=sources,
        reject=np.concatenate(
            [
                np.array([0, *(reasons.index(n) + 1 for n in t.reject_reasons)])[t.reject]
                for t in tables
            ]
        ),
        reject_reasons=reasons,
        shard_names=[name for t in tables for name in t.shard_names],
        shard_starts=np.concatenate(
            [[0]] + [t.shard_starts[1:] + start for t, start in zip(tables, first_row)]
        ),
        exact=all(t.exact for t in tables),
    )


def check_lengths(table: LengthTable) -> None:
    """Raise `ConfigError` that names the first row which cannot be."""
    for start in range(0, len(table), CHUNK):
        _check_rows(table, slice(start, start + CHUNK))
    _check_shards(table)


def _check_rows(table: LengthTable, rows: slice) -> None:
    tokens = table.num_tokens[rows]
    _need(tokens >= 1, "num_tokens", "be at least 1", table, rows)
    for name in ("num_visual", "num_fixed"):
        column = getattr(table, name)[rows]
        good = (column >= 0) & (column <= tokens)
        _need(good, name, "lie between 0 and num_tokens", table, rows)
    source, reject = int(table.source[rows].max()), int(table.reject[rows].max())
    if source >= len(table.source_names):
        raise ConfigError(f"source {source} has no name in {table.source_names}")
    if reject > len(table.reject_reasons):
        raise ConfigError(f"reject {reject} has no reason in {table.reject_reasons}")


def _need(good: NDArray[np.bool_], name: str, rule: str, table: LengthTable, rows: slice) -> None:
    if good.all():
        return
    bad = ~good & (table.reject[rows] == 0)
    if bad.any():
        row = rows.start + int(bad.argmax())
        raise ConfigError(f"{name} must {rule}: row {row} has {getattr(table, name)[row]}")


def _check_shards(table: LengthTable) -> None:
    starts = table.shard_starts
    if len(starts) != len(table.shard_names) + 1 or starts[0] != 0 or np.any(np.diff(starts) < 0):
        raise ConfigError("shard_starts must begin at 0, rise, and have one entry more than names")
    if table.shard_names and starts[-1] != len(table):
        raise ConfigError(f"the shards hold {starts[-1]} rows, the table {len(table)}")


def _column(values: ArrayLike, dtype: Any, name: str, size: int | None) -> NDArray[Any]:
    given = np.asarray(values)
    if size is None and given.ndim == 0:
        raise ConfigError(f"{name} must be a list of counts, got {values!r}")
    if given.ndim > 1:
        raise ConfigError(f"{name} must have one value a sample, got the shape {given.shape}")
    if given.ndim == 1 and len(given) > MAX_SAMPLES:
        raise ConfigError(f"{name} has {len(given)} rows: one plan numbers at most {MAX_SAMPLES}")
    if given.size and given.dtype.kind not in "iub":
        raise ConfigError(f"{name} must hold whole numbers, got {given.dtype}")
    if given.size and given.dtype.kind != "b" and given.dtype != dtype:
        limit = np.iinfo(dtype)
        if int(given.max()) > limit.max or int(given.min()) < limit.min:
            raise ConfigError(f"{name} has a value that does not fit into {np.dtype(dtype).name}")
    column = given.astype(dtype, copy=False)
    if column.ndim == 0:
        return np.broadcast_to(column, size or 0)
    if size is not None and len(column) != size:
        raise ConfigError(f"{name} has {len(column)} rows, num_tokens {size}")
    return column


def lengths_digest(table: LengthTable) -> str:
    """Return the identity of a table: all that it says, however it is stored."""
    state = xxhash.xxh3_128()
    names = (table.source_names, table.reject_reasons, table.shard_names, table.exact, len(table))
    state.update(repr(names).encode())
    for name in COLUMNS:
        column = getattr(table, name)
        # A column of zeros counts as absent, whether it is stored or broadcast.
        if column.any():
            state.update(name.encode())
            state.update(np.ascontiguousarray(column).view(np.uint8).data)
    state.update(np.ascontiguousarray(table.shard_starts).view(np.uint8).data)
    return str(state.hexdigest())


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What a pack costs: so much a token, a visual token on top, a square of a length, a pack.

    Prices that were measured (`shardmill calibrate`) are seconds; those of a model's shape are
    FLOPs and serve to compare packs.
    """

    token: float
    visual: float
    attention: float
    pack: float = 0.0

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            price = getattr(self, name)
            if not isfinite(price) or price < 0:
                raise ConfigError(f"the price of {name} must be a finite number >= 0, got {price}")

    def of(
        self, tokens: NDArray[np.int64], visual: NDArray[np.int64], attention: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Return what packs with these counts cost."""
        of_tokens = self.token * tokens + self.visual * visual
        return np.asarray(self.pack + of_tokens + self.attention * attention)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackSpec:
    """How to pack: everything that a plan depends on besides the lengths.

    Each document takes a multiple of `alignment` tokens of the `capacity` (for context parallelism
    2 x cp_size). A sample longer than a pack makes the plan fail, is dropped with a reason, or has
    text cut from its end; media are never cut. `max_packs` keeps a fair sample of the packs.
    `headroom` is the share of the capacity that is left free when the lengths are estimates; exact
    lengths need none. `method` names the packer and `balance` the balancer, with their fields:
    "auto", "window,window=512", "package.module:Class,field=value". `block` packs of like cost stay
    together in every order: a power of two, and at least the number of packs in a step. Another
    `epoch` gives the same documents other neighbours. `prices` are measured seconds: with them,
    packs are ordered by their visual tokens and their time, else by visual tokens and attention.
    """

    capacity: int
    alignment: int = 1
    overlong: Overlong = "fail"
    max_documents: int | None = None
    max_packs: int | None = None
    headroom: float = 0.05
    method: str = "auto"
    balance: str = "halving"
    block: int = 512
    seed: int = 0
    epoch: int = 0
    prices: Prices | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.capacity <= MAX_CAPACITY:
            raise ConfigError(f"capacity must be 1..{MAX_CAPACITY}, got {self.capacity}")
        if not 1 <= self.alignment <= self.capacity:
            raise ConfigError(
                f"alignment must be 1..capacity ({self.capacity}), got {self.alignment}"
            )
        for name in ("max_documents", "max_packs"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}")
        # Written so that NaN fails too.
        if not 0 <= self.headroom < 1:
            raise ConfigError(f"headroom must be at least 0 and below 1, got {self.headroom}")
        if self.block < 1 or self.block & (self.block - 1):
            raise ConfigError(f"block must be a power of two, got {self.block}")
        resolve(PACKERS, self.method.partition(",")[0], "method")
        resolve(BALANCERS, self.balance.partition(",")[0], "balance")
        if self.overlong not in ("fail", "drop", "cut"):
            raise ConfigError(f"overlong must be fail, drop or cut, got {self.overlong!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackPlan:
    """Packs of rows of a length table.

    Pack k holds the rows `members[starts[k] : starts[k + 1]]`. `balanced` lists the packs so that
    neighbours cost alike; `EpochOrder` makes epochs of it. `dropped` are rows that are in no pack,
    each with an index into `drop_reasons`. `cut_rows`, rising, take `cut_lengths` tokens instead of
    all of theirs. `method` and `why` say how the packs were found, `lower_bound` how few there
    could be at best, and `counts` how many each method needed.
    """

    spec: PackSpec
    lengths_digest: str
    num_rows: int
    members: NDArray[np.uint32]
    starts: NDArray[np.int64]
    balanced: NDArray[np.uint32]
    dropped: NDArray[np.uint32]
    drop_reason: NDArray[np.uint8]
    drop_reasons: tuple[str, ...]
    cut_rows: NDArray[np.uint32]
    cut_lengths: NDArray[np.int32]
    method: str
    why: str
    lower_bound: int
    counts: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, pack: int) -> NDArray[np.uint32]:
        """Return the rows of one pack."""
        if not 0 <= pack < len(self):
            raise IndexError(f"the plan has packs 0..{len(self) - 1}, not {pack}")
        return self.members[self.starts[pack] : self.starts[pack + 1]]

    @property
    def checksum(self) -> str:
        """The xxh3-128 of which row is in which pack and in which order; worked out when asked."""
        state = xxhash.xxh3_128()
        for name in self.__dataclass_fields__:
            if not isinstance(getattr(self, name), np.ndarray):
                continue
            values = np.ascontiguousarray(getattr(self, name))
            state.update(f"{name} {values.dtype.str} {len(values)} ".encode())
            state.update(values.view(np.uint8).data)
        return str(state.hexdigest())

    def lengths_of(self, rows: NDArray[np.uint32], table: LengthTable) -> NDArray[np.int32]:
        """Return the planned number of tokens of each row: its length, unless it is cut."""
        lengths = table.num_tokens[rows]
        if len(self.cut_rows):
            # With rows 4 and 9 cut, rows [4, 7, 12] give the places [0, 1, 2], of which the last
            # is clipped to 1; only the first place holds its own row.
            place = np.searchsorted(self.cut_rows, rows).clip(max=len(self.cut_rows) - 1)
            lengths = np.where(self.cut_rows[place] == rows, self.cut_lengths[place], lengths)
        return lengths

    def check_table(self, table: LengthTable, place: object = "the table") -> None:
        """Raise `StaleError` unless the plan was made from this very table, found at `place`."""
        self.check_lengths(table.digest, len(table), place)

    def check_lengths(self, digest: str, num_rows: int, place: object) -> None:
        """Raise `StaleError` unless the plan was made from lengths with this digest."""
        if digest != self.lengths_digest:
            raise StaleError(
                f"this plan was made from other lengths: of {self.num_rows:,} samples with the "
                f"digest {self.lengths_digest}, but {place} has {num_rows:,} with {digest}. Give "
                f"the data that it was made from, or plan this: shardmill plan {place} NEW.plan "
                f"--capacity {self.spec.capacity}"
            )
