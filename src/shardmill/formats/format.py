"""What an export format is: how it writes rows, and how its folders are read again.

A format is a frozen dataclass below `Format`, named in the table FORMATS of plugins.py, or any
class of a user as 'package.module:Class'. The stage `Export` calls its methods in this order:

    plan          once, before any work: look over the whole input, refuse what cannot be, and say
                  for each unit where its rows go
    shared_files  once: the files that all units write together, if the reader wants one file
    write         for each unit, in parallel: write shards into the draft, or ranges in place
    finish        once every unit has its receipt: the small files that make the folder readable

A killed export can never be opened by mistake: a foreign reader begins with a file that `finish`
writes (state.json, index.json, meta.json, the header of an .idx).

`holds` and `records` read a finished export again, for `check --same`, `show`, `view` and
`sm.open`; a format that needs a reader of its own returns it from `open`.

What an export reads is a finished folder of tokens or packs, or of samples with their codes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from shardmill.errors import ConfigError
from shardmill.formats.reader import Aspect, FolderReader, Reader, Record
from shardmill.model.codec import Plain
from shardmill.model.manifest import Manifest, ShardEntry
from shardmill.model.space import TokenSpace
from shardmill.model.stage import Draft, Tally, Unit
from shardmill.shards.codes import CodeJoin, join_codes
from shardmill.shards.ledger import open_manifest
from shardmill.shards.samples import SampleShard, open_entry
from shardmill.shards.tokens.ids import open_megatron_index
from shardmill.shards.tokens.shard import ROLES, TokenShard, open_token_shard

# The first shard is asked for its space again and again, the others come one after the other.
MAX_OPEN = 2
Place: TypeAlias = Mapping[str, Plain]


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows `start` to `stop` of one shard of the input, by its number in the manifest."""

    shard: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


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

    def to_plain(self) -> dict[str, Plain]:
        """Return the part of a unit's input that `of` reads."""
        slices: Plain = [[part.shard, part.start, part.stop] for part in self.slices]
        return {"slices": slices, "place": dict(self.place)}

    @classmethod
    def of(cls, unit: Unit) -> Piece:
        """Return the rows and the place that a unit of `Export` names."""
        slices: Any = unit.input["slices"]
        place: Any = unit.input["place"]
        return cls(unit.name, tuple(Slice(*part) for part in slices), place)


