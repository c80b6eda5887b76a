"""From positions to numbers, epoch by epoch: packs (see `serve.plans`), or shuffled samples."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ConfigError
from shardmill.pack.permute import mix, permute
from shardmill.serve.schedule import NO_PACK, EqualEpochs, Sizes, Taken

STRETCH = 8192


class Order(Protocol):
    """One epoch: position -> number, each number once."""

    def packs(self, positions: NDArray[np.int64]) -> NDArray[Any]:
        """Return the number at each position."""


class ShuffledSamples:
    """Samples in an order of (seed, epoch), never listed, so that it takes no memory.

    Samples are shuffled inside windows of so many samples, and the windows among each other: a
    window of a few shards keeps the reading of remote or cold data together. None shuffles all.
    """

    def __init__(self, num_samples: int, *, seed: int, epoch: int, window: int | None) -> None:
        if window is not None and window < 1:
            raise ConfigError(f"window must be at least 1 sample, got {window}")
        self._size, self._key = num_samples, mix(seed, epoch)
        self._window = num_samples if window is None else min(window, num_samples)

    def packs(self, positions: NDArray[np.int64]) -> NDArray[np.uint32]:
        """Return the sample at each position."""
        window = self._window
        whole = self._size // window
        numbers = np.empty(len(positions), np.int64)
        # The last window may be short; it keeps its place at the end.
        nth, inside = np.divmod(positions, window)
        for number in np.unique(nth).tolist():
            mine = nth == number
            last = number == whole
            block = number if last else int(permute(np.array([number]), whole, self._key)[0])
            size = self._size - whole * window if last else window
            numbers[mine] = block * window + permute(inside[mine], size, mix(self._key, block, 1))
        return numbers.astype(np.uint32)


class Numbers:
    """The numbers that a rank takes, looked up in stretches of the order.

    Steps take positions one after another, and arithmetic on a few numbers at a time costs mostly
    the calls; so the order is worked out for 8192 positions at once and the last few are kept.
    """

    def __init__(self, sizes: Sizes, order_of: Callable[[int], Order]) -> None:
        self._sizes = sizes
        self._order_of = lru_cache(maxsize=2)(order_of)
        self._stretch = lru_cache(maxsize=4)(self._work_out)

    def of(self, taken: Taken) -> list[int]:
        """Return the number at each position taken, -1 where a step is padded."""
        stretch = self._stretch
        return [
            NO_PACK if at == NO_PACK else stretch(epoch, at // STRETCH)[at % STRETCH]
            for epoch, at in zip(taken.epochs, taken.positions)
        ]

    def _work_out(self, epoch: int, stretch: int) -> list[int]:
        first = stretch * STRETCH
        positions = np.arange(first, min(first + STRETCH, self._sizes.size(epoch)), dtype=np.int64)
        found: list[int] = self._order_of(epoch).packs(positions).tolist()
        return found


def sample_numbers(num_samples: int, seed: int, window: int | None = None) -> Numbers:
    """Return shuffled samples."""
    return Numbers(
        EqualEpochs(num_samples),
        lambda epoch: ShuffledSamples(num_samples, seed=seed, epoch=epoch, window=window),
    )
