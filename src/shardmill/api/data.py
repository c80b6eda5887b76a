"""What lies in a place, opened: samples, codes, tokens, packs, lengths, a plan or an export.

`open` finds out what lies there; every verb returns the same object for what it made. All of them
have a length, items by number, by key and by slice, keys, counts, rejects and a readable repr, and
stand for their place wherever a path is asked for.
"""

from __future__ import annotations

import html
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import accumulate, islice
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from shardmill import humanize
from shardmill.api.values import Place, to_path
from shardmill.errors import ConfigError, ShardmillError
from shardmill.model.codec import from_plain
from shardmill.model.manifest import Manifest
from shardmill.model.plan import PackPlan
from shardmill.model.sample import Sample
from shardmill.model.space import TokenSpace
from shardmill.model.stage import Reject
from shardmill.model.tokenrow import TokenRow
from shardmill.packing.order import EpochOrder
from shardmill.shards.arrays import read_format
from shardmill.shards.codes import ROLE as CODES
from shardmill.shards.codes import CodeShard, ImageCodes, open_codes
from shardmill.shards.ledger import (
    Ledger,
    describe_unfinished,
    open_manifest,
    read_rejects,
    reject_lists,
)
from shardmill.shards.places import find_data
from shardmill.shards.plans import TABLE_NAME, open_lengths, open_plan
from shardmill.shards.samples import SampleDataset, entry_index
from shardmill.shards.tokens.shard import TokenDataset
from shardmill.storage.path import UrlPath

if TYPE_CHECKING:
    from shardmill.formats.format import Part, Reader, Record
    from shardmill.model.plan import LengthTable
    from shardmill.packing.report import PlanReport
    from shardmill.running.progress import RunReport

Item = TypeVar("Item")


class Counts(NamedTuple):
    """How many samples went in, and how many were kept; the others are in `skipped`."""

    num_in: int
    num_kept: int


class Length(NamedTuple):
    """The tokens of a sample; `reject` says why it cannot be packed, None if it can."""

    num_tokens: int
    num_visual: int
    source: str
    reject: str | None


class Data(Generic[Item]):
    """What lies at `path`; `report` is there if a verb has just made it.

    A folder that is not finished can be held, as a verb with `part=` returns it, but not read:
    then reading says what is missing and what to run.
    """

    item: ClassVar[str] = "sample"

    def __init__(self, path: Place, report: RunReport | None = None) -> None:
        self.path, self.report = to_path(path), report

    def __fspath__(self) -> str:
        return str(self.path)

    @cached_property
    def manifest(self) -> Manifest:
        """The shards, the counts and the spec; `ShardmillError` if the folder is not finished."""
        return open_manifest(self.path)

    @property
    def complete(self) -> bool:
        """Whether every unit of the folder is done."""
        return Ledger(self.path).manifest_path.exists()

    @property
    def spec(self) -> Any:
        """The spec that made it."""
        return from_plain(self.manifest.stage, where=f"{self.path}/manifest.json")

    @property
    def counts(self) -> Counts:
        """How many samples went in, and how many were kept."""
        return Counts(self.manifest.num_in, self.manifest.num_kept)

    @property
    def skipped(self) -> dict[str, int]:
        """How many samples were skipped, by reason, the most frequent first."""
        return dict(sorted(self.manifest.skipped.items(), key=lambda found: -found[1]))

    def rejects(self) -> Iterator[Reject]:
        """Yield every skipped sample with its key, its reason and the detail."""
        for path in reject_lists(self.path).values():
            yield from read_rejects(path)

    def keys(self) -> Iterator[str]:
        """Yield the keys in order."""
        raise ConfigError(f"{self._name} has no keys: ask for items by number")

    def find(self, key: str) -> int | None:
        """Return the number of the item with this key, None if there is none."""
        return next((number for number, name in enumerate(self.keys()) if name == key), None)

    def _missing(self, key: str) -> str:
        return f"{self._name} has no {self.item} with the key {key!r}"

    def __len__(self) -> int:
        raise self._unreadable()

    def _item(self, number: int) -> Item:
        raise self._unreadable()

    def _unreadable(self) -> ShardmillError:
        content = self.manifest.content
        return ConfigError(f"{self.path} holds {content!r:.100}, which only its own stage can read")

    @overload
    def __getitem__(self, which: int | str) -> Item: ...

    @overload
    def __getitem__(self, which: slice) -> list[Item]: ...

    def __getitem__(self, which: int | str | slice) -> Item | list[Item]:
        if isinstance(which, slice):
            return [self._item(number) for number in range(*which.indices(len(self)))]
        if isinstance(which, str):
            number = self.find(which)
            if number is None:
                raise KeyError(self._missing(which))
            return self._item(number)
        which, size = index(which), len(self)
        if not -size <= which < size:
            raise IndexError(f"{self._name} has {humanize.plural(size, self.item)}, not {which}")
        return self._item(which % size)

    def __iter__(self) -> Iterator[Item]:
        return (self._item(number) for number in range(len(self)))

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self.find(key) is not None

    def __repr__(self) -> str:
        if not self.complete:
            return f"{self._name}: not finished"
        return f"{self._name}: {', '.join(self._facts())}"

    def _repr_html_(self) -> str:
        """Show the facts and the reasons of rejects in a notebook."""
        rows = [*self.skipped.items()] if self.complete else []
        cells = "".join(
            f"<tr><td>{html.escape(reason)}</td><td style='text-align:right'>{count:,}</td></tr>"
            for reason, count in rows
        )
        table = f"<table><tr><th>skipped</th><th></th></tr>{cells}</table>" if rows else ""
        return f"<p><code>{html.escape(repr(self))}</code></p>{table}"

    @property
    def _name(self) -> str:
        return f"{type(self).__name__} {humanize.place(self.path)!r}"

    def _facts(self) -> Iterator[str]:
        manifest = self.manifest
        shards = humanize.plural(len(manifest.shards), "shard")
        yield f"{humanize.plural(len(self), self.item)} in {shards}"
        yield humanize.size(manifest.num_bytes)
        if manifest.skipped:
            yield f"{sum(manifest.skipped.values()):,} skipped"


