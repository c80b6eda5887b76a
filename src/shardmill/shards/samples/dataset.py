"""All samples of a folder as one list: global numbers and keys, whichever shard they lie in.

The folder is one of ours (tar and index side by side) or one that `shardmill index` made, whose
indexes point at tars elsewhere. Shards are opened when first touched; the least recently used one
is closed when there are too many. Copies of the tars may arrive in a folder near by.
"""

from __future__ import annotations

import resource
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import FormatError
from shardmill.model.manifest import ShardEntry
from shardmill.model.sample import Sample
from shardmill.shards.ledger.ledger import open_manifest
from shardmill.shards.samples.shard import Raw, SampleShard
from shardmill.shards.tar.index import ShardIndex, hash_keys, open_index
from shardmill.shards.tar.members import Copies
from shardmill.storage.blob import open_blob
from shardmill.storage.cache import StagedCopies, fetch_copies
from shardmill.storage.path import as_path

MAX_OPEN = 1024
FILES_A_SHARD = 3
LOOK_AHEAD = 48


class SampleSet:
    """Samples of many shards; can be sent to another process, which opens its own files."""

    def __init__(
        self, folder: Path, entries: Sequence[ShardEntry], near: Path | None = None
    ) -> None:
        self.folder, self.near = folder, near
        self._staged = StagedCopies(near) if near else None
        self.entries = tuple(entry for entry in entries if entry.num_samples)
        self._starts = list(accumulate((e.num_samples for e in self.entries), initial=0))
        self._open: OrderedDict[int, SampleShard] = OrderedDict()
        self._max_open = most_open_shards()
        self._is_crowded = len(self.entries) > self._max_open
        self._hashes: tuple[NDArray[np.uint64], NDArray[np.int64]] | None = None

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, number: int) -> Sample:
        shard, inside = self.locate(number)
        return self.shard(shard)[inside]

    def __iter__(self) -> Iterator[Sample]:
        return (sample for shard in range(len(self.entries)) for sample in self.shard(shard))

    def __reduce__(self) -> tuple[object, ...]:
        return SampleSet, (self.folder, self.entries, self.near)

    def locate(self, number: int) -> tuple[int, int]:
        """Return (shard number, number in the shard) of a sample."""
        shard = bisect_right(self._starts, number) - 1
        if number < 0 or shard >= len(self.entries):
            raise IndexError(f"sample {number} of {len(self)}")
        return shard, number - self._starts[shard]

    def raw(self, number: int) -> Raw:
        """Return the members of a sample by extension."""
        shard, inside = self.locate(number)
        return self.shard(shard).raw(inside)

    def copies(self, number: int) -> Copies:
        """Return the members of a sample by extension, as bytes."""
        shard, inside = self.locate(number)
        return self.shard(shard).copies(inside)

    def key(self, number: int) -> str:
        """Return the key of a sample."""
        shard, inside = self.locate(number)
        return self.shard(shard).index.keys[inside]

    def fetch(self, numbers: Iterable[int]) -> Iterator[Raw]:
        """Yield the members of samples in a known order, while the next ones are being read."""
        order = iter(numbers)
        batch = self._announce(order)
        while batch:
            coming = self._announce(order)
            yield from self._read(batch)
            batch = coming

    def find(self, key: str) -> int | None:
        """Return the number of the sample with this key, or None."""
        number = int(self.find_all([key])[0])
        return None if number < 0 else number

    def find_all(self, keys: Sequence[str]) -> NDArray[np.int64]:
        """Return the numbers of the samples with these keys, -1 where there is none."""
        hashes, numbers = self._all_hashes()
        wanted = hash_keys([key.encode("utf-8", "surrogateescape") for key in keys])
        rows = np.searchsorted(hashes, wanted)
        found = np.full(len(keys), -1, np.int64)
        for i, row in enumerate(rows.tolist()):
            while row < len(hashes) and hashes[row] == wanted[i]:
                if self.key(int(numbers[row])) == keys[i]:
                    found[i] = numbers[row]
                    break
                row += 1
        return found

    def shard(self, number: int) -> SampleShard:
        """Return an open shard."""
        found = self._open.get(number)
        if found is not None:
            if self._is_crowded:
                self._open.move_to_end(number)
            return found
        while len(self._open) >= self._max_open:
            self._open.popitem(last=False)[1].close()
        found = self._open[number] = open_entry(self.folder, self.entries[number], self._staged)
        return found

    def renew(self) -> bool:
        """Close all shards if copies have come near; say whether they have."""
        if self._staged is None or not self._staged.has_news():
            return False
        self.close()
        return True

    def close(self) -> None:
        """Close all shards; they open again when they are needed."""
        while self._open:
            self._open.popitem()[1].close()

    def _announce(self, order: Iterator[int]) -> list[tuple[int, int]]:
        places = [self.locate(number) for number in islice(order, LOOK_AHEAD)]
        for shard_number in dict.fromkeys(shard for shard, _ in places):
            mine = [inside for shard, inside in places if shard == shard_number]
            self.shard(shard_number).prefetch(mine)
        return places

    def _read(self, places: Sequence[tuple[int, int]]) -> list[Raw]:
        # Samples of one shard are asked for together, so that a remote store can join requests.
        raws: list[Raw] = [{} for _ in places]
        for shard_number in dict.fromkeys(shard for shard, _ in places):
            mine = [i for i, (shard, _) in enumerate(places) if shard == shard_number]
            read = self.shard(shard_number).raw_all([places[i][1] for i in mine])
            for i, raw in zip(mine, read):
                raws[i] = raw
        return raws

    def _all_hashes(self) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        if self._hashes is None:
            fetch_copies(self.folder / entry.files["idx"].path for entry in self.entries)
            hashes = [np.empty(0, np.uint64)]
            numbers = [np.empty(0, np.int64)]
            for entry, start in zip(self.entries, self._starts):
                index = entry_index(self.folder, entry)
                hashes.append(index.arrays["hash"])
                numbers.append(start + index.arrays["hash_order"].astype(np.int64))
            joined = np.concatenate(hashes)
            order = np.argsort(joined, kind="stable")
            self._hashes = joined[order], np.concatenate(numbers)[order]
        return self._hashes


