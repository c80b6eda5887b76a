"""Token shards against their rules, checked for many rows at once; nothing is decoded.

    every id lies in the space
    loss spans rise, do not touch, and end inside their row
    media rise and do not overlap; each has as many tokens as its grid
    a medium is made of codes, or of one placeholder repeated, which is not learned
    all media begin and end with the same delimiters
    placeholders, codes and delimiters stand nowhere but in media, so that no block is cut in two
    columns add up, and no row or pack is longer than it may be

A grid may be in patches of which k x k make a token, and rows of codes may end with a token.

`Limits` and `Findings` are what all checks of content measure by and report.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardmill.model.space import TokenSpace
from shardmill.shards.arrays import bounds_between
from shardmill.shards.tokens.shard import TokenShard

Ints: TypeAlias = NDArray[np.int64]
Mask: TypeAlias = NDArray[np.bool_]
Blame: TypeAlias = Callable[[Mask, Ints, str], None]
UNLIKE = "has a medium that begins or ends unlike the others"
TOKENS_AT_ONCE = 1 << 22  # bounds the memory of a check
MAX_FAULTS = 20  # of one shard; a shard that is wrong throughout need not be listed throughout


@dataclass(frozen=True, slots=True)
class ContentFault:
    """A sample, row or pack that is not as it should be; `key` is '' for the shard itself."""

    key: str
    what: str


@dataclass(slots=True)
class Findings:
    """What was found in one shard."""

    counts: Counter[str] = field(default_factory=Counter)
    faults: list[ContentFault] = field(default_factory=list)
    num_faults: int = 0

    def count(self, name: str, amount: int = 1) -> None:
        """Add to a count."""
        self.counts[name] += amount

    def blame(self, key: str, what: str) -> None:
        """Record a fault; those beyond the first few are only counted."""
        self.num_faults += 1
        if len(self.faults) < MAX_FAULTS:
            self.faults.append(ContentFault(key, what))


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What content is measured by, besides the rules that always hold.

    `max_tokens` is for a row or pack, `num_patches` the number of tokens of every image in a
    pack, `space` the token space of packs whose folder does not tell it. `pairs` asks every sample
    for a medium and for text. Tars in a store or on the web are read only if `remote`.
    """

    max_tokens: int | None = None
    num_patches: int | None = None
    space: TokenSpace | None = None
    pairs: bool = False
    remote: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class MediaArrays:
    """Media of many rows: the row of each, its place among the ids, and its shape."""

    row: Ints
    start: Ints
    length: Ints
    before: Ints
    after: Ints
    grid: Ints


@dataclass(frozen=True, slots=True, eq=False)
class RowArrays:
    """Rows of tokens after each other; row i has the ids from `bounds[i]` to `bounds[i + 1]`."""

    ids: Ints
    bounds: Ints
    loss_row: Ints
    loss_start: Ints
    loss_length: Ints
    media: MediaArrays

    def __len__(self) -> int:
        return len(self.bounds) - 1


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
    body = _sum(shard.columns["media_length"])
    fixed = body + _sum(shard.columns["media_before"]) + _sum(shard.columns["media_after"])
    for name, amount in (("num_visual", body), ("num_fixed", fixed)):
        if amount != _sum(shard.columns[name]):
            findings.blame("", f"its column {name} does not add up to its media")
    _check_lengths(shard, limits, findings)
    return findings


def faults_of(rows: RowArrays, space: TokenSpace | None) -> dict[int, str]:
    """Return what is wrong with each row that is not as it should be.

    Without a space (packs of others) no id is known to be a code.
    """
    faults: dict[int, str] = {}

    def blame(bad: Mask, row: Ints, what: str) -> None:
        for number in row[bad].tolist():
            faults.setdefault(number, what)

    if space is not None:
        strange = (rows.ids < 0) | (rows.ids >= space.size)
        found = _between(strange, rows.bounds[:-1], rows.bounds[1:])
        blame(found > 0, np.arange(len(rows)), "has ids outside the token space")
    bad_loss, outside = _bad_loss(rows), _outside(rows)
    blame(bad_loss, rows.loss_row, "has loss spans that touch, go back or leave it")
    blame(outside, rows.media.row, "has media that overlap, go back or leave it")
    if not outside.any():
        learned = np.zeros(len(rows.ids), np.bool_) if bad_loss.any() else _learned(rows)
        _check_bodies(rows, space, learned, blame)
        _check_delimiters(rows, 0 if space is None else space.text_size, blame)
    return dict(sorted(faults.items()))


