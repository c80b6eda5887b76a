"""Diff: what changed between two folders of one kind, from their indexes and content hashes.

Of shards whose files are the same on both sides only the mix is counted. The samples of the others
are matched by the hashes of their keys, for which about 60 bytes a sample are held. Sample shards
have the hashes of keys and contents in their index; codes and tokens are hashed here, which reads
them, but no media.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import xxhash
from numpy.typing import NDArray

from shardmill.errors import ConfigError
from shardmill.model.manifest import ShardEntry
from shardmill.shards.arrays import hash_keys
from shardmill.shards.codes import CodeShard
from shardmill.shards.ledger import open_manifest
from shardmill.shards.tar.index import TarIndex
from shardmill.shards.tokens.shard import TokenShard
from shardmill.stages.inputs import ContentShard, files_of, open_content

LOW_HALF = (1 << 64) - 1
MAX_EXAMPLES = 10
Identity: TypeAlias = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceCounts:
    """How many samples and tokens a source has, before and after."""

    source: str
    samples: tuple[int, int]
    tokens: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TouchedShard:
    """A shard that is not the same on both sides; `side` is "before" or "after"."""

    side: str
    name: str
    num_samples: int
    added: int = 0
    removed: int = 0
    changed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderDiff:
    """What changed; examples are keys."""

    num_samples: tuple[int, int]
    num_tokens: tuple[int, int]
    added: int
    removed: int
    changed: int
    examples: dict[str, list[str]]
    num_same_shards: int
    shards: tuple[TouchedShard, ...]
    mix: tuple[SourceCounts, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Fingerprints:
    """Of each row the hash of its key, and the two halves of that of its content."""

    keys: NDArray[np.uint64]
    content: NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.keys)


@dataclass(frozen=True, slots=True, eq=False)
class _Side:
    """A folder: its shards, which of them the other does not have, and the rows of those."""

    folder: Path
    shards: tuple[ShardEntry, ...]
    touched: list[int]
    parts: list[Fingerprints]
    rows: Fingerprints

    @property
    def num_samples(self) -> int:
        """The samples of all shards."""
        return sum(shard.num_samples for shard in self.shards)

    def owners(self) -> NDArray[np.int64]:
        """Return the number of the shard of each row."""
        return np.repeat(np.array(self.touched, np.int64), [len(part) for part in self.parts])


def diff_folders(before: Path, after: Path) -> FolderDiff:
    """Return what changed from one finished folder to another."""
    old, new = open_manifest(before), open_manifest(after)
    if old.content != new.content and old.shards and new.shards:
        raise ConfigError(
            f"{before} holds {old.content} and {after} {new.content}: give two folders of one kind"
        )
    shards_a, shards_b = old.shards, new.shards
    same = Counter(map(_identity, shards_a)) & Counter(map(_identity, shards_b))
    a, b = _open(before, shards_a, same), _open(after, shards_b, same)
    only_a, only_b, changed = _match(a.rows, b.rows)
    mix = tuple(_mix(a, b))
    return FolderDiff(
        num_samples=(a.num_samples, b.num_samples),
        num_tokens=(sum(m.tokens[0] for m in mix), sum(m.tokens[1] for m in mix)),
        added=len(only_b),
        removed=len(only_a),
        changed=len(changed[0]),
        examples={
            "added": _examples(b, only_b),
            "removed": _examples(a, only_a),
            "changed": _examples(b, changed[1]),
        },
        num_same_shards=same.total(),
        shards=(
            *_touched(a, "before", removed=only_a, changed=changed[0]),
            *_touched(b, "after", added=only_b, changed=changed[1]),
        ),
        mix=mix,
    )


def _identity(shard: ShardEntry) -> Identity:
    return tuple(sorted((role, entry.checksum) for role, entry in shard.files.items()))


def _open(folder: Path, shards: tuple[ShardEntry, ...], same: Counter[Identity]) -> _Side:
    # Counted, not only known: one of two equal shards is touched if the other side has but one.
    left, touched = same.copy(), []
    for number, shard in enumerate(shards):
        if left[_identity(shard)] > 0:
            left[_identity(shard)] -= 1
        else:
            touched.append(number)
    parts = [fingerprint_shard(_opened(folder, shards[number])) for number in touched]
    rows = Fingerprints(
        np.concatenate([np.empty(0, np.uint64), *(part.keys for part in parts)]),
        np.concatenate([np.empty((0, 2), np.uint64), *(part.content for part in parts)]),
    )
    return _Side(folder, shards, touched, parts, rows)


def _opened(folder: Path, shard: ShardEntry) -> ContentShard:
    return open_content(files_of(folder, shard))


def _match(
    a: Fingerprints, b: Fingerprints
) -> tuple[NDArray[np.int64], NDArray[np.int64], tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Return rows only in a, rows only in b, and (rows in a, in b) with other content."""
    _, in_a, in_b = np.intersect1d(a.keys, b.keys, assume_unique=False, return_indices=True)
    differs = (a.content[in_a] != b.content[in_b]).any(axis=1)
    only_a = np.flatnonzero(~np.isin(a.keys, b.keys))
    only_b = np.flatnonzero(~np.isin(b.keys, a.keys))
    return only_a, only_b, (np.sort(in_a[differs]), np.sort(in_b[differs]))


