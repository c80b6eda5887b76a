"""What a foreign format is; the one stage `Export` drives all of them.

A format is a frozen dataclass below `Format`, in the table FORMATS of plugins.py. Its methods are
called in this order:

    plan          once, before any work: look over the whole input, refuse what cannot be, and say
                  for each unit where its rows go
    shared_files  once: the files that all units write together, if the reader wants one file
    write         for each unit, in parallel: write shards into the draft, or ranges in place
    finish        once every unit has its receipt: the small files that make the folder readable

The last is why nobody believes half an export: a foreign reader begins with the file that `finish`
writes (state.json, index.json, meta.json, the header of an .idx).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from shardmill.formats.inputs import ExportInput, Slice
from shardmill.model.codec import Plain
from shardmill.model.manifest import Manifest
from shardmill.model.stage import Draft, Tally, Unit

Place: TypeAlias = Mapping[str, Plain]


@dataclass(frozen=True, slots=True)
class Piece:
    """The rows of one unit in order, and what `Format.plan` said about them."""

    name: str
    slices: tuple[Slice, ...]
    place: Mapping[str, Any]

    @property
    def num_rows(self) -> int:
        """All rows of all slices."""
        return sum(len(part) for part in self.slices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Format(ABC):
    """A foreign format; only `write` has no default."""

    def plan(self, source: ExportInput, ranges: Sequence[tuple[Slice, ...]]) -> Iterator[Place]:
        """Yield for each unit what else decides its bytes; `ConfigError` for what cannot be.

        What is yielded is part of the unit's digest, such as the first row of a shared file.
        """
        for _ in ranges:
            yield {}

    def shared_files(self, source: ExportInput, pieces: Sequence[Piece]) -> Mapping[str, int]:
        """Return name -> size of the files that units write together."""
        return {}

    @abstractmethod
    def write(self, source: ExportInput, piece: Piece, draft: Draft, tally: Tally) -> None:
        """Write one unit and account for each of its rows."""

    def finish(self, source: ExportInput, manifest: Manifest, out_dir: Path) -> None:  # noqa: B027
        """Write the files of the whole, each at once or not at all (`io.atomic.write_file`)."""


def piece_to_plain(slices: Sequence[Slice], place: Place) -> dict[str, Plain]:
    """Return the part of a unit's input that `piece_of` reads."""
    return {"slices": [[s.shard, s.start, s.stop] for s in slices], "place": dict(place)}


def piece_of(unit: Unit) -> Piece:
    """Return the rows and the place that a unit of `Export` names."""
    slices: Any = unit.input["slices"]
    place: Any = unit.input["place"]
    return Piece(unit.name, tuple(Slice(*part) for part in slices), place)
