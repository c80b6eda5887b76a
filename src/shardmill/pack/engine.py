"""Which loops to plan with: numba's where it is installed, plain Python and numpy where it is not.

Both give the same plan to the last row; the choice is about time only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from shardmill.pack import emit, fit, halve, window
from shardmill.pack.halve import Packs
from shardmill.pack.patterns import Patterns
from shardmill.pack.window import Filled

EngineName = Literal["auto", "compiled", "plain"]
NO_LIMIT = 2**31 - 1

Lengths = NDArray[np.int32]
Histogram = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Engine:
    """The five loops of planning."""

    name: str
    best_fit: Callable[[Histogram, int, int], Patterns]
    fill_window: Callable[[Lengths, int, int, int, int, bool], Filled]
    sort_rows: Callable[[Lengths, NDArray[np.int64], int, Histogram], NDArray[np.uint32]]
    deal_rows: Callable[[Patterns, NDArray[np.uint32], Histogram], NDArray[np.uint32]]
    halve: Callable[[Packs, Packs, NDArray[np.bool_], int, NDArray[np.bool_]], None]


PLAIN = Engine(
    "plain", fit.best_fit, window.fill_window, emit.sort_rows, emit.deal_rows, halve.halve
)


@cache
def load_engine(name: EngineName = "auto") -> Engine:
    """Return the engine of this name; "auto" is the compiled one if numba is installed."""
    if name == "plain" or (name == "auto" and find_spec("numba") is None):
        return PLAIN
    compiled = import_module("shardmill.pack.compiled")
    return Engine(
        "compiled",
        compiled.best_fit,
        compiled.fill_window,
        compiled.sort_rows,
        compiled.deal_rows,
        compiled.halve,
    )
