"""Folders of sample shards made from given samples, for tests of the stages that read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from shardmill.model.sample import MediaSize, Sample
from shardmill.model.stage import Draft, Tally, Unit, Work
from shardmill.running.runner import run_stage
from shardmill.shards.samples import SampleWriter

# Samples hold bytes, which a spec cannot; so the spec only names them.
_SHELVES: dict[str, tuple[list[Sample], MediaSize | None]] = {}


@dataclass(frozen=True, slots=True)
class StoreSamples:
    """A stage that writes samples that a test gave it."""

    version: ClassVar[int] = 1
    content: ClassVar[str] = "samples"

    shelf: str
    per_shard: int

    def reads(self) -> Mapping[str, tuple[str, ...]]:
        return {}

    def units(self) -> Iterator[Unit]:
        samples, _ = _SHELVES[self.shelf]
        for start in range(0, len(samples), self.per_shard):
            yield Unit(name=f"{start:06d}", input={"start": start})

    @contextmanager
    def open(self) -> Iterator[Work]:
        samples, size = _SHELVES[self.shelf]

        def work(unit: Unit, draft: Draft, tally: Tally) -> None:
            start: Any = unit.input["start"]
            with SampleWriter(draft, lambda _: unit.name) as writer:
                for sample in samples[start : start + self.per_shard]:
                    with tally.sample(sample.key):
                        sizes = {} if size is None else dict.fromkeys(sample.media, size)
                        writer.add(sample, sizes)

        yield work

    def inputs(self) -> Mapping[str, Any]:
        return {}


def store_samples(
    folder: Path, samples: list[Sample], per_shard: int, size: MediaSize | None = None
) -> Path:
    """Return the folder, which now holds these samples."""
    _SHELVES[str(folder)] = (samples, size)
    assert run_stage(StoreSamples(str(folder), per_shard), folder, workers=0).complete
    return folder
