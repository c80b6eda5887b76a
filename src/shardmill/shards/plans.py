"""Length tables and pack plans as array files: mapped, so ten workers that open one share pages.

Format "lengths": `num_tokens` i32, then those of `num_visual` i32, `num_fixed` i32, `source` u16
and `reject` u8 that are not zero everywhere, and `shard_starts` i64. Meta: `source_names`,
`reject_reasons`, `shard_names`, `exact`, `digest`.

Format "plan": `members` u32, `starts` i64, `balanced` u32, `dropped` u32, `drop_reason` u8,
`cut_rows` u32, `cut_lengths` i32. Meta: `spec`, `lengths_digest`, `num_rows`, `drop_reasons`,
`method`, `why`, `lower_bound`, `counts`, `checksum`.

Both are compared with the checksum in their meta when they are opened.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from shardmill.errors import ConfigError, FormatError
from shardmill.model.codec import from_plain, to_plain
from shardmill.model.plan import MAX_SAMPLES, LengthTable, PackPlan, PackSpec, lengths_digest
from shardmill.shards.arrays import Arrays, open_arrays, store_arrays

# The table of a folder that `measure` made, beside its manifest.
TABLE_NAME = "lengths.bin"
LENGTH_DTYPES: Mapping[str, str] = {
    "num_tokens": "<i4",
    "num_visual": "<i4",
    "num_fixed": "<i4",
    "source": "<u2",
    "reject": "|u1",
}
PLAN_DTYPES: Mapping[str, str] = {
    "members": "<u4",
    "starts": "<i8",
    "balanced": "<u4",
    "dropped": "<u4",
    "drop_reason": "|u1",
    "cut_rows": "<u4",
    "cut_lengths": "<i4",
}
PLAN_META: Mapping[str, type] = {
    "lengths_digest": str,
    "num_rows": int,
    "method": str,
    "why": str,
    "lower_bound": int,
    "counts": dict,
}


def write_lengths(path: Path, table: LengthTable) -> None:
    """Put the table at `path`, whole or not at all."""
    arrays = {name: getattr(table, name) for name in LENGTH_DTYPES}
    stored = {n: a for n, a in arrays.items() if n == "num_tokens" or a.any()}
    meta = {
        "source_names": list(table.source_names),
        "reject_reasons": list(table.reject_reasons),
        "shard_names": list(table.shard_names),
        "exact": table.exact,
        "digest": table.digest,
    }
    store_arrays(path, "lengths", {**stored, "shard_starts": table.shard_starts}, meta)


def open_lengths(path: Path) -> LengthTable:
    """Map a table; it is what was written, and its lengths are checked by who plans with them."""
    arrays = open_arrays(path, "lengths")
    size = len(arrays["num_tokens"])
    if size > MAX_SAMPLES:
        raise FormatError(f"has {size} rows, more than one plan can number", path=path)
    columns = {
        name: arrays.checked(name, dtype, size)
        if name in arrays
        else np.broadcast_to(np.zeros((), dtype), size)
        for name, dtype in LENGTH_DTYPES.items()
    }
    sources, reasons, shard_names = (
        _names(arrays, name) for name in ("source_names", "reject_reasons", "shard_names")
    )
    for name, most in (("source", len(sources) - 1), ("reject", len(reasons))):
        if size and int(columns[name].max()) > most:
            raise FormatError(f"array {name!r} counts beyond its names", path=path)
    table = LengthTable(
        **columns,
        source_names=sources,
        reject_reasons=reasons,
        shard_names=shard_names,
        shard_starts=arrays.checked("shard_starts", "<i8", len(shard_names) + 1),
        exact=_meta(arrays, "exact", bool),
        digest=_meta(arrays, "digest", str),
    )
    _compare(path, lengths_digest(table), table.digest)
    return table


def write_plan(path: Path, plan: PackPlan) -> None:
    """Put the plan at `path`, whole or not at all."""
    meta = {name: getattr(plan, name) for name in PLAN_META}
    meta |= {"spec": to_plain(plan.spec), "drop_reasons": list(plan.drop_reasons)}
    meta["checksum"] = plan.checksum
    store_arrays(path, "plan", {name: getattr(plan, name) for name in PLAN_DTYPES}, meta)


def open_plan(path: Path) -> PackPlan:
    """Map a plan; sizes, rows and packs are checked, so that a broken file cannot be served."""
    arrays = open_arrays(path, "plan")
    values: dict[str, Any] = {n: arrays.checked(n, dt, None) for n, dt in PLAN_DTYPES.items()}
    values |= {name: _meta(arrays, name, kind) for name, kind in PLAN_META.items()}
    try:
        spec = from_plain(arrays.meta.get("spec"), PackSpec, where="spec")
    except ConfigError as error:
        raise FormatError(f"its spec cannot be: {error}", path=path) from error
    plan = PackPlan(spec=spec, drop_reasons=_names(arrays, "drop_reasons"), **values)
    _check(plan, path)
    _compare(path, plan.checksum, _meta(arrays, "checksum", str))
    return plan


def _compare(path: Path, found: str, stored: str) -> None:
    if found != stored:
        raise FormatError(
            f"its numbers have the checksum {found}, and not {stored}, with which it was written: "
            "it is damaged; make it again, or copy it back",
            path=path,
        )


def _check(plan: PackPlan, path: Path) -> None:
    starts = plan.starts
    if not len(starts) or starts[0] != 0 or starts[-1] != len(plan.members):
        raise FormatError("its packs do not cover its members", path=path)
    if np.any(np.diff(starts) <= 0):
        raise FormatError("has a pack without members", path=path)
    if len(plan.balanced) != len(plan):
        raise FormatError("its order does not hold each pack once", path=path)
    if len(plan.dropped) != len(plan.drop_reason) or len(plan.cut_rows) != len(plan.cut_lengths):
        raise FormatError("its dropped or cut rows do not fit their reasons or lengths", path=path)
    for name in ("members", "dropped", "cut_rows"):
        rows = getattr(plan, name)
        if len(rows) and int(rows.max()) >= plan.num_rows:
            raise FormatError(f"array {name!r} names a row beyond {plan.num_rows}", path=path)
    if len(plan.balanced) and int(plan.balanced.max()) >= len(plan):
        raise FormatError("its order names a pack that is not there", path=path)


def _names(arrays: Arrays, name: str) -> tuple[str, ...]:
    names = _meta(arrays, name, list)
    if not all(isinstance(item, str) for item in names):
        raise FormatError(f"its meta {name!r} must be a list of names", path=arrays.path)
    return tuple(names)


def _meta(arrays: Arrays, name: str, kind: type) -> Any:
    value = arrays.meta.get(name)
    if not isinstance(value, kind):
        raise FormatError(f"its meta {name!r} must be {kind.__name__}", path=arrays.path)
    return value
