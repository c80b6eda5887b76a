"""Specs with every kind of field, for tests of the codec."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    """A spec inside of a spec."""

    size: int
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Twin:
    """The same fields as `Inner`."""

    size: int
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    """A spec with every kind of field."""

    inner: Inner
    many: tuple[Inner, ...] = ()
    pair: tuple[int, str] = (0, "")
    rate: float = 0.0
    mode: Literal["fast", "slow"] = "fast"
    path: Path | None = None
    table: Mapping[str, int] = field(default_factory=dict)
    either: int | str = 0
