"""Small stages that misbehave on demand; worker processes import them by name."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from shardmill.errors import Filtered, SampleError
from shardmill.model.stage import Draft, Tally, Unit, Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """Writes a few lines to each unit's shards: deterministic bytes, rejects, two roles."""

    num_units: int = 12
    num_samples: int = 5
    sleep_s: float = 0.0
    salt: str = ""
    version: ClassVar[int] = 1

    def units(self) -> Iterator[Unit]:
        for i in range(self.num_units):
            yield Unit(name=f"{i:05d}", input={"i": i}, num_samples=self.num_samples)

    def inputs(self) -> Mapping[str, Any]:
        return {"count": self.num_units}

    @contextmanager
    def open(self) -> Iterator[Work]:
        yield self.work

    def work(self, unit: Unit, draft: Draft, tally: Tally) -> None:
        number = int(str(unit.input["i"]))
        with draft.file(unit.name, "txt").open("w") as text:
            for row in range(self.num_samples):
                with tally.sample(f"{unit.name}-{row}"):
                    time.sleep(self.sleep_s / self.num_samples)
                    if (number + row) % 7 == 0:
                        raise Filtered("seventh", f"row {row}")
                    text.write(hashlib.sha256(f"{self.salt}{number}-{row}".encode()).hexdigest())
                    tally.count("lines")
        draft.file(unit.name, "idx").write_bytes(number.to_bytes(8, "little"))
        draft.finish(unit.name, num_samples=tally.num_kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class Nothing:
    """Units without samples or shards: what is left is the runner."""

    num_units: int
    version: ClassVar[int] = 1

    def units(self) -> Iterator[Unit]:
        for i in range(self.num_units):
            yield Unit(name=f"{i:06d}", input={"i": i})

    def inputs(self) -> Mapping[str, Any]:
        return {}

    @contextmanager
    def open(self) -> Iterator[Work]:
        yield lambda unit, draft, tally: None