class Samples(Data[Sample]):
    """Samples in tars; `shards[3].text`, `shards["key"].images[0]`."""

    @cached_property
    def _set(self) -> SampleDataset:
        return SampleDataset(self.path, self.manifest.shards)

    def __len__(self) -> int:
        return len(self._set)

    def _item(self, number: int) -> Sample:
        return self._set[number]

    def find(self, key: str) -> int | None:
        """Return the number of the sample with this key, None if there is none."""
        return self._set.find(key)

    def keys(self) -> Iterator[str]:
        """Yield the keys in order; reads the indexes, no media."""
        for entry in self._set.entries:
            yield from entry_index(self.path, entry).keys


class Codes(Data[list[ImageCodes]]):
    """The VQ codes of the images of each sample."""

    @cached_property
    def _shards(self) -> list[CodeShard]:
        return [open_codes(self.path / e.files[CODES].path) for e in self.manifest.shards]

    @cached_property
    def _starts(self) -> list[int]:
        return list(accumulate(map(len, self._shards), initial=0))

    def __len__(self) -> int:
        return self._starts[-1]

    def _item(self, number: int) -> list[ImageCodes]:
        shard = bisect_right(self._starts, number) - 1
        return self._shards[shard].images(number - self._starts[shard])

    def find(self, key: str) -> int | None:
        """Return the number of the sample with this key, None if there is none."""
        for start, shard in zip(self._starts, self._shards):
            number = shard.find(key)
            if number is not None:
                return start + number
        return None

    def keys(self) -> Iterator[str]:
        """Yield the keys of the samples in order."""
        for shard in self._shards:
            yield from shard.keys


class Tokens(Data[TokenRow]):
    """Rows of token ids with their loss spans and media."""

    item = "row"

    @cached_property
    def _set(self) -> TokenDataset:
        return TokenDataset(self.path, self.manifest.shards)

    @property
    def space(self) -> TokenSpace | None:
        """The token space; None if there are no shards."""
        return self._set.space

    def __len__(self) -> int:
        return len(self._set)

    def _item(self, number: int) -> TokenRow:
        return self._set[number]

    def find(self, key: str) -> int | None:
        """Return the number of the row with this key, None if there is none."""
        return self._set.find(key)

    def keys(self) -> Iterator[str]:
        """Yield the keys in order."""
        for number in range(len(self._set.entries)):
            yield from self._set.shard(number).keys


