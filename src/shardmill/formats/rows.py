"""The rows that a reader is to see: rows of token shards as they are, packs as one row each.

Whether flat bytes are texts in UTF-8, one after the other.

The keys of many rows as a column of UTF-8, without a step a key.

Stored are prefix, width and number (`io.keycolumn`): "cc12m-", 8 and 42 are the bytes of "cc12m-"
and eight digits, woven together.

Pages of a mapped file asked for at once, which costs less than a fault for every few of them.

Neighbouring rows of a token shard as flat arrays, so that exports take no step a row.

A span of 3 tokens at place 7 of a row that begins at 100 is 107, 108, 109 of the flat arrays.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import FormatError
from shardmill.formats.format import ExportInput, Slice
from shardmill.formats.unidisc.fixedlength import FixedLength, account
from shardmill.model.sample import SEGMENT_KINDS
from shardmill.model.stage import Tally
from shardmill.shards.columns import KeyColumn, bounds_between
from shardmill.shards.tokens.ids import RemoteIds
from shardmill.shards.tokens.shard import TokenShard
from shardmill.shards.weave import Column, weave

HEAD_BITS = 0b1100_0000
CONTINUED = 0b1000_0000  # a byte that goes on with a character has these two bits


def continues(text: Any) -> NDArray[np.bool_]:
    """Return for each byte whether it goes on with the character of the byte before it."""
    found: NDArray[np.bool_] = (np.frombuffer(text, np.uint8) & HEAD_BITS) == CONTINUED
    return found


def is_utf8(text: Any, starts: NDArray[np.int64]) -> bool:
    """Say whether each text is UTF-8: all of them together are, and none begins in a character."""
    try:
        str(text, "utf-8")
    except UnicodeDecodeError:
        return False
    return not bool(continues(text)[starts[starts < len(text)]].any())


ZERO = ord("0")
POWERS = 10 ** np.arange(17, -1, -1, dtype=np.uint64)  # of eighteen digits


def key_texts(keys: KeyColumn, rows: NDArray[Any] | slice) -> Column:
    """Return the keys of these rows.

    Keys that are not UTF-8, and numbers too long for their width, are a `ValueError`.
    """
    prefix = keys.prefix[rows].astype(np.int64)
    bounds, widths = np.frombuffer(keys.prefixes.bounds, np.int64), keys.widths[prefix]
    heads = Column(
        np.frombuffer(keys.prefixes.data, np.uint8),
        bounds[prefix],
        bounds[prefix + 1] - bounds[prefix],
    )
    digits = _digits(keys.number[rows].astype(np.uint64), widths)
    ends = np.arange(1, len(prefix) + 1) * digits.shape[1]
    tails = Column(digits.reshape(-1), ends - widths, widths.astype(np.int64))
    found = weave([heads, tails])
    if not is_utf8(found.data, found.starts):
        raise ValueError("a key is not UTF-8, as texts must be")
    return found


def _digits(numbers: NDArray[np.uint64], widths: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the digits of each number, as many as the widest has, with zeros in front."""
    powers = POWERS[len(POWERS) - int(widths.max(initial=0)) :]
    if (numbers[widths > 0] // 10 ** widths[widths > 0].astype(np.uint64)).any():
        raise ValueError("a key has a number that is longer than its width")
    return (numbers[:, None] // powers % 10 + ZERO).astype(np.uint8)


MADV_POPULATE_READ = 22  # of Linux since 5.14; Python has no name for it


def populate(flat: NDArray[Any], start: int, stop: int) -> None:
    """Map the pages with the items `start` to `stop`, if the array is a whole mapped file.

    Nothing depends on it: elsewhere, and on older kernels, pages come when they are touched.
    """
    mapping = getattr(flat.base, "obj", None)
    if not isinstance(mapping, mmap.mmap) or sys.platform != "linux" or stop <= start:
        return
    first = start * flat.itemsize // mmap.PAGESIZE * mmap.PAGESIZE
    with suppress(OSError):
        mapping.madvise(MADV_POPULATE_READ, first, stop * flat.itemsize - first)


MAX_TOKENS = 1 << 22
MAX_ROWS = 1 << 62
Runs: TypeAlias = tuple[NDArray[np.uint8], NDArray[np.int64]]  # values, how often each; 0 is often


@dataclass(frozen=True, slots=True, eq=False)
class TokenSlice:
    """Rows `start` to `stop` of a shard; `bounds` are where each begins among their tokens."""

    shard: TokenShard
    start: int
    stop: int
    bounds: NDArray[np.int64]

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def num_tokens(self) -> int:
        """The tokens of all rows."""
        return int(self.bounds[-1])

    @property
    def lengths(self) -> NDArray[np.int32]:
        """The tokens of each row."""
        return self.shard.lengths[self.start : self.stop]

    @property
    def ids(self) -> NDArray[Any]:
        """The ids of all rows, mapped and not copied."""
        data = self.shard.data
        first = int(self.shard.offsets[self.start]) // data.itemsize if len(self) else 0
        if not isinstance(data, RemoteIds):
            populate(data, first, first + self.num_tokens)
        return data[first : first + self.num_tokens]

    @property
    def documents(self) -> NDArray[np.int64]:
        """The row at which each document begins, counted from this slice's first, and the end."""
        bounds = self.shard.documents
        first, last = np.searchsorted(bounds, [self.start, self.stop])
        return np.append(bounds[first:last] - self.start, len(self))

    def key_texts(self, rows: NDArray[np.int64] | None = None) -> Column:
        """Return the keys of these rows, or of all, as UTF-8."""
        wanted = slice(self.start, self.stop) if rows is None else rows + self.start
        try:
            return key_texts(self.shard.keys, wanted)
        except ValueError as error:
            raise FormatError(str(error), path=self.shard.spans.path) from error

    def loss_mask(self) -> NDArray[np.uint8]:
        """Return 1 for each token that is trained on, 0 for the others."""
        return np.repeat(*self.loss_runs())

    def modality(self) -> NDArray[np.uint8]:
        """Return 0 for each token of text, 1 of an image, 2 of a video, 3 of audio."""
        return np.repeat(*self.modality_runs())

    def loss_runs(self) -> Runs:
        """Return the loss mask as runs."""
        rows, mine = self._spans("loss")
        starts = self.bounds[rows] + self.shard.columns["loss_start"][mine]
        return self._runs(starts, self.shard.columns["loss_length"][mine])

    def modality_runs(self) -> Runs:
        """Return the modality as runs."""
        starts, lengths, _ = self.media()
        _, mine = self._spans("media")
        kinds = self.shard.columns["media_kind"][mine]
        if int(kinds.max(initial=0)) >= len(SEGMENT_KINDS):
            raise FormatError("has a medium of unknown kind", path=self.shard.spans.path)
        return self._runs(starts, lengths, kinds)

    def fixed_mask(self) -> NDArray[np.uint8]:
        """Return 1 for each token of a medium or its delimiters, 0 for text."""
        begins, ends = self.media_edges()
        return np.repeat(*self._runs(begins, ends - begins))

    def media_edges(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return where each medium and its delimiters begin and end among the tokens."""
        starts, lengths, _ = self.media()
        _, mine = self._spans("media")
        before, after = (
            self.shard.columns[f"media_{n}"][mine].astype(np.int64) for n in ("before", "after")
        )
        return starts - before, starts + lengths + after

    def media(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return the first flat token, the number of tokens and the row of each medium."""
        rows, mine = self._spans("media")
        starts = self.bounds[rows] + self.shard.columns["media_position"][mine]
        return starts, self.shard.columns["media_length"][mine].astype(np.int64), rows

    def _runs(
        self, starts: NDArray[Any], lengths: NDArray[Any], values: NDArray[Any] | int = 1
    ) -> Runs:
        try:
            return runs_between(starts, lengths, self.num_tokens, values)
        except ValueError as error:
            raise FormatError(str(error), path=self.shard.spans.path) from error

    def _spans(self, name: str) -> tuple[NDArray[np.int64], slice]:
        """Return the row of each span of these rows, and where the spans lie in their columns."""
        shard, rows = self.shard, range(self.start, self.stop)
        total = len(shard.columns[f"{name}_length"])
        bounds = bounds_between(shard.spans, f"{name}_bounds", rows, len(shard), total)
        owners = np.repeat(np.arange(len(self)), np.diff(bounds))
        return owners, slice(int(bounds[0]), int(bounds[-1]))


def token_slices(
    source: ExportInput,
    slices: Sequence[Slice],
    max_tokens: int = MAX_TOKENS,
    max_rows: int = MAX_ROWS,
) -> Iterator[TokenSlice]:
    """Yield the rows in order, whole documents at a time, about as many as the limits say."""
    for part in slices:
        shard = source.token_shard(part.shard)
        _check_rows(shard, part)
        start = part.start
        while start < part.stop:
            stop = _batch_end(shard, start, part.stop, max_tokens, max_rows)
            bounds = np.zeros(stop - start + 1, np.int64)
            np.cumsum(shard.lengths[start:stop], out=bounds[1:])
            yield TokenSlice(shard, start, stop, bounds)
            start = stop


def runs_between(
    starts: NDArray[Any], lengths: NDArray[Any], size: int, values: NDArray[Any] | int = 1
) -> Runs:
    """Return runs over `size` tokens with a span's value inside of it, and 0 elsewhere.

    The spans come in order and do not overlap: [(1, 2), (4, 1)] of 6 is 0 1 1 0 1 0, which is
    1, 2, 1, 1 and 1 tokens of 0, 1, 0, 1 and 0.
    """
    ends = starts.astype(np.int64) + lengths
    gaps = np.append(starts, size) - np.concatenate([[0], ends])
    if (gaps < 0).any() or (ends < starts).any():
        raise ValueError("spans overlap, or lie outside their rows")
    counts = np.empty(2 * len(starts) + 1, np.int64)
    counts[0::2], counts[1::2] = gaps, ends - starts
    found = np.zeros(len(counts), np.uint8)
    found[1::2] = values
    return found, counts


def _batch_end(shard: TokenShard, start: int, stop: int, max_tokens: int, max_rows: int) -> int:
    """Return the end of a run of whole documents: the last that fits, or one if none does."""
    limit = int(shard.offsets[start]) + max_tokens * shard.data.itemsize
    fitting = start + int(np.searchsorted(shard.offsets[start:stop], limit, side="right"))
    fitting = min(fitting, start + max_rows)
    if fitting >= stop:
        return stop
    documents = shard.documents
    last = int(np.searchsorted(documents, fitting, side="right")) - 1
    if last < 0 or int(documents[last]) <= start:
        last = int(np.searchsorted(documents, start, side="right"))
    return min(int(documents[last]), stop) if last < len(documents) else stop


def _check_rows(shard: TokenShard, part: Slice) -> None:
    """Raise `FormatError` unless the rows lie one after the other, without gaps."""
    offsets, lengths = shard.offsets[part.start : part.stop], shard.lengths[part.start : part.stop]
    ends = offsets + lengths.astype(np.int64) * shard.data.itemsize
    inside = not len(ends) or (offsets[0] >= 0 and ends[-1] <= shard.data.nbytes)
    if (
        part.stop > len(shard)
        or not inside
        or (lengths < 0).any()
        or (ends[:-1] != offsets[1:]).any()
    ):
        raise FormatError("its rows do not lie one after the other", path=shard.path)


@dataclass(frozen=True, slots=True, eq=False)
class TokenRows:
    """Some rows as flat arrays: row i has the tokens bounds[i] to bounds[i + 1].

    Of packs `members` are the first stored row of each pack and the end, and `documents` numbers
    the documents inside each pack, token by token.
    """

    part: TokenSlice
    bounds: NDArray[np.int64]
    members: NDArray[np.int64] | None

    def __len__(self) -> int:
        return len(self.bounds) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The tokens of each row."""
        return np.diff(self.bounds)

    @property
    def ids(self) -> NDArray[Any]:
        """The ids of all rows."""
        return self.part.ids

    @property
    def num_fixed(self) -> NDArray[Any]:
        """The tokens of each row that are never cut; a pack is not cut at all."""
        if self.members is not None:
            return self.lengths
        return self.part.shard.num_fixed[self.part.start : self.part.stop].astype(np.int64)

    @property
    def keys(self) -> KeysOfRows:
        """The key of each row, looked up when it is asked for."""
        return KeysOfRows(self.part, self.members)

    @property
    def stored(self) -> NDArray[np.int64]:
        """The first stored row of each row, and the end."""
        return np.arange(len(self) + 1) if self.members is None else self.members

    def key_texts(self) -> Column:
        """Return the key of each row, as UTF-8."""
        return self.part.key_texts(None if self.members is None else self.members[:-1])

    @property
    def documents(self) -> NDArray[np.int16] | None:
        """Of packs, the number of its document in its pack, for each token."""
        if self.members is None:
            return None
        inside = np.arange(len(self.part)) - np.repeat(self.members[:-1], np.diff(self.members))
        return np.repeat(inside, self.part.lengths).astype(np.int16)

    def account(self, rule: FixedLength, kept: NDArray[np.bool_], tally: Tally) -> None:
        """Enter the stored rows into the books; those of a dropped pack go with it."""
        lengths = self.lengths
        if self.members is not None:
            counts = np.diff(self.members)
            kept, lengths = np.repeat(kept, counts), np.repeat(lengths, counts)
        keys = KeysOfRows(self.part)
        account(tally, kept, keys, lambda row: rule.explain(int(lengths[row])))


@dataclass(frozen=True, slots=True, eq=False)
class KeysOfRows:
    """Keys by row number; a pack has that of its first row."""

    part: TokenSlice
    members: NDArray[np.int64] | None = None

    def __getitem__(self, row: int) -> str:
        place = row if self.members is None else int(self.members[row])
        return self.part.shard.keys[self.part.start + place]


def is_packed(source: ExportInput) -> bool:
    """Say whether the shards hold packs, which `shardmill pack` marks."""
    if not source.shards:
        return False
    about = source.token_shard(0).spans.meta.get("about")
    return isinstance(about, dict) and bool(about.get("packs"))


def token_rows(
    source: ExportInput,
    slices: Sequence[Slice],
    max_tokens: int = MAX_TOKENS,
    max_rows: int = MAX_ROWS,
) -> Iterator[TokenRows]:
    """Yield the rows in order, about as many tokens and stored rows at a time as the limits say."""
    packed = is_packed(source)
    for part in token_slices(source, slices, max_tokens, max_rows):
        members = part.documents if packed else None
        bounds = part.bounds if members is None else part.bounds[members]
        yield TokenRows(part, bounds, members)
