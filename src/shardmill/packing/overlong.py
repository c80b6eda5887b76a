"""What fits: lengths in units of the alignment, and what happens to samples longer than a pack."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ConfigError
from shardmill.model.plan import LengthTable, PackSpec, check_lengths

TOO_LONG = "longer than a pack"
MEDIA_TOO_LONG = "media longer than a pack"


@dataclass(frozen=True, slots=True)
class Usable:
    """Lengths to plan with, in units of the alignment; 0 for a row that is in no pack."""

    units: NDArray[np.int32]
    capacity: int
    dropped: NDArray[np.uint32]
    drop_reason: NDArray[np.uint8]
    drop_reasons: tuple[str, ...]
    cut_rows: NDArray[np.uint32]
    cut_lengths: NDArray[np.int32]


def usable_capacity(spec: PackSpec, *, exact: bool) -> int:
    """Return the units that may be planned: estimates leave the headroom free."""
    tokens = spec.capacity if exact else int(spec.capacity * (1 - spec.headroom))
    if tokens < spec.alignment:
        raise ConfigError(
            f"capacity {spec.capacity} less a headroom of {spec.headroom:g} leaves {tokens} "
            f"tokens, less than one alignment of {spec.alignment}"
        )
    return tokens // spec.alignment


def usable_lengths(table: LengthTable, spec: PackSpec) -> Usable:
    """Return what is planned of each row; raises if the policy is to fail and a row is too long."""
    capacity = usable_capacity(spec, exact=table.exact)
    lengths = table.num_tokens
    check_lengths(table)
    units = lengths
    if spec.alignment > 1:
        # Written without a sum, which could leave 32 bits.
        units = lengths // spec.alignment + (lengths % spec.alignment > 0)
    reasons = (*table.reject_reasons, TOO_LONG, MEDIA_TOO_LONG)
    too_long = units > capacity
    if not too_long.any() and not table.reject.any():
        none = np.empty(0, np.uint32)
        return Usable(
            units, capacity, none, none.astype(np.uint8), reasons, none, none.astype(np.int32)
        )
    return _with_policy(
        table, spec, units.copy(), too_long & (table.reject == 0), capacity, reasons
    )


def _with_policy(
    table: LengthTable,
    spec: PackSpec,
    units: NDArray[np.int32],
    too_long: NDArray[np.bool_],
    capacity: int,
    reasons: tuple[str, ...],
) -> Usable:
    long_rows = np.flatnonzero(too_long)
    if spec.overlong == "fail" and long_rows.size:
        raise ConfigError(_failure(table, int(long_rows[0]), int(long_rows.size), capacity, spec))
    room = capacity * spec.alignment
    cut = long_rows[:0]
    why = np.full(len(long_rows), len(table.reject_reasons), np.uint8)
    if spec.overlong == "cut":
        fits = table.num_fixed[long_rows] <= room
        cut, long_rows = long_rows[fits], long_rows[~fits]
        why = np.full(len(long_rows), len(table.reject_reasons) + 1, np.uint8)
    rejected = np.flatnonzero(table.reject)
    units[long_rows] = 0
    units[rejected] = 0
    units[cut] = capacity
    dropped = np.concatenate([rejected, long_rows])
    reason = np.concatenate([table.reject[rejected] - 1, why])
    order = np.argsort(dropped, kind="stable")
    return Usable(
        units,
        capacity,
        dropped[order].astype(np.uint32),
        reason[order].astype(np.uint8),
        reasons,
        cut.astype(np.uint32),
        np.full(len(cut), room, np.int32),
    )


def _failure(table: LengthTable, row: int, count: int, capacity: int, spec: PackSpec) -> str:
    where = f"row {row}"
    if table.shard_names:
        shard, place = table.locate(row)
        where += f" (sample {place} of shard {shard})"
    return (
        f"{count} of {len(table)} samples are longer than the {capacity * spec.alignment} tokens "
        f"of a pack; the first is {where} with {table.num_tokens[row]}. Choose a larger capacity, "
        "or overlong = drop or cut"
    )
