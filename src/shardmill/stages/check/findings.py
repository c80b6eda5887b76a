"""What checks of content report: counts that add up over shards, and faults by sample."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from shardmill.model.space import TokenSpace

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
