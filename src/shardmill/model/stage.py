"""The contract between a stage and whoever runs it: unit in, draft out, tally kept.

A stage is a frozen dataclass; its fields are its whole configuration. `units()` lists the work,
`open()` loads what is heavy once a process and yields `work(unit, draft, tally)`, which reads the
unit, writes files into the draft and accounts for every sample in the tally.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias, runtime_checkable

from shardmill.errors import ConfigError, Filtered, SampleError, UnitFailed
from shardmill.machine import note
from shardmill.model.codec import Plain, digest
from shardmill.storage.path import check_name

if TYPE_CHECKING:
    from shardmill.model.manifest import Manifest


# What a folder can hold. An index of tars that lie elsewhere holds samples too.
CONTENTS = ("samples", "codes", "tokens", "packs", "lengths", "export")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A named piece of work: `input` holds, as plain JSON, all that identifies its slice of data.

    Names sort in order and are safe as file names. `num_samples` is a hint for progress, or None.
    `input["raw"]` is where raw files are, one or a list: no part of the identity, whole in memory
    and stored as seen from the output folder. What they hold is, by checksums: in the unit, as
    "xxh3", or else in its receipt, by who read them.
    """

    name: str
    input: Mapping[str, Plain]
    num_samples: int | None = None

    @property
    def digest(self) -> str:
        """The identity of the input: what a receipt is compared with."""
        input = {name: value for name, value in self.input.items() if name != "raw"}
        return digest({"name": self.name, "input": input})

    @property
    def places(self) -> list[str]:
        """Where its raw files are."""
        return [str(place) for place in _many(self.input.get("raw"))]


def _many(place: Plain) -> list[Plain]:
    if place is None:
        return []
    return place if isinstance(place, list) else [place]


def unit_with_places(unit: Unit, change: Callable[[str], str]) -> Unit:
    """Return a unit with each of its places changed."""
    if "raw" not in unit.input:
        return unit
    places: list[Plain] = [change(place) for place in unit.places]
    changed: Plain = places if isinstance(unit.input["raw"], list) else places[0]
    return replace(unit, input={**unit.input, "raw": changed})


def unit_to_plain(unit: Unit) -> dict[str, Any]:
    """Return the unit as a line of units.jsonl."""
    return {"name": unit.name, "input": unit.input, "num_samples": unit.num_samples}


def unit_from_plain(plain: Any) -> Unit:
    """Return the unit that `unit_to_plain` stored, or raise `ConfigError`."""
    if not isinstance(plain, dict) or not isinstance(plain.get("input"), dict):
        raise ConfigError(f"not a unit: {str(plain)[:200]}")
    name, num_samples = plain.get("name"), plain.get("num_samples")
    if not isinstance(name, str) or not isinstance(num_samples, int | None):
        raise ConfigError(f"not a unit: {str(plain)[:200]}")
    return Unit(name=check_name(name), input=plain["input"], num_samples=num_samples)


@dataclass(slots=True)
class DraftShard:
    """A shard being written: its files by role, and how many samples it holds once finished."""

    name: str
    roles: list[str] = field(default_factory=list)
    num_samples: int | None = None


@dataclass(slots=True)
class Draft:
    """A private folder in which a worker writes the shards of one unit.

    Usually one shard, named like the unit; more when a byte limit splits it. Only the runner knows
    where the files go afterwards. Files that many units write together lie in `shared_dir`.
    """

    dir: Path
    shards: dict[str, DraftShard] = field(default_factory=dict)
    shared_dir: Path | None = None
    shared: set[Path] = field(default_factory=set)
    # The files by role of the shards of an earlier try, of which only the rejects are wanted anew.
    earlier: tuple[Mapping[str, Path], ...] = ()

    def file(self, shard: str, role: str) -> Path:
        """Return the path to write for this role ("tar", "idx", "bin", ...) of this shard."""
        entry = self.shards.setdefault(check_name(shard), DraftShard(shard))
        if role not in entry.roles:
            entry.roles.append(check_name(role))
        return self.dir / f"{shard}.{role}"

    def shared_file(self, name: str) -> Path:
        """Return a file of `WholeStage.shared_files`, of which this unit writes its own range.

        It is synced before the unit's receipt is written, as the unit's own files are.
        """
        assert self.shared_dir is not None, "this draft belongs to no folder"
        path = self.shared_dir / check_name(name)
        self.shared.add(path)
        return path

    def finish(self, shard: str, *, num_samples: int) -> None:
        """Say that all files of this shard are written and closed."""
        self.shards[shard].num_samples = num_samples


@dataclass(frozen=True, slots=True)
class Reject:
    """A skipped sample: its key, the countable reason and the detail."""

    key: str
    reason: str
    detail: str
    filtered: bool


