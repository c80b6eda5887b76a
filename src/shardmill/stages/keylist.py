"""A list of keys in a text file, and the rows of a shard that have one of them.

One key a line; empty lines and what follows a tab are passed over. A dot means `_`, because no key
has one and `ingest --key` stores "cat.jpg" as "cat_jpg". A key also means the rows that a long
sample was cut into: `K` means `K~1`, `K~2`, ... too.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ConfigError
from shardmill.io.codefile import ROLE as CODES
from shardmill.io.codefile import open_codes
from shardmill.io.index import hash_keys, open_index
from shardmill.io.strings import Strings
from shardmill.io.tokenfile import ROLES, open_token_shard
from shardmill.model.manifest import ShardEntry


def read_keys(path: Path) -> set[str]:
    """Return the keys of a file; one without any is a `ConfigError`."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the keys in {path}: {error}") from error
    keys = {line.partition("\t")[0].strip().replace(".", "_") for line in lines} - {""}
    if not keys:
        raise ConfigError(f"{path} names no keys")
    return keys


def rows_with_keys(folder: Path, shard: ShardEntry, keys: set[str]) -> list[int]:
    """Return the rows of a shard of samples, codes or tokens that these keys mean, in order."""
    files = {role: folder / entry.path for role, entry in shard.files.items()}
    if "spans" in files:
        names: Iterable[str] = open_token_shard({role: files[role] for role in ROLES}).keys
        return [row for row, name in enumerate(names) if whole_key(name, keys) is not None]
    if CODES in files:
        codes = open_codes(files[CODES])
        return _hashed_rows(codes.keys, codes.arrays["hash"], codes.arrays["hash_order"], keys)
    if "idx" in files:
        index = open_index(files["idx"])
        return _hashed_rows(index.keys, index.arrays["hash"], index.arrays["hash_order"], keys)
    raise ConfigError(f"{folder}: shard {shard.name} holds no samples, codes or tokens")


def whole_key(name: str, keys: set[str]) -> str | None:
    """Return the key that a row's name means, None if it is none of these."""
    if name in keys:
        return name
    head, mark, number = name.rpartition("~")
    return head if mark and number.isdecimal() and head in keys else None


def _hashed_rows(
    names: Strings, hashes: NDArray[np.uint64], order: NDArray[np.uint32], keys: set[str]
) -> list[int]:
    # Few keys of a shard are looked at as text: only those whose hash is among the wanted ones.
    wanted = hash_keys([key.encode("utf-8", "surrogateescape") for key in keys])
    rows = order[np.isin(hashes, wanted)].tolist()
    return sorted(row for row in rows if names[row] in keys)