@dataclass(frozen=True, slots=True)
class ExportInput:
    """The shards of the input; few are open at a time, so that memory is bounded by a shard."""

    folder: Path
    shards: tuple[ShardEntry, ...]
    codes: CodeJoin | None = None
    _open: dict[int, TokenShard] = field(default_factory=dict)

    @property
    def has_tokens(self) -> bool:
        """Whether the shards hold tokens or packs; otherwise they hold samples."""
        return bool(self.shards) and "spans" in self.shards[0].files

    @property
    def holds_packs(self) -> bool:
        """Whether the shards hold packs, which `shardmill pack` marks."""
        return bool(self.shards) and self.token_shard(0).holds_packs

    @property
    def num_rows(self) -> int:
        """All rows of all shards."""
        return sum(shard.num_samples for shard in self.shards)

    def token_shard(self, number: int) -> TokenShard:
        """Map a shard of tokens; `ConfigError` if the folder holds something else."""
        if number in self._open:
            return self._open[number]
        entry = self.shards[number]
        if any(role not in entry.files for role in ROLES):
            raise ConfigError(
                f"{self.folder} holds no tokens (shard {entry.name} has "
                f"{', '.join(sorted(entry.files))}): make them with shardmill tokenize"
            )
        while len(self._open) >= MAX_OPEN:
            del self._open[next(iter(self._open))]
        files = {role: self.folder / entry.files[role].path for role in ROLES}
        return self._open.setdefault(number, open_token_shard(files))

    def sample_shard(self, number: int) -> SampleShard:
        """Open a shard of samples; `ConfigError` if the folder holds something else."""
        self.check_samples(number)
        return open_entry(self.folder, self.shards[number])

    def check_samples(self, number: int = 0) -> None:
        """Raise `ConfigError` unless a shard, or the first of all, holds samples."""
        for entry in self.shards[number : number + 1]:
            if "idx" not in entry.files or "spans" in entry.files:
                raise ConfigError(
                    f"{self.folder} holds no samples (shard {entry.name} has "
                    f"{', '.join(sorted(entry.files))}): give the folder that ingest or filter made"
                )

    def space(self) -> TokenSpace:
        """Return the token space of the shards; an empty folder has none."""
        if not self.shards:
            raise ConfigError(f"{self.folder} is empty: there is nothing to export")
        return self.token_shard(0).space

    def ranges(self, num_units: int | None) -> list[tuple[Slice, ...]]:
        """Return the rows of each unit: a shard each, or as many even parts as asked for.

        Parts begin where a document begins, so that no pack is torn.
        """
        if num_units is None:
            return [(Slice(n, 0, shard.num_samples),) for n, shard in enumerate(self.shards)]
        starts = list(accumulate((s.num_samples for s in self.shards), initial=0))
        cuts = [starts[-1] * part // num_units for part in range(num_units + 1)]
        places = [self._document_start(cut, starts) for cut in cuts]
        return [tuple(self._between(*pair, starts)) for pair in pairwise(places)]

    def _document_start(self, row: int, starts: list[int]) -> int:
        shard = int(np.searchsorted(starts, row, side="right")) - 1
        if row == starts[shard] or row == starts[-1] or not self.has_tokens:
            return row
        index = open_megatron_index(self.folder / self.shards[shard].files["idx"].path)
        place = int(np.searchsorted(index.documents, row - starts[shard], side="right")) - 1
        return starts[shard] + int(index.documents[max(place, 0)])

    def _between(self, first: int, last: int, starts: list[int]) -> Iterator[Slice]:
        for number, (start, end) in enumerate(pairwise(starts)):
            if first < end and last > start:
                yield Slice(number, max(first, start) - start, min(last, end) - start)


def open_input(folder: Path, codes_dir: Path | None = None) -> ExportInput:
    """Open a finished folder, and the folder of its codes; a half-written one is refused."""
    manifest = open_manifest(folder)
    codes = None if codes_dir is None else join_codes(codes_dir)
    return ExportInput(folder, manifest.shards, codes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Format(ABC):
    """An export format; only `write` has no default."""

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
        """Write the files of the whole, each at once or not at all (`atomic.write_file`)."""

    def holds(self, folder: Path) -> frozenset[Aspect]:
        """Return what a record of an export has: see reader.py for the aspects."""
        raise ConfigError(
            f"{folder}: {type(self).__name__} has no reader: give it the methods holds and records"
        )

    def records(self, folder: Path, shard: ShardEntry) -> Iterator[Record]:
        """Yield the records of a shard of an export; needed together with `holds`."""
        raise NotImplementedError

    def count(self, folder: Path, shard: ShardEntry) -> int:
        """Return how many records a shard has, if they are not the samples that were counted."""
        return shard.num_samples

    def open(self, folder: Path, space: TokenSpace | None) -> Reader:
        """Return the reader of a finished export; this one calls `holds`, `records` and `count`.

        `space` is the token space of what was exported, None if that folder is gone. A format
        whose own index says where its records are returns another reader.
        """
        return FormatReader(format=self, dir=str(folder), space=space)


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatReader(FolderReader):
    """Reads an export shard by shard with the methods of its format."""

    format: Format

    def holds(self) -> frozenset[Aspect]:
        """Return what the format says."""
        return self.format.holds(Path(self.dir))

    def records(self, shard: ShardEntry) -> Iterator[Record]:
        """Yield what the format finds in a shard."""
        return self.format.records(Path(self.dir), shard)

    def count(self, shard: ShardEntry) -> int:
        """Return what the format counts."""
        return self.format.count(Path(self.dir), shard)


def needed_space(space: TokenSpace | None, folder: Path) -> TokenSpace:
    """Return the space; `ConfigError` if it is not known, for formats that cannot do without."""
    if space is None:
        raise ConfigError(
            f"{folder} does not say its token space, and the folder that it was exported from is "
            "gone: compare it with a folder of tokens"
        )
    return space
