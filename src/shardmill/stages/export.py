"""Export: finished shards become the files of another project's reader, a unit at a time.

The format decides what is written and where; this stage makes the units and calls the format.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from shardmill.errors import ConfigError
from shardmill.formats.format import ASPECTS, NAMES, Aspect, Format, kept_by
from shardmill.formats.rows import (
    ExportInput,
    Piece,
    Slice,
    lost_error,
    open_input,
    refuse_lost,
    token_batches,
)
from shardmill.formats.sharedfiles import write_rest
from shardmill.model.codec import Plain
from shardmill.model.manifest import Manifest
from shardmill.model.stage import Draft, Tally, Unit, Work
from shardmill.stages.inputs import check_numbers, identities_of

NUM_LOOKED_AT = 1000  # samples, before any work


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportShards:
    """The spec of an export; `num_shards` cuts the rows into as many even parts.

    `codes_dir` is the folder of codes of the samples in `input_dir`. What the format has no place
    for and the data has is refused, before any work, unless `drop` names it.
    """

    version: ClassVar[int] = 1
    content: ClassVar[str] = "export"

    input_dir: Path
    format: Format
    codes_dir: Path | None = None
    num_shards: int | None = None
    drop: tuple[Aspect, ...] = ()

    def __post_init__(self) -> None:
        check_numbers(self, "num_shards")
        name, kept = type(self.format).__name__, kept_by(self.format)
        if not kept:
            raise ConfigError(
                f"{name} does not say what it keeps of a row: give it the property keeps, such as "
                "frozenset({'tokens', 'documents'})"
            )
        for aspect in self.drop:
            if aspect not in ASPECTS:
                raise ConfigError(f"nothing is named {aspect!r}: drop some of {', '.join(ASPECTS)}")
            if aspect in kept:
                raise ConfigError(f"{name} has a place for {aspect}: leave it out of --drop")

    @property
    def left_out(self) -> tuple[Aspect, ...]:
        """What is not in the export though the data has it: names, and what the user dropped."""
        lost = {*self.drop, "keys"} - kept_by(self.format)
        return tuple(aspect for aspect in ASPECTS if aspect in lost)

    def reads(self) -> Mapping[str, tuple[str, ...]]:
        """Return {role: places} of what is read."""
        found = {"input": (str(self.input_dir),)}
        if self.codes_dir is not None:
            found["codes"] = (str(self.codes_dir),)
        samples = getattr(self.format, "samples", None)
        if samples is not None:
            found["samples"] = (str(samples),)
        return found

    def units(self) -> Iterator[Unit]:
        """Yield a unit for each shard of the input, or for each even part of its rows."""
        source = self._source()
        if self.codes_dir is not None and source.has_tokens:
            raise ConfigError(
                f"{self.input_dir} holds tokens, and codes are for samples: leave out --codes"
            )
        ranges = source.ranges(self.num_shards)
        codes: dict[str, Plain] = {} if source.codes is None else {"codes": source.codes.identity}
        places = list(self.format.plan(source, ranges))
        self._check_kept(source, ranges)
        for number, (slices, place) in enumerate(zip(ranges, places, strict=True)):
            piece = Piece(f"{number:05d}", slices, place)
            # The checksums of the input are in the unit's digest: other content is another unit.
            made_of = {**piece.to_plain(), "files": _files(source, slices), **codes}
            yield Unit(name=piece.name, input=made_of, num_samples=piece.num_rows)

    @contextmanager
    def open(self) -> Iterator[Work]:
        """Open the input, once a process."""
        source = self._source()

        def work(unit: Unit, draft: Draft, tally: Tally) -> None:
            self.format.write(source, Piece.of(unit), draft, tally)

        yield work

    def inputs(self) -> Mapping[str, Any]:
        """Return the identities of the folders that are read."""
        others = (self.codes_dir, getattr(self.format, "samples", None))
        return identities_of(self.input_dir, *(folder for folder in others if folder is not None))

    def shared_files(self, units: Sequence[Unit]) -> Mapping[str, int]:
        """Return the files that all units write together."""
        return self.format.shared_files(self._source(), [Piece.of(unit) for unit in units])

    def finish(self, manifest: Manifest, out_dir: Path) -> None:
        """Write the files that foreign readers begin with."""
        self.format.finish(self._source(), manifest, out_dir)
        write_rest(out_dir, manifest.shards)

    def _source(self) -> ExportInput:
        return open_input(self.input_dir, self.codes_dir, self._refused)

    @property
    def _refused(self) -> frozenset[Aspect]:
        """What must not be lost: names may be, and what the user says."""
        return frozenset(ASPECTS) - kept_by(self.format) - NAMES - {*self.drop}

    def _check_kept(self, source: ExportInput, ranges: Sequence[tuple[Slice, ...]]) -> None:
        """Raise `ConfigError` that names all that would be lost, each with the first row."""
        if not source.has_tokens:
            if source.shards and {"segments", "extra"} & self._refused:
                # The workers look at the rest.
                with source.sample_shard(0) as shard:
                    for sample in islice(shard, NUM_LOOKED_AT):
                        refuse_lost(sample, source)
            return
        lost: dict[Aspect, str] = {}
        for slices in ranges:
            for batch in token_batches(source, slices):
                for aspect, row in self.format.loses(batch, self._refused - lost.keys()):
                    lost[aspect] = f"{batch.shard.path}, {batch.key(row)!r}"
        if lost:
            raise lost_error(lost)


def _files(source: ExportInput, slices: Sequence[Slice]) -> dict[str, Plain]:
    """Return path -> checksum of the input's files that these rows lie in."""
    entries = [e for part in slices for e in source.shards[part.shard].files.values()]
    return {entry.path: entry.checksum for entry in entries}