class Export(Data["Record"]):
    """Records of an export, or of the tokens of another program, as their format stores them."""

    item = "record"

    @cached_property
    def reader(self) -> Reader:
        """The reader of the format; `holds()` says which aspects its records have."""
        from shardmill.formats.finder import open_reader

        if isinstance(self.path, UrlPath):
            raise ConfigError(f"{self.path} is an export in a store: copy it to a disk to read it")
        return open_reader(str(self.path))

    @property
    def holds_samples(self) -> bool:
        """Whether the export is a folder of samples as any other: tars with documents and media."""
        from shardmill.formats.format import SamplesReader

        return not isinstance(self.path, UrlPath) and isinstance(self.reader, SamplesReader)

    @cached_property
    def _parts(self) -> list[Part]:
        return list(self.reader.parts())

    @cached_property
    def _is_foreign(self) -> bool:
        return Ledger(self.path).read_stage() is None

    @property
    def complete(self) -> bool:
        """Whether it is finished; what another program made is taken as it is."""
        return self._is_foreign or super().complete

    @property
    def counts(self) -> Counts:
        """How many samples went in, and how many were kept: all that another program wrote."""
        return Counts(len(self), len(self)) if self._is_foreign else super().counts

    @property
    def skipped(self) -> dict[str, int]:
        """How many samples were skipped, by reason; what another program skipped is not known."""
        return {} if self._is_foreign else super().skipped

    def __len__(self) -> int:
        return sum(part.num_records for part in self._parts)

    def _item(self, number: int) -> Record:
        return next(self._from(number))

    def _from(self, number: int) -> Iterator[Record]:
        """Yield the records from this number on; the parts before it are not read."""
        for part in self._parts:
            if number < part.num_records:
                yield from islice(self.reader.read(part.input), number, None)
            number = max(0, number - part.num_records)

    def __iter__(self) -> Iterator[Record]:
        return self._from(0)

    def find(self, key: str) -> int | None:
        """Return the number of the record that has this key, or a document with it."""
        # From the first on: the formats of others have no index of keys.
        for number, record in enumerate(self):
            if key == record.key or any(key == row.key for row in record.rows):
                return number
        return None

    def keys(self) -> Iterator[str]:
        """Yield the keys in order; `ConfigError` if the format keeps none."""
        if "keys" not in self.reader.holds():
            return super().keys()
        return (record.key for record in self)

    def _facts(self) -> Iterator[str]:
        yield humanize.plural(len(self), self.item)
        yield f"with {', '.join(sorted(self.reader.holds() - {'words', 'idx'}))}"


class Packs(Export):
    """Packs on disk: each is a record whose rows are its documents."""

    item = "pack"


class Lengths(Data[Length]):
    """The tokens of every sample, counted by `measure`: a folder of it, or the table alone."""

    @cached_property
    def table(self) -> LengthTable:
        """The columns of the table."""
        if self.path.is_file():
            return open_lengths(self.path)
        # Says what is missing: the table is merged from the shards when the last one is there.
        open_manifest(self.path)
        return open_lengths(self.path / TABLE_NAME)

    @property
    def complete(self) -> bool:
        """Whether every unit of the folder is done."""
        return self.path.is_file() or super().complete

    @property
    def counts(self) -> Counts:
        """How many samples have a row, and how many of them can be packed."""
        return Counts(len(self.table), int((self.table.reject == 0).sum()))

    @property
    def skipped(self) -> dict[str, int]:
        """How many samples cannot be packed, by reason."""
        reasons = [self.table.reject_reasons[n - 1] for n in self.table.reject.tolist() if n]
        return dict(Counter(reasons).most_common())

    def __len__(self) -> int:
        return len(self.table)

    def _item(self, number: int) -> Length:
        table = self.table
        reject = int(table.reject[number])
        return Length(
            num_tokens=int(table.num_tokens[number]),
            num_visual=int(table.num_visual[number]),
            source=table.source_names[int(table.source[number])],
            reject=table.reject_reasons[reject - 1] if reject else None,
        )

    def _facts(self) -> Iterator[str]:
        total = int(self.table.num_tokens.sum(dtype=np.int64))
        yield humanize.plural(len(self), self.item)
        yield humanize.plural(total, "token")
        yield "exact" if self.table.exact else "estimates"


