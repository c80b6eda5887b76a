"""What an export reads: a finished folder of tokens or packs, or of samples with their codes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np

from shardmill.errors import ConfigError
from shardmill.formats.codejoin import CodeJoin, join_codes
from shardmill.io.megatron import open_index
from shardmill.io.receipts import open_manifest
from shardmill.io.sampleset import open_entry
from shardmill.io.sampleshard import SampleShard
from shardmill.io.tokenfile import ROLES, TokenShard, open_token_shard
from shardmill.model.manifest import ShardEntry
from shardmill.model.space import TokenSpace

# The first shard is asked for its space again and again, the others come one after the other.
MAX_OPEN = 2


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows `start` to `stop` of one shard of the input, by its number in the manifest."""

    shard: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class ExportInput:
    """The shards of the input; few are open at a time, so that memory is bounded by a shard."""

    folder: Path
    shards: tuple[ShardEntry, ...]
    codes: CodeJoin | None = None
    _open: dict[int, TokenShard] = field(default_factory=dict)

    @property
    def has_tokens(self) -> bool:
        """Whether the shards hold tokens or packs; otherwise they hold samples."""
        return bool(self.shards) and "spans" in self.shards[0].files

    @property
    def num_rows(self) -> int:
        """All rows of all shards."""
        return sum(shard.num_samples for shard in self.shards)

    def token_shard(self, number: int) -> TokenShard:
        """Map a shard of tokens; `ConfigError` if the folder holds something else."""
        if number in self._open:
            return self._open[number]
        entry = self.shards[number]
        if any(role not in entry.files for role in ROLES):
            raise ConfigError(
                f"{self.folder} holds no tokens (shard {entry.name} has "
                f"{', '.join(sorted(entry.files))}): make them with shardmill tokenize"
            )
        while len(self._open) >= MAX_OPEN:
            del self._open[next(iter(self._open))]
        files = {role: self.folder / entry.files[role].path for role in ROLES}
        return self._open.setdefault(number, open_token_shard(files))

    def sample_shard(self, number: int) -> SampleShard:
        """Open a shard of samples; `ConfigError` if the folder holds something else."""
        self.check_samples(number)
        return open_entry(self.folder, self.shards[number])

    def check_samples(self, number: int = 0) -> None:
        """Raise `ConfigError` unless a shard, or the first of all, holds samples."""
        for entry in self.shards[number : number + 1]:
            if "idx" not in entry.files or "spans" in entry.files:
                raise ConfigError(
                    f"{self.folder} holds no samples (shard {entry.name} has "
                    f"{', '.join(sorted(entry.files))}): give the folder that ingest or filter made"
                )

    def space(self) -> TokenSpace:
        """Return the token space of the shards; an empty folder has none."""
        if not self.shards:
            raise ConfigError(f"{self.folder} is empty: there is nothing to export")
        return self.token_shard(0).space

    def ranges(self, num_units: int | None) -> list[tuple[Slice, ...]]:
        """Return the rows of each unit: a shard each, or as many even parts as asked for.

        Parts begin where a document begins, so that no pack is torn.
        """
        if num_units is None:
            return [(Slice(n, 0, shard.num_samples),) for n, shard in enumerate(self.shards)]
        starts = list(accumulate((s.num_samples for s in self.shards), initial=0))
        cuts = [starts[-1] * part // num_units for part in range(num_units + 1)]
        places = [self._document_start(cut, starts) for cut in cuts]
        return [tuple(self._between(*pair, starts)) for pair in pairwise(places)]

    def _document_start(self, row: int, starts: list[int]) -> int:
        shard = int(np.searchsorted(starts, row, side="right")) - 1
        if row == starts[shard] or row == starts[-1] or not self.has_tokens:
            return row
        index = open_index(self.folder / self.shards[shard].files["idx"].path)
        place = int(np.searchsorted(index.documents, row - starts[shard], side="right")) - 1
        return starts[shard] + int(index.documents[max(place, 0)])

    def _between(self, first: int, last: int, starts: list[int]) -> Iterator[Slice]:
        for number, (start, end) in enumerate(pairwise(starts)):
            if first < end and last > start:
                yield Slice(number, max(first, start) - start, min(last, end) - start)


def open_input(folder: Path, codes_dir: Path | None = None) -> ExportInput:
    """Open a finished folder, and the folder of its codes; a half-written one is refused."""
    manifest = open_manifest(folder)
    codes = None if codes_dir is None else join_codes(codes_dir)
    return ExportInput(folder, manifest.shards, codes)
