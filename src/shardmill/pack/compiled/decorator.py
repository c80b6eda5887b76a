"""numba's decorator with types: the compiled function looks like the one that was written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compile at the first call, and keep the machine code on disk."""
    return cast(Function, njit(cache=True)(function))


def inlined(function: Function) -> Function:
    """Compile into each caller, where its loops can be vectorised."""
    return cast(Function, njit(cache=True, inline="always")(function))