@dataclass(slots=True)
class Tally:
    """The counts of one unit: samples in = kept + skipped by reason.

    `num_in` is counted where samples are read, `num_kept` where they are written, so that a sample
    that falls between the two is found.
    """

    num_in: int = 0
    num_kept: int = 0
    # Samples begun, for the progress of a stage that counts them in only when all are worked.
    num_begun: int = 0
    rejects: list[Reject] = field(default_factory=list)
    stats: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def sample(self, key: str) -> Iterator[None]:
        """Account for one sample: kept if the block ends, skipped if it raises `SampleError`."""
        self.num_in += 1
        note(f"sample {key!r}")
        try:
            yield
        except SampleError as error:
            self.skip(key, error)
        else:
            self.num_kept += 1

    def skip(self, key: str, error: SampleError) -> None:
        """Record a sample that was read (and counted in `num_in`) but cannot be used."""
        self.rejects.append(Reject(key, error.reason, error.detail, isinstance(error, Filtered)))

    def count(self, name: str, amount: int = 1) -> None:
        """Add to a statistic that `status` sums over all units, such as "images"."""
        self.stats[name] += amount

    def observe(self, name: str, value: int) -> None:
        """Add a value to a statistic's histogram of powers of two, its sum and its count.

        The buckets of "text chars" are counted as "text chars|<=128", the sum as "text chars|sum".
        """
        bucket = 0 if value <= 0 else 1 << (int(value) - 1).bit_length()
        self.stats[f"{name}|<={bucket}"] += 1
        self.stats[f"{name}|sum"] += int(value)

    @property
    def skipped(self) -> Counter[str]:
        """The number of skipped samples by reason."""
        return Counter(reject.reason for reject in self.rejects)

    @property
    def broken(self) -> Counter[str]:
        """The number of samples by reason that nobody asked to leave out."""
        return Counter(reject.reason for reject in self.rejects if not reject.filtered)

    def check(self, draft: Draft, *, max_skip_rate: float) -> None:
        """Raise `UnitFailed` unless the counts balance and the skips are within the budget."""
        written = 0
        for shard in draft.shards.values():
            if shard.num_samples is None:
                raise UnitFailed(f"shard {shard.name} was begun but not finished")
            written += shard.num_samples
        if self.num_in != self.num_kept + len(self.rejects) or self.num_kept != written:
            raise UnitFailed(
                f"the counts do not balance: {self.num_in} samples in, {self.num_kept} kept, "
                f"{written} written, {len(self.rejects)} skipped ({dict(self.skipped)})"
            )
        errors = self.broken
        if errors.total() > skip_budget(self.num_in, max_skip_rate):
            first = next(reject for reject in self.rejects if not reject.filtered)
            raise UnitFailed(
                f"skipped {errors.total()} of {self.num_in} samples, more than the allowed rate "
                f"{max_skip_rate:g}: {listed(errors)}; the first is {first.key}: {first.detail}. "
                "Repair the input, or raise --max-skip-rate"
            )


Work: TypeAlias = Callable[[Unit, Draft, Tally], None]


@runtime_checkable
class Stage(Protocol):
    """A frozen dataclass that turns units into shards; `version` moves when its bytes change."""

    version: ClassVar[int]

    @property
    def content(self) -> str:
        """What the finished folder holds: one of `CONTENTS`, or a name of an outside stage's own.

        Readers go by this word, which stage.json and manifest.json keep, never by file names.

        A stage that keeps samples without what it works on may name that in `works_on`, by the
        statistic that counts it ("images"): a run that met none of it has done nothing.
        """

    def reads(self) -> Mapping[str, tuple[str, ...]]:
        """Return the folders and files that the stage reads, by role, as its fields have them.

        {"samples": ("shards",), "codes": ("codes",)}; raw inputs stand under "raw".
        """

    def units(self) -> Iterator[Unit]:
        """Yield the units in order; looks at the input, never at the output."""

    def open(self) -> AbstractContextManager[Work]:
        """Load what the work needs, once a process, and yield the work."""

    def inputs(self) -> Mapping[str, Any]:
        """Return a cheap fingerprint of the input: path -> [size, mtime_ns], or a checksum.

        Equal fingerprints mean that `units()` would yield what it yielded before, so that a
        finished folder is recognised without listing the input again. Where only times or paths
        differ, units and the checksums in receipts decide.
        """


@runtime_checkable
class ContentKeyed(Stage, Protocol):
    """A stage that can tell from its units alone which of them changed with the input."""

    def units_name_content(self) -> bool:
        """Say whether the input of a unit differs whenever what the unit reads differs.

        It does if it holds checksums of all that is read, or the place of raw files, of which the
        receipt then has one. Then what is done of a folder stays when other parts of the input
        change.
        """


@runtime_checkable
class Checksummed(Protocol):
    """A stage that reads something else of raw files than the whole of those its units name."""

    def checksum_read(self, unit: Unit) -> str:
        """Return the checksum of what a unit reads of raw files now, "" if its input says it."""


@runtime_checkable
class TriedStage(Stage, Protocol):
    """A stage that can try a few samples at once: what is wrong with all of them is told early."""

    def try_first(self) -> Tally:
        """Return the counts of the first samples; settings that cannot be are a `ConfigError`."""


@runtime_checkable
class WholeStage(Stage, Protocol):
    """A stage whose folder is more than its shards: files for the whole, which others read."""

    def shared_files(self, units: Sequence[Unit]) -> Mapping[str, int]:
        """Return name -> size in bytes of the files that units write together, each its range.

        They lie beside the manifest and exist in full size before the first unit is worked.
        """

    def finish(self, manifest: Manifest, out_dir: Path) -> None:
        """Write the files that make the folder readable for others, each at once or not at all.

        Called when every unit has its receipt and before the manifest is written; perhaps twice,
        perhaps at the same time: the bytes are a function of what was given.
        """


def packages_of(spec: object) -> Iterator[str]:
    """Yield the optional packages that a stage and the plugins in it say they need, in `needs`."""
    if is_dataclass(spec):
        yield from getattr(spec, "needs", ())
        for one in fields(spec):
            yield from packages_of(getattr(spec, one.name))
    elif isinstance(spec, tuple):
        for part in spec:
            yield from packages_of(part)


def skip_budget(num_in: int, max_skip_rate: float) -> int:
    """Return how many of `num_in` samples may be broken.

    It is a whole number of samples, rounded up: a last unit of three samples is not lost for one
    of them, and a rate of 0 allows none.
    """
    return ceil(max_skip_rate * num_in)


def listed(counts: Mapping[str, int]) -> str:
    """Return '3 x no such file, 1 x not an image', the most frequent first."""
    return ", ".join(f"{count:,} x {reason}" for reason, count in Counter(counts).most_common())
