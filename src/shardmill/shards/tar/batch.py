"""Many samples of the same members as the bytes of a tar, laid out in columns to be woven.

The bytes are those of `plan_sample`, sample by sample. What needs a second look, such as a name
that does not fit into one header, is left to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import SampleError
from shardmill.shards.tar.header import BLOCK, MAX_NAME_BYTES, MAX_OCTAL_SIZE, header_columns
from shardmill.shards.tar.names import Layout, check_ext, check_key, member_name
from shardmill.shards.weave import Column, filling, lengths_of

# All but letters, digits and signs that may stand anywhere in a name.
UNUSUAL = np.isin(np.arange(256), [*range(0x20, 0x7F)], invert=True)
UNUSUAL[[ord("."), ord("/")]] = True
# The extension of a member, and its content as columns to be woven.
Member = tuple[str, Sequence[Column]]


@dataclass(frozen=True, slots=True, eq=False)
class TarBatch:
    """Samples that are laid out: offsets and sizes have a row a sample, a column a member.

    `starts` and `offsets` count from the first header of the batch, which `columns` weave.
    """

    keys: Column
    exts: tuple[str, ...]
    columns: Sequence[Column]
    num_bytes: int
    starts: NDArray[np.int64]
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]


def lay_out(
    keys: Column,
    members: Sequence[Member],
    layout: Layout = "dotted",
) -> TarBatch | None:
    """Lay out samples that all have these members; None if one must be looked at by itself.

    Keys are UTF-8, and their bytes lie one after the other.
    """
    exts = tuple(ext for ext, _ in members)
    endings = [member_name("", ext, layout).encode() for ext in exts]
    if not _are_names(keys) or not _are_plain(exts, endings):
        return None
    sizes = np.stack([lengths_of(columns) for _, columns in members], axis=1)
    longest = int(keys.lengths.max(initial=0)) + max(map(len, endings))
    if longest > MAX_NAME_BYTES or int(sizes.max(initial=0)) >= MAX_OCTAL_SIZE:
        return None
    columns: list[Column] = []
    for ending, size, (_, content) in zip(endings, sizes.T, members):
        columns += [*header_columns(keys, ending, size), *content, filling(-size % BLOCK)]
    taken = BLOCK + sizes + -sizes % BLOCK
    ends = np.cumsum(taken).reshape(taken.shape)
    starts = ends[:, 0] - taken[:, 0]
    return TarBatch(keys, exts, columns, int(taken.sum()), starts, ends - taken + BLOCK, sizes)


def _are_names(keys: Column) -> bool:
    """Say whether keys can be names, at one glance; some signs take a second one."""
    together = keys.data.tobytes()
    is_filled = int(keys.lengths.min(initial=1)) > 0
    if is_filled and b"__" not in together and not UNUSUAL[keys.data].any():
        return True
    try:
        for key in keys.contents():
            check_key(key.decode())
    except (SampleError, UnicodeDecodeError):
        return False
    return True


def _are_plain(exts: Sequence[str], endings: Sequence[bytes]) -> bool:
    for ext in exts:
        check_ext(ext)
    # With a dot after the key no two names are the same, unless their keys and extensions are.
    return len(set(exts)) == len(exts) > 0 and all(ending[0] == ord(".") for ending in endings)
