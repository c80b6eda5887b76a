"""Collects the rows of one shard's length table: text is encoded in batches, not one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from numpy.typing import ArrayLike

from shardmill.io.lengths import write_lengths
from shardmill.model.lengths import length_table
from shardmill.tokens.estimate import TokenCount
from shardmill.tokens.pixelchat import Written
from shardmill.tokens.processed import TextCounter

BATCH_CHARS = 1 << 22
NOTHING = TokenCount(0, 0, 0)


@dataclass(slots=True)
class LengthRows:
    """The rows of one shard in the order of its samples; rejected samples have a row, too."""

    counter: TextCounter | None = None
    counts: list[TokenCount] = field(default_factory=list)
    rejects: list[int] = field(default_factory=list)
    reasons: dict[str, int] = field(default_factory=dict)
    exact: bool = True
    _waiting: list[tuple[int, Written]] = field(default_factory=list)
    _chars: int = 0

    def __len__(self) -> int:
        return len(self.counts)

    def add_written(self, written: Written) -> None:
        """Append a sample whose text is yet to be encoded."""
        self._waiting.append((len(self.counts), written))
        self._chars += len(written.text)
        self.exact &= written.exact
        self._append(NOTHING, 0)
        if self._chars >= BATCH_CHARS:
            self.encode()

    def add_estimate(self, count: TokenCount) -> None:
        """Append a sample whose length is only an estimate."""
        self.exact = False
        self._append(count, 0)

    def add_reject(self, reason: str) -> None:
        """Append a sample that cannot be used."""
        self._append(NOTHING, self.reasons.setdefault(reason, len(self.reasons) + 1))

    def encode(self) -> None:
        """Count the tokens of all samples that wait for it."""
        if not self._waiting:
            return
        assert self.counter is not None
        rows, written = zip(*self._waiting)
        for row, count in zip(rows, count_written(self.counter, written)):
            self.counts[row] = count
        self._waiting.clear()
        self._chars = 0

    def write(
        self, path: Path, *, shard: str, source: ArrayLike, source_names: Sequence[str]
    ) -> None:
        """Write the table of this shard; `source` numbers the source of each sample."""
        self.encode()
        table = length_table(
            [count.num_tokens for count in self.counts],
            num_visual=[count.num_visual for count in self.counts],
            num_fixed=[count.num_fixed for count in self.counts],
            source=source,
            source_names=source_names,
            reject=self.rejects,
            reject_reasons=list(self.reasons),
            shard_names=[shard],
            shard_starts=[0, len(self.counts)],
            exact=self.exact,
        )
        write_lengths(path, table)

    def _append(self, count: TokenCount, reject: int) -> None:
        self.counts.append(count)
        self.rejects.append(reject)


def count_written(counter: TextCounter, written: Sequence[Written]) -> list[TokenCount]:
    """Return the counts of samples: their text with delimiters, and the tokens not spelled out."""
    totals = counter.rendered_lengths([w.text for w in written]).tolist()
    spelled = sorted({visual.text for visual in chain.from_iterable(w.visuals for w in written)})
    delimiters = dict(zip(spelled, counter.lengths(spelled).tolist())) if spelled else {}
    counts = []
    for total, sample in zip(totals, written):
        hidden = sum(visual.num_hidden for visual in sample.visuals)
        fixed = sum(delimiters[v.text] + v.num_hidden + v.num_outer for v in sample.visuals)
        num_visual = sum(visual.num_visual for visual in sample.visuals)
        # Delimiters that are plain text may merge with their neighbours, never below the media.
        num_fixed = min(fixed, total + hidden)
        counts.append(TokenCount(total + hidden, num_visual, num_fixed))
    return counts
