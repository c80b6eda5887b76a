"""Pack plans as files: the container of `shards.arrays` with the format name "plan".

Arrays: `members` u32, `starts` i64, `balanced` u32, `dropped` u32, `drop_reason` u8, `cut_rows`
u32, `cut_lengths` i32. Meta: `spec`, `lengths_digest`, `num_rows`, `drop_reasons`, `method`,
`why`, `lower_bound`, `counts`. The arrays are mapped: ten workers that open a plan share its pages.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ConfigError, FormatError
from shardmill.model.codec import from_plain, to_plain
from shardmill.model.plan import PackPlan, PackSpec
from shardmill.shards.arrays import Arrays, open_arrays, store_arrays

FORMAT = "plan"
DTYPES: Mapping[str, np.dtype[Any]] = {
    "members": np.dtype("<u4"),
    "starts": np.dtype("<i8"),
    "balanced": np.dtype("<u4"),
    "dropped": np.dtype("<u4"),
    "drop_reason": np.dtype("u1"),
    "cut_rows": np.dtype("<u4"),
    "cut_lengths": np.dtype("<i4"),
}
META: Mapping[str, type] = {
    "lengths_digest": str,
    "num_rows": int,
    "method": str,
    "why": str,
    "lower_bound": int,
    "counts": dict,
}


def write_plan(path: Path, plan: PackPlan) -> None:
    """Put the plan at `path`, whole or not at all."""
    meta = {name: getattr(plan, name) for name in META}
    meta |= {"spec": to_plain(plan.spec), "drop_reasons": list(plan.drop_reasons)}
    store_arrays(path, FORMAT, {name: getattr(plan, name) for name in DTYPES}, meta)


def open_plan(path: Path) -> PackPlan:
    """Map a plan; sizes, rows and packs are checked, so that a broken file cannot be served."""
    arrays = open_arrays(path, FORMAT)
    values: dict[str, Any] = {name: _column(arrays, name) for name in DTYPES}
    values |= {name: _meta(arrays, name, kind) for name, kind in META.items()}
    try:
        spec = from_plain(arrays.meta.get("spec"), PackSpec, where="spec")
    except ConfigError as error:
        raise FormatError(f"its spec cannot be: {error}", path=path) from error
    reasons = _meta(arrays, "drop_reasons", list)
    plan = PackPlan(spec=spec, drop_reasons=tuple(map(str, reasons)), **values)
    _check(plan, path)
    return plan


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


def _column(arrays: Arrays, name: str) -> NDArray[Any]:
    column = arrays[name]
    if column.ndim != 1 or column.dtype != DTYPES[name]:
        raise FormatError(f"array {name!r} must be flat {DTYPES[name].str}", path=arrays.path)
    return column


def _meta(arrays: Arrays, name: str, kind: type) -> Any:
    value = arrays.meta.get(name)
    if not isinstance(value, kind):
        raise FormatError(f"its meta {name!r} must be {kind.__name__}", path=arrays.path)
    return value