class Plan(Data[Any]):
    """Which samples stand together in which pack; an item is the row numbers of a pack.

    `report` is there if `sm.plan` has just made it: fill, padding, balance, sources.
    """

    item = "pack"

    report: PlanReport | None  # type: ignore[assignment]

    def __init__(
        self, path: Place, report: PlanReport | None = None, table: LengthTable | None = None
    ) -> None:
        self.path, self.report, self.table = to_path(path), report, table

    @cached_property
    def plan(self) -> PackPlan:
        """The arrays of the plan, mapped."""
        return open_plan(self.path)

    def order(self, *, seed: int = 0, epoch: int = 0) -> NDArray[Any]:
        """Return the numbers of all packs in the order of an epoch, as loaders take them.

        Step s of n ranks takes `order[s * n : s * n + n]`, a pack a rank, which cost alike.
        """
        return EpochOrder(self.plan, seed=seed, epoch=epoch).all_packs()

    @property
    def complete(self) -> bool:
        """A plan is written whole or not at all."""
        return True

    @property
    def spec(self) -> Any:
        """The `PackSpec` that it was made with."""
        return self.plan.spec

    @property
    def counts(self) -> Counts:
        """How many samples were planned, and how many of them are in a pack."""
        return Counts(self.plan.num_rows, self.plan.num_rows - len(self.plan.dropped))

    @property
    def skipped(self) -> dict[str, int]:
        """How many samples are in no pack, by reason."""
        numbers = Counter(self.plan.drop_reason.tolist())
        return {self.plan.drop_reasons[n]: count for n, count in numbers.most_common()}

    def rejects(self) -> Iterator[Reject]:
        """Yield the samples that are in no pack; a plan knows them by their row."""
        for row, n in zip(self.plan.dropped.tolist(), self.plan.drop_reason.tolist()):
            yield Reject(key=str(row), reason=self.plan.drop_reasons[n], detail="", filtered=True)

    def __len__(self) -> int:
        return len(self.plan)

    def _item(self, number: int) -> Any:
        return self.plan[number]

    def _facts(self) -> Iterator[str]:
        packs = humanize.plural(len(self), self.item)
        yield f"{packs} of {self.plan.spec.capacity:,} tokens"
        yield humanize.plural(self.counts.num_kept, "sample")
        if len(self.plan.dropped):
            yield f"{len(self.plan.dropped):,} left out"


class Project(Data[Data[Any]]):
    """A folder of several: stage folders, plans and length tables, by their names in it.

    sm.open(".")["tokens"][0]
    """

    item = "stage"

    @cached_property
    def places(self) -> dict[str, Path]:
        """The place of each by its name, the path from this folder."""
        found = (path for path, _ in find_data(self.path))
        return {path.relative_to(self.path).as_posix(): path for path in found}

    @property
    def complete(self) -> bool:
        """Whether each of them is finished."""
        return all(p.is_file() or Ledger(p).manifest_path.exists() for p in self.places.values())

    @property
    def skipped(self) -> dict[str, int]:
        """Nothing: each stage has its own."""
        return {}

    def keys(self) -> Iterator[str]:
        """Yield the names."""
        return iter(self.places)

    def _missing(self, key: str) -> str:
        return f"{self._name} holds no {key!r}, but {', '.join(self.places)}"

    def __len__(self) -> int:
        return len(self.places)

    def _item(self, number: int) -> Data[Any]:
        return open([*self.places.values()][number])

    def __repr__(self) -> str:
        return f"{self._name}: {', '.join(self.places)}"


CONTENTS: Mapping[str, type[Data[Any]]] = {
    "samples": Samples,
    "codes": Codes,
    "tokens": Tokens,
    "packs": Packs,
    "lengths": Lengths,
    "export": Export,
}


def open(place: Place) -> Data[Any]:
    """Open what lies in a folder, a file or at a url, whatever it is.

    A folder of shardmill must be finished; otherwise the message says what is missing and which
    command goes on. Files and folders of other programs (Megatron's prefixes, tars of packed
    samples, UniDisc's memory maps) open as an `Export`, a folder of several as a `Project`.
    """
    path = to_path(place)
    format = read_format(path) if path.is_file() else None
    if format == "plan":
        return Plan(path)
    if format == "lengths":
        return Lengths(path)
    ledger = Ledger(path)
    manifest = ledger.read_manifest()
    if manifest is not None:
        # A stage from outside may name a content of its own: counts and rejects are known of it.
        found = CONTENTS.get(manifest.content, Data)(path)
        return Samples(path) if isinstance(found, Export) and found.holds_samples else found
    if ledger.read_stage() is not None:
        raise ShardmillError(describe_unfinished(ledger))
    project = Project(path)
    if project.places:
        return project
    if isinstance(path, UrlPath):
        raise ShardmillError(describe_unfinished(ledger))
    foreign = Export(path)
    _ = foreign.reader  # which says what it cannot read, and what it could
    return foreign
