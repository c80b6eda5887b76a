"""All token shards of a folder as one list of rows, opened when first touched."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

from shardmill.errors import FormatError
from shardmill.model.manifest import Manifest, ShardEntry
from shardmill.model.space import TokenSpace
from shardmill.model.tokenrow import TokenRow
from shardmill.shards.tokens.file import ROLES, TokenShard, open_token_shard
from shardmill.storage.cache import StagedCopies
from shardmill.storage.path import UrlPath, as_path


@dataclass(slots=True, eq=False)
class TokenSet:
    """Row numbers of a whole data set: shard by shard in manifest order.

    It can be sent to another process: what travels is the list of files, not the maps.
    """

    folder: Path
    entries: tuple[ShardEntry, ...]
    near: Path | None = None
    _staged: StagedCopies | None = None
    _starts: list[int] = field(default_factory=list)
    _open: dict[int, TokenShard] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._starts = list(accumulate((e.num_samples for e in self.entries), initial=0))
        self._staged = StagedCopies(self.near) if self.near else None

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, number: int) -> TokenRow:
        shard, row = self.locate(number)
        return self.shard(shard)[row]

    def __iter__(self) -> Iterator[TokenRow]:
        return (row for shard in range(len(self.entries)) for row in self.shard(shard))

    def __getstate__(self) -> tuple[Path, tuple[ShardEntry, ...], Path | None]:
        return self.folder, self.entries, self.near

    def __setstate__(self, state: tuple[Path, tuple[ShardEntry, ...], Path | None]) -> None:
        self.folder, self.entries, self.near = state
        self._open = {}
        self.__post_init__()

    @property
    def space(self) -> TokenSpace | None:
        """The token space of the first shard; None if there is none."""
        return self.shard(0).space if self.entries else None

    def locate(self, number: int) -> tuple[int, int]:
        """Return (shard number, row in it) of a row of the data set."""
        if not 0 <= number < len(self):
            raise IndexError(f"row {number} of {len(self)}")
        shard = bisect_right(self._starts, number) - 1
        return shard, number - self._starts[shard]

    def find(self, key: str) -> int | None:
        """Return the number of the row with this key, or None."""
        for shard, start in enumerate(self._starts[:-1]):
            row = self.shard(shard).keys.find(key)
            if row is not None:
                return start + row
        return None

    def ids(self, number: int) -> Any:
        """Return the ids of a row, mapped and not copied."""
        shard, row = self.locate(number)
        return self.shard(shard).ids(row)

    def prefetch(self, numbers: Sequence[int]) -> None:
        """Say that these rows will be read soon; of a local folder nothing is done."""
        if not isinstance(self.folder, UrlPath):
            return
        places = [self.locate(number) for number in numbers]
        for shard in dict.fromkeys(shard for shard, _ in places):
            self.shard(shard).prefetch([row for other, row in places if other == shard])

    def renew(self) -> bool:
        """Open all shards again if copies have come near; say whether they have."""
        if self._staged is None or not self._staged.has_news():
            return False
        self._open = {}  # maps that are in use stay as long as they are
        return True

    def shard(self, number: int) -> TokenShard:
        """Return a shard by its place in the manifest; all shards must have one token space."""
        found = self._open.get(number)
        if found is None:
            found = self._open[number] = self._opened(self.entries[number])
            if number and self._open.get(0) is not None:
                self._open[0].space.check_same(found.space)
        return found

    def _opened(self, entry: ShardEntry) -> TokenShard:
        missing = [role for role in ROLES if role not in entry.files]
        if missing:
            what = f"holds no tokens: shard {entry.name} has no file {missing[0]!r}"
            to_do = "tokenize it first, or measure it for a model that takes pixels"
            raise FormatError(f"{what}; {to_do}", path=self.folder)
        shard = open_token_shard({r: self._place(entry.files[r].path) for r in ROLES})
        if len(shard) != entry.num_samples:
            raise FormatError(
                f"has {len(shard)} rows, the manifest says {entry.num_samples}", path=shard.path
            )
        return shard

    def _place(self, relative: str) -> Path:
        original = self.folder / relative
        if self._staged is None:
            return original
        return as_path(self._staged.find(str(original), relative))


def open_token_set(folder: Path, manifest: Manifest, near: Path | None = None) -> TokenSet:
    """Return the rows of a finished folder of token shards; copies may arrive `near` by."""
    return TokenSet(folder, manifest.shards, near)
