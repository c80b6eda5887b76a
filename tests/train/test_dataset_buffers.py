"""A buffer is used again only when nobody looks at it any more."""

from __future__ import annotations

import gc

from shardmill.train.dataset import Buffers


def test_memory_in_use_is_never_handed_out_again() -> None:
    buffers = Buffers()
    first = buffers.take(1000)
    first[:] = b"a" * 1000
    kept = first[10:20]
    del first
    second = buffers.take(1000)
    second[:] = b"b" * 1000
    assert bytes(kept) == b"a" * 10
    del kept
    gc.collect()
    third = buffers.take(1000)
    assert bytes(third[:10]) == b"a" * 10, "the first buffer is used again"
    assert bytes(second[:10]) == b"b" * 10
    assert len(buffers.take(5 << 20)) == 5 << 20