def open_samples(folder: Path, near: Path | None = None) -> SampleSet:
    """Open a finished folder of sample shards, or of indexes of foreign tars.

    `near` is where copies of the tars arrive, if anywhere.
    """
    entries = open_manifest(folder).shards
    for entry in entries:
        if "idx" not in entry.files:
            raise FormatError(
                f"shard {entry.name} has no index: this is not a folder of samples", path=folder
            )
    return SampleSet(as_path(folder), entries, near)


def entry_index(folder: Path, entry: ShardEntry) -> ShardIndex:
    """Open the index of a shard; it must hold as many samples as the receipt says."""
    path = folder / entry.files["idx"].path
    index = open_index(path)
    if len(index) != entry.num_samples:
        raise FormatError(
            f"holds {len(index)} samples, its receipt says {entry.num_samples}", path=path
        )
    return index


def open_entry(folder: Path, entry: ShardEntry, staged: StagedCopies | None = None) -> SampleShard:
    """Open a shard of ours, or the foreign tar that its index points at, or a copy near by."""
    index = entry_index(folder, entry)
    url, relative = place_of_tar(folder, entry, index)
    return SampleShard(open_blob(staged.find(url, relative) if staged else url), index)


def place_of_tar(folder: Path, entry: ShardEntry, index: ShardIndex) -> tuple[str, str]:
    """Return where the tar of a shard is, and the path that a copy of it has."""
    if "tar" in entry.files:
        relative = entry.files["tar"].path
        return str(folder / relative), relative
    if index.url is None:
        raise FormatError("does not say where its tar is", path=index.arrays.path)
    return index.url, f"shards/{entry.name}.tar"


def most_open_shards() -> int:
    """Return how many shards may be open: 1024, or a share of what the process may open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MAX_OPEN
    return max(1, min(MAX_OPEN, soft * 3 // 4 // FILES_A_SHARD))
