"""A finished folder of sample shards, made without ingesting anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from finished_folder import finish_folder, shard_entry

from shardmill.model.sample import MediaSize, Sample
from shardmill.model.stage import Draft
from shardmill.shards.samples import SampleWriter

Rows = Sequence[tuple[Sample, Mapping[str, MediaSize]]]


def write_sample_folder(folder: Path, shards: Sequence[Rows]) -> Path:
    """Write samples with the media sizes their index shall have; returns the folder."""
    (folder / "shards").mkdir(parents=True)
    draft = Draft(folder / "shards")
    for number, rows in enumerate(shards):
        with SampleWriter(draft, lambda _, number=number: f"{number:06d}") as writer:  # type: ignore[misc]
            for sample, sizes in rows:
                writer.add(sample, sizes)
    written = draft.shards.values()
    return finish_folder(
        folder, [shard_entry(folder, s.name, s.num_samples or 0, s.roles) for s in written]
    )