def _check_bodies(rows: RowArrays, space: TokenSpace | None, learned: Mask, blame: Blame) -> None:
    media, ids = rows.media, rows.ids
    end = media.start + media.length
    is_code = np.zeros(len(ids), np.bool_)
    if space is not None and space.num_codes:
        is_code = (ids >= space.code_offset) & (ids < space.code_offset + space.num_codes)
    num_codes = _between(is_code, media.start, end)
    changes = np.append(ids[1:] != ids[:-1], False)[: len(ids)]
    is_mixed = _between(changes, media.start, end - 1) > 0
    is_coded = num_codes > 0
    # A grid is (frames, rows, columns). Codes fill it, 2 x 3 with 6 tokens, or 8 if a token ends
    # each row. Placeholders may stand for k x k patches: 4 x 6 patches and 6 tokens are k x k = 4.
    cells = media.grid.prod(axis=1)
    row_ends = media.grid[:, 0] * media.grid[:, 1]
    is_whole = (media.length == cells) | (media.length == cells + row_ends)
    merged = cells // np.maximum(media.length, 1)
    side = np.sqrt(merged).round().astype(np.int64)
    is_merged = (merged * media.length == cells) & (side * side == merged)
    # An unknown grid fits any number of placeholders.
    fits = np.where(is_coded, is_whole & (num_codes == cells), is_merged | (cells == 0))
    blame(~fits, media.row, "has a medium that is not as large as its grid")
    blame(~is_coded & is_mixed, media.row, "has a medium of different placeholders")
    is_learned = _between(learned, media.start, end) > 0
    blame(~is_coded & is_learned, media.row, "learns placeholders, which say nothing")
    _check_strays(rows, is_code, num_codes, "codes", blame)
    patches = ids[media.start]
    for patch in np.unique(patches[~is_coded]).tolist():
        due = np.where(~is_coded & (patches == patch), media.length, 0)
        _check_strays(rows, ids == patch, due, "placeholders", blame)


def _check_delimiters(rows: RowArrays, text_size: int, blame: Blame) -> None:
    """Blame media without their delimiters, and delimiters without their media."""
    media, ids = rows.media, rows.ids
    first = ids[media.start - media.before]
    last = ids[media.start + media.length + media.after - 1]
    begins, ends = media.before > 0, media.after > 0
    opening, closing = _most_common(first[begins]), _most_common(last[ends])
    blame(begins & (first != opening), media.row, UNLIKE)
    blame(ends & (last != closing), media.row, UNLIKE)
    for token in {opening, closing}:
        # A delimiter below text_size may be a piece of text as well.
        if token >= text_size:
            due = (begins & (first == token)).astype(np.int64) + (ends & (last == token))
            _check_strays(rows, ids == token, due, "delimiters", blame)


def _most_common(tokens: Ints) -> int:
    """Return the token that occurs most often, -1 if there is none."""
    found, counts = np.unique(tokens, return_counts=True)
    return int(found[counts.argmax()]) if len(found) else -1


def _check_strays(rows: RowArrays, here: Mask, due: Ints, what: str, blame: Blame) -> None:
    found = _between(here, rows.bounds[:-1], rows.bounds[1:])
    expected = np.bincount(rows.media.row, due, len(rows)).astype(np.int64)
    blame(found != expected, np.arange(len(rows)), f"has {what} outside of its media")


def _bad_loss(rows: RowArrays) -> Mask:
    start, end = rows.loss_start, rows.loss_start + rows.loss_length
    bad: Mask = (rows.loss_length < 1) | (end > np.diff(rows.bounds)[rows.loss_row])
    bad[1:] |= (rows.loss_row[1:] == rows.loss_row[:-1]) & (start[1:] <= end[:-1])
    return bad


def _learned(rows: RowArrays) -> Mask:
    starts = rows.bounds[rows.loss_row] + rows.loss_start
    # +1 where a span begins and -1 where it ends: the running sum is 1 inside of spans.
    steps = np.zeros(len(rows.ids) + 1, np.int64)
    np.add.at(steps, starts, 1)
    np.add.at(steps, starts + rows.loss_length, -1)
    learned: Mask = np.cumsum(steps[:-1]) > 0
    return learned


def _outside(rows: RowArrays) -> Mask:
    media = rows.media
    first, last = media.start - media.before, media.start + media.length + media.after
    bad: Mask = (first < rows.bounds[media.row]) | (last > rows.bounds[media.row + 1])
    bad |= media.length < 1
    bad[1:] |= (media.row[1:] == media.row[:-1]) & (first[1:] < last[:-1])
    return bad


def _between(mask: Mask, start: Ints, end: Ints) -> Ints:
    """Return how many are True from each start to each end.

    Sums of all before each place answer any range by one subtraction: 0 0 1 2 2 for F T T F.
    """
    sums = np.zeros(len(mask) + 1, np.int64)
    np.cumsum(mask, out=sums[1:])
    between: Ints = sums[end] - sums[start]
    return between


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


def _rows(shard: TokenShard, numbers: range) -> RowArrays:
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

    return RowArrays(
        ids=_ids(shard, numbers, bounds),
        bounds=bounds,
        loss_row=np.repeat(np.arange(len(numbers)), np.diff(loss)),
        loss_start=column("loss_start", loss),
        loss_length=column("loss_length", loss),
        media=MediaArrays(
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
        shard.place(numbers[-1])  # which lies inside of the file only if all before it do
        start, _ = shard.place(numbers.start)
        ids = shard.data[start : start + int(bounds[-1])]
    else:
        ids = np.concatenate([shard.ids(number) for number in numbers])
    return np.asarray(ids, np.int64)


def _sum(values: NDArray[Any]) -> int:
    return int(values.sum(dtype=np.int64))
