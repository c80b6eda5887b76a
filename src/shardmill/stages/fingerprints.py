"""The samples of a shard by two numbers each: the hash of the key, and that of the content.

Sample shards have both in their index. Codes and tokens are hashed here, which reads them, but no
media. Rows are in the order of the shard.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from shardmill.errors import ConfigError
from shardmill.io.codefile import ROLE as CODES
from shardmill.io.codefile import CodeShard, open_codes
from shardmill.io.index import ShardIndex, hash_keys, open_index
from shardmill.io.tokenfile import ROLES, TokenShard, open_token_shard
from shardmill.model.manifest import ShardEntry

LOW_HALF = (1 << 64) - 1


@dataclass(frozen=True, slots=True, eq=False)
class Fingerprints:
    """Of each row the hash of its key, and the two halves of that of its content."""

    keys: NDArray[np.uint64]
    content: NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.keys)


def fingerprint_shard(folder: Path, shard: ShardEntry) -> Fingerprints:
    """Return the fingerprints of a shard of samples, codes or tokens."""
    files = {role: folder / entry.path for role, entry in shard.files.items()}
    if "spans" in files:
        return _of_tokens(open_token_shard({role: files[role] for role in ROLES}))
    if CODES in files:
        return _of_codes(open_codes(files[CODES]))
    if "idx" in files:
        return _of_samples(open_index(files["idx"]))
    raise ConfigError(f"{folder}: shard {shard.name} holds no samples, codes or tokens")


def mix_of_shard(folder: Path, shard: ShardEntry) -> Counter[tuple[str, str]]:
    """Return (source, "samples") and (source, "tokens") -> how many, from the index alone."""
    files = {role: folder / entry.path for role, entry in shard.files.items()}
    counts: Counter[tuple[str, str]] = Counter()
    if "spans" in files:
        tokens = open_token_shard({role: files[role] for role in ROLES})
        for source, length in zip(tokens.sources, tokens.lengths.tolist()):
            counts[source, "samples"] += 1
            counts[source, "tokens"] += length
    elif CODES in files:
        codes = open_codes(files[CODES])
        counts["", "samples"], counts["", "tokens"] = len(codes), codes.codes.size
    else:
        index = open_index(files["idx"])
        numbers = np.bincount(index.column("source"), minlength=len(index.sources)).tolist()
        counts.update({(name, "samples"): n for name, n in zip(index.sources, numbers) if n})
    return counts


def key_of_row(folder: Path, shard: ShardEntry, row: int) -> str:
    """Return the key of a row, for people who ask which one it was."""
    files = {role: folder / entry.path for role, entry in shard.files.items()}
    if "spans" in files:
        return open_token_shard({role: files[role] for role in ROLES}).keys[row]
    if CODES in files:
        return open_codes(files[CODES]).keys[row]
    return open_index(files["idx"]).keys[row]


def _of_samples(index: ShardIndex) -> Fingerprints:
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
            repr((p.medium, p.codes.shape)).encode() + p.codes.tobytes() for p in shard.pictures(n)
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


def join_fingerprints(parts: Sequence[Fingerprints]) -> Fingerprints:
    """Return the rows of several shards after each other."""
    return Fingerprints(
        np.concatenate([np.empty(0, np.uint64), *(part.keys for part in parts)]),
        np.concatenate([np.empty((0, 2), np.uint64), *(part.content for part in parts)]),
    )
