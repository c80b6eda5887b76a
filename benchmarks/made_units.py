"""Units that cost as little or as much as one asks for, in a module that workers can import."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from shardmill.model.stage import Draft, Tally, Unit, Work


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeUnits:
    """Each unit computes `num_rounds` and writes `num_files` of 100 bytes; by default nothing."""

    num_units: int
    num_rounds: int = 0
    num_files: int = 0
    version: ClassVar[int] = 1
    content: ClassVar[str] = "other"

    def reads(self) -> Mapping[str, tuple[str, ...]]:
        return {}

    def units(self) -> Iterator[Unit]:
        """Yield numbered units."""
        return (Unit(name=f"{i:06d}", input={"i": i}) for i in range(self.num_units))

    def inputs(self) -> Mapping[str, Any]:
        """Return nothing: there is no input."""
        return {}

    @contextmanager
    def open(self) -> Iterator[Work]:
        """Yield the work."""
        yield self._work

    def _work(self, unit: Unit, draft: Draft, tally: Tally) -> None:
        spin(self.num_rounds)
        for number in range(self.num_files):
            draft.file(unit.name, f"f{number}").write_bytes(bytes(100))
            draft.finish(unit.name, num_samples=0)


def spin(num_rounds: int) -> int:
    """Compute in one thread."""
    total = 0
    for number in range(num_rounds):
        total = (total * 31 + number) % 1_000_003
    return total
