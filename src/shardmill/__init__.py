"""From raw images, videos and text to balanced, packed training batches.

    import shardmill as sm

    shards = sm.ingest("rows.jsonl", "shards", workers=8)
    tokens = sm.tokenize(shards, "tokens", template="chat")
    plan = sm.plan(tokens, "packs.plan", capacity=8192)
    for batch in sm.loader(plan, tokens, collate="transformers", workers=4):
        ...

These names are all that users need; the modules behind them may move. Each is loaded when it is
first used, so that importing the package costs nothing and needs none of the optional packages.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardmill.api.check import check, diff
    from shardmill.api.data import open
    from shardmill.api.recipe import quote, run
    from shardmill.api.running import RunFailed
    from shardmill.api.verbs import (
        calibrate,
        codes,
        export,
        filter,
        frames,
        index,
        ingest,
        measure,
        pack,
        plan,
        remove,
        tokenize,
    )
    from shardmill.errors import NothingKept, ShardmillError
    from shardmill.model.codec import trust
    from shardmill.train.attention import attention, block_mask, check_batch, dense_mask
    from shardmill.train.collate import Collate, num_items
    from shardmill.train.context import ContextSplit
    from shardmill.train.dataset import PackedDataset, RowDataset
    from shardmill.train.loader import loader
    from shardmill.train.mix import Mix
    from shardmill.train.stream import PackedStream, SampleStream

__version__ = "0.1.0"

_VERBS = "ingest index filter frames codes tokenize measure plan calibrate pack export remove"
_MASKS = "attention block_mask check_batch dense_mask"
_MODULES = {
    **dict.fromkeys(_VERBS.split(), "shardmill.api.verbs"),
    "check": "shardmill.api.check",
    "diff": "shardmill.api.check",
    "run": "shardmill.api.recipe",
    "quote": "shardmill.api.recipe",
    "open": "shardmill.api.data",
    "loader": "shardmill.train.loader",
    "PackedDataset": "shardmill.train.dataset",
    "RowDataset": "shardmill.train.dataset",
    "PackedStream": "shardmill.train.stream",
    "SampleStream": "shardmill.train.stream",
    "Collate": "shardmill.train.collate",
    "num_items": "shardmill.train.collate",
    "ContextSplit": "shardmill.train.context",
    **dict.fromkeys(_MASKS.split(), "shardmill.train.attention"),
    "Mix": "shardmill.train.mix",
    "ShardmillError": "shardmill.errors",
    "NothingKept": "shardmill.errors",
    "RunFailed": "shardmill.api.running",
    "trust": "shardmill.model.codec",
}

__all__ = [
    "Collate",
    "ContextSplit",
    "Mix",
    "NothingKept",
    "PackedDataset",
    "PackedStream",
    "RowDataset",
    "RunFailed",
    "SampleStream",
    "ShardmillError",
    "__version__",
    "attention",
    "block_mask",
    "calibrate",
    "check",
    "check_batch",
    "codes",
    "dense_mask",
    "diff",
    "export",
    "filter",
    "frames",
    "index",
    "ingest",
    "loader",
    "measure",
    "num_items",
    "open",
    "pack",
    "plan",
    "quote",
    "remove",
    "run",
    "tokenize",
    "trust",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        found = getattr(import_module(_MODULES[name]), name)
    except ModuleNotFoundError as error:
        from shardmill.errors import missing_extra

        raise missing_extra(error) or error from error
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
