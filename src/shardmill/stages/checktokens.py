"""Token shards against their rules: those of `checkblocks`, and lengths, sums and packs.

The rows of a shard are checked some million tokens at a time; nothing is decoded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.io.columns import bounds_between
from shardmill.io.tokenfile import TokenShard
from shardmill.stages.checkblocks import Ints, Media, Rows, faults_of
from shardmill.stages.checkfindings import Findings, Limits

TOKENS_AT_ONCE = 1 << 22


def check_token_shard(shard: TokenShard, limits: Limits) -> Findings:
    """Check all rows of a shard, and its packs if it holds packs."""
    findings = Findings()
    for numbers in _chunks(shard.lengths):
        for number, what in faults_of(_rows(shard, numbers), shard.space).items():
            findings.blame(shard.keys[numbers[number]], what)
    findings.count("rows", len(shard))
    findings.count("tokens", _sum(shard.lengths))
    findings.count("loss tokens", _sum(shard.columns["loss_length"]))
    findings.count("visual tokens", _sum(shard.num_visual))
    findings.count("media", len(shard.columns["media_grid"]))
    _check_sums(shard, findings)
    _check_lengths(shard, limits, findings)
    return findings


def _check_sums(shard: TokenShard, findings: Findings) -> None:
    body = _sum(shard.columns["media_length"])
    fixed = body + _sum(shard.columns["media_before"]) + _sum(shard.columns["media_after"])
    for name, amount in (("num_visual", body), ("num_fixed", fixed)):
        if amount != _sum(shard.columns[name]):
            findings.blame("", f"its column {name} does not add up to its media")


def _check_lengths(shard: TokenShard, limits: Limits, findings: Findings) -> None:
    about = shard.spans.meta.get("about")
    is_packed = isinstance(about, dict) and bool(about.get("packs"))
    bounds = shard.documents if is_packed else np.arange(len(shard) + 1)
    if is_packed:
        findings.count("packs", len(bounds) - 1)
    if limits.max_tokens is None:
        return
    starts = np.zeros(len(shard) + 1, np.int64)
    np.cumsum(shard.lengths, out=starts[1:])
    sizes = np.diff(starts[bounds])
    for number in np.flatnonzero(sizes > limits.max_tokens).tolist():
        key = shard.keys[int(bounds[number])]
        findings.blame(key, f"has {sizes[number]} tokens, more than {limits.max_tokens}")


def _chunks(lengths: NDArray[np.int32]) -> Iterator[range]:
    """Yield ranges of rows of some million tokens."""
    ends = np.cumsum(lengths, dtype=np.int64)
    start = 0
    while start < len(lengths):
        done = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, done + TOKENS_AT_ONCE, side="right")))
        yield range(start, stop)
        start = stop


def _rows(shard: TokenShard, numbers: range) -> Rows:
    columns = shard.columns
    bounds = np.zeros(len(numbers) + 1, np.int64)
    np.cumsum(shard.lengths[numbers.start : numbers.stop], out=bounds[1:])
    loss, media = (
        bounds_between(shard.spans, f"{name}_bounds", numbers, len(shard), len(columns[of]))
        for name, of in (("loss", "loss_start"), ("media", "media_grid"))
    )
    row = np.repeat(np.arange(len(numbers)), np.diff(media))

    def column(name: str, bounds: Ints) -> Ints:
        return columns[name][bounds[0] : bounds[-1]].astype(np.int64)

    return Rows(
        ids=_ids(shard, numbers, bounds),
        bounds=bounds,
        loss_row=np.repeat(np.arange(len(numbers)), np.diff(loss)),
        loss_start=column("loss_start", loss),
        loss_length=column("loss_length", loss),
        media=Media(
            row=row,
            start=bounds[row] + column("media_position", media),
            length=column("media_length", media),
            before=column("media_before", media),
            after=column("media_after", media),
            grid=column("media_grid", media),
        ),
    )


def _ids(shard: TokenShard, numbers: range, bounds: Ints) -> Ints:
    """Return the ids of neighbouring rows; in our shards they lie without gaps."""
    first = int(shard.offsets[numbers.start])
    places = first + bounds[:-1] * shard.data.itemsize
    if np.array_equal(places, shard.offsets[numbers.start : numbers.stop]):
        start = first // shard.data.itemsize
        ids = shard.data[start : start + int(bounds[-1])]
    else:
        ids = np.concatenate([shard.ids(number) for number in numbers])
    return np.asarray(ids, np.int64)


def _sum(values: NDArray[Any]) -> int:
    return int(values.sum(dtype=np.int64))