def _touched(side: _Side, name: str, **rows: NDArray[np.int64]) -> Iterator[TouchedShard]:
    owners = side.owners()
    counts = {what: Counter(owners[some].tolist()) for what, some in rows.items()}
    for number in side.touched:
        shard = side.shards[number]
        found = {what: count[number] for what, count in counts.items()}
        yield TouchedShard(side=name, name=shard.name, num_samples=shard.num_samples, **found)


def _examples(side: _Side, rows: NDArray[np.int64]) -> list[str]:
    owners = side.owners()
    starts = dict(zip(side.touched, np.cumsum([0, *(len(part) for part in side.parts)]).tolist()))
    return [
        _opened(side.folder, side.shards[owners[row]]).keys[row - starts[int(owners[row])]]
        for row in rows[:MAX_EXAMPLES].tolist()
    ]


def _mix(a: _Side, b: _Side) -> Iterator[SourceCounts]:
    """Yield samples and tokens by source, before and after."""
    sides = [_count_sources(side) for side in (a, b)]
    for source in sorted({name for side in sides for name, _ in side}):
        yield SourceCounts(
            source=source,
            samples=(sides[0][source, "samples"], sides[1][source, "samples"]),
            tokens=(sides[0][source, "tokens"], sides[1][source, "tokens"]),
        )


def _count_sources(side: _Side) -> Counter[tuple[str, str]]:
    counts: Counter[tuple[str, str]] = Counter()
    for shard in side.shards:
        counts.update(mix_of_shard(_opened(side.folder, shard)))
    return counts


def fingerprint_shard(shard: ContentShard) -> Fingerprints:
    """Return the fingerprints of the rows of a shard, in order."""
    match shard:
        case TokenShard():
            return _of_tokens(shard)
        case CodeShard():
            return _of_codes(shard)
    return _of_samples(shard)


def mix_of_shard(shard: ContentShard) -> Counter[tuple[str, str]]:
    """Return (source, "samples") and (source, "tokens") -> how many, from the index alone."""
    counts: Counter[tuple[str, str]] = Counter()
    match shard:
        case TokenShard():
            for source, length in zip(shard.sources, shard.lengths.tolist()):
                counts[source, "samples"] += 1
                counts[source, "tokens"] += length
        case CodeShard():
            counts["", "samples"], counts["", "tokens"] = len(shard), shard.codes.size
        case index:
            numbers = np.bincount(index.column("source"), minlength=len(index.sources)).tolist()
            counts.update({(name, "samples"): n for name, n in zip(index.sources, numbers) if n})
    return counts


def _of_samples(index: TarIndex) -> Fingerprints:
    # The index has its hashes sorted, for lookups; `hash_order` says whose each of them is.
    keys = np.empty(len(index), np.uint64)
    keys[index.arrays["hash_order"]] = index.arrays["hash"]
    content = index.column("content")
    if not content.any():
        # Tars that were only indexed: the sizes of the members are all that is known.
        sizes = (index.members(number) for number in range(len(index)))
        content = _hashes(repr([(m.ext, m.size) for m in some]).encode() for some in sizes)
    return Fingerprints(keys, content)


def _of_codes(shard: CodeShard) -> Fingerprints:
    keys = np.empty(len(shard), np.uint64)
    keys[shard.arrays["hash_order"]] = shard.arrays["hash"]
    content = _hashes(
        b"".join(
            repr((p.medium, p.codes.shape)).encode() + p.codes.tobytes() for p in shard.images(n)
        )
        for n in range(len(shard))
    )
    return Fingerprints(keys, content)


def _of_tokens(shard: TokenShard) -> Fingerprints:
    names = [name.encode("utf-8", "surrogateescape") for name in shard.keys]
    content = _hashes(
        shard.ids(row).tobytes() + shard.loss(row).tobytes() + repr(shard.media(row)).encode()
        for row in range(len(shard))
    )
    return Fingerprints(hash_keys(names), content)


def _hashes(contents: Iterable[bytes]) -> NDArray[np.uint64]:
    whole = [xxhash.xxh3_128_intdigest(content) for content in contents]
    halves = [(value >> 64, value & LOW_HALF) for value in whole]
    return np.array(halves, np.uint64).reshape(-1, 2)
