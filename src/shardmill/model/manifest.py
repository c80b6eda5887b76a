"""The JSON records of a folder: stage.json, a receipt for each unit, and manifest.json.

None of them holds a time, a host, a rank or a number of workers: the same input and spec give the
same bytes, wherever and however often they were made. Places are whole in memory, and stored as
seen from their folder; no digest covers them. In a receipt and a manifest the counts
balance: samples in = kept + skipped, and the shards hold what was kept.

Statistics are counts by name. "tokens" is a count by itself; "source|web" is the count "web" of the
group "source"; "text chars|<=64" and "text chars|sum" belong to a histogram (see `Tally.observe`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from shardmill.errors import FormatError, ShardmillError
from shardmill.model.codec import Plain, change_places, digest, to_plain, without_places
from shardmill.storage.path import SAFE_NAME

if TYPE_CHECKING:
    from shardmill.model.stage import Stage, Unit

# A receipt from elsewhere may name any limit; more digits are no count of anything.
MAX_DIGITS = 18


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file by its path relative to the folder, its size and its xxh3-64 checksum in hex."""

    path: str
    num_bytes: int
    checksum: str


class RoleFiles(dict[str, FileEntry]):
    """Files by role, as a manifest lists them; a role that it lacks is a `FormatError`."""

    def __missing__(self, role: str) -> FileEntry:
        listed = ", ".join(self) or "nothing"
        raise FormatError(f"lists {listed:.100} for a shard, and no {role!r}", path="its manifest")


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """A shard: its name, how many samples it holds, and its files by role ("tar", "idx", ...)."""

    name: str
    num_samples: int
    files: Mapping[str, FileEntry]

    @property
    def num_bytes(self) -> int:
        """The bytes of all its files."""
        return sum(entry.num_bytes for entry in self.files.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """Proof that a unit is done; written last, believed by every reader.

    `broken` are those of the skipped that nobody asked to leave out, by reason. `read` is the
    checksum of the raw files that it was made from, "" if the unit itself says what it reads.
    """

    unit: str
    digest: str
    num_in: int
    num_kept: int
    skipped: Mapping[str, int]
    shards: tuple[ShardEntry, ...]
    rejects: FileEntry | None = None
    stats: Mapping[str, int] = field(default_factory=dict)
    broken: Mapping[str, int] = field(default_factory=dict)
    read: str = ""

    @property
    def entries(self) -> list[FileEntry]:
        """Every file that it lists: those of its shards, and the rejects."""
        files = [entry for shard in self.shards for entry in shard.files.values()]
        return files if self.rejects is None else [*files, self.rejects]

    @property
    def num_bytes(self) -> int:
        """The bytes of all its shards."""
        return sum(shard.num_bytes for shard in self.shards)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRecord:
    """The content of stage.json: which spec makes a folder, what it will hold and what it reads."""

    stage: Plain
    version: int
    digest: str
    content: str
    reads: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A finished dataset: the spec that made it, what it holds, and its shards in unit order.

    `content` is one of `model.stage.CONTENTS`; `reads` are the places that it was made from, by
    role. `receipts_digest` covers what receipts say besides: what is broken, and what was read.
    """

    content: str
    reads: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    stage: Plain
    stage_digest: str
    units_digest: str
    num_in: int
    num_kept: int
    skipped: Mapping[str, int]
    stats: Mapping[str, int]
    shards: tuple[ShardEntry, ...]
    receipts_digest: str = ""

    @property
    def num_samples(self) -> int:
        """All samples of all shards."""
        return sum(shard.num_samples for shard in self.shards)

    @property
    def num_bytes(self) -> int:
        """The bytes of all its shards."""
        return sum(shard.num_bytes for shard in self.shards)


Placed = TypeVar("Placed", StageRecord, Manifest)


def shards_digest(shards: Iterable[ShardEntry]) -> str:
    """Return the identity of what shards hold: their names, samples and checksums, in order."""
    return digest(
        [
            [shard.name, shard.num_samples, sorted(file.checksum for file in shard.files.values())]
            for shard in shards
        ]
    )


def stage_digest(stage: Stage) -> str:
    """Return the identity of a stage: class, version and every setting of its spec."""
    return record_digest(to_plain(stage), type(stage).version)


def record_digest(stage: Plain, version: int) -> str:
    """Return the identity of a stage by its stored spec."""
    return digest({"stage": without_places(stage), "version": version})


def manifest_digest(manifest: Manifest) -> str:
    """Return the identity of a finished folder: all that its manifest says, save of places."""
    plain = manifest_to_plain(manifest)
    return digest(
        {**plain, "stage": without_places(manifest.stage), "reads": sorted(plain["reads"])}
    )


def stage_record(stage: Stage) -> StageRecord:
    """Return what stage.json says of a stage."""
    return StageRecord(
        stage=to_plain(stage),
        version=type(stage).version,
        digest=stage_digest(stage),
        content=stage.content,
        reads=stage.reads(),
    )


def receipt_digest(stage_digest: str, unit: Unit) -> str:
    """Return what a unit's receipt must carry to be valid for this stage and this input."""
    return digest([stage_digest, unit.digest])


def sum_counts(receipts: Iterable[Receipt]) -> dict[str, Any]:
    """Return num_in, num_kept, skipped and stats added up over receipts."""
    skipped: Counter[str] = Counter()
    stats: Counter[str] = Counter()
    num_in = num_kept = 0
    for receipt in receipts:
        num_in += receipt.num_in
        num_kept += receipt.num_kept
        skipped.update(receipt.skipped)
        stats.update(receipt.stats)
    return {
        "num_in": num_in,
        "num_kept": num_kept,
        "skipped": dict(sorted(skipped.items())),
        "stats": dict(sorted(stats.items())),
    }


def build_manifest(
    record: StageRecord, units: Sequence[Unit], receipts: Sequence[Receipt]
) -> Manifest:
    """Return the manifest of finished units; two units must not have written one shard."""
    owners: dict[str, str] = {}
    for receipt in receipts:
        for shard in receipt.shards:
            owner = owners.setdefault(shard.name, receipt.unit)
            if owner != receipt.unit:
                raise ShardmillError(
                    f"units {owner} and {receipt.unit} both wrote a shard named {shard.name}: "
                    "give the stage a name pattern that differs from unit to unit"
                )
    return Manifest(
        content=record.content,
        reads=record.reads,
        stage=record.stage,
        stage_digest=record.digest,
        units_digest=digest([unit.digest for unit in units]),
        shards=tuple(shard for receipt in receipts for shard in receipt.shards),
        receipts_digest=digest([[receipt.broken, receipt.read] for receipt in receipts]),
        **sum_counts(receipts),
    )


def receipt_to_plain(receipt: Receipt) -> dict[str, Any]:
    """Return the content of receipts/NAME.json."""
    rejects = None if receipt.rejects is None else _fields(receipt.rejects)
    return {**_fields(receipt), "shards": _plain_shards(receipt.shards), "rejects": rejects}


def receipt_from_plain(plain: Any, path: object) -> Receipt:
    """Return a receipt; `FormatError` if its counts do not balance or a path leaves the folder."""
    try:
        rejects = plain["rejects"]
        receipt = Receipt(
            unit=_text(plain["unit"]),
            digest=_text(plain["digest"]),
            num_in=_count(plain["num_in"]),
            num_kept=_count(plain["num_kept"]),
            skipped=_counts(plain["skipped"]),
            stats=_counts(plain["stats"]),
            shards=tuple(_shard_from_plain(shard) for shard in plain["shards"]),
            rejects=None if rejects is None else _file_from_plain(rejects, "rejects/"),
            broken=_counts(plain["broken"]),
            read=_text(plain["read"]),
        )
        _check_counts(receipt)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise FormatError(f"is not a receipt: {_reason(error)}", path=path) from error
    return receipt


def record_to_plain(record: StageRecord) -> dict[str, Any]:
    """Return the content of stage.json."""
    return _fields(record)


def record_from_plain(plain: Any, path: object) -> StageRecord:
    """Return what stage.json says, or raise `FormatError`."""
    try:
        _text(plain["stage"]["kind"])
        return StageRecord(
            stage=plain["stage"],
            version=_count(plain["version"]),
            digest=_text(plain["digest"]),
            content=_text(plain["content"]),
            reads=_places(plain["reads"]),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise FormatError(f"is not a stage record: {_reason(error)}", path=path) from error


def manifest_to_plain(manifest: Manifest) -> dict[str, Any]:
    """Return the content of manifest.json."""
    return {**_fields(manifest), "shards": _plain_shards(manifest.shards)}


def manifest_from_plain(plain: Any, path: object) -> Manifest:
    """Return a manifest, with the same checks."""
    try:
        manifest = Manifest(
            content=_text(plain["content"]),
            reads=_places(plain["reads"]),
            stage=plain["stage"],
            stage_digest=_text(plain["stage_digest"]),
            units_digest=_text(plain["units_digest"]),
            num_in=_count(plain["num_in"]),
            num_kept=_count(plain["num_kept"]),
            skipped=_counts(plain["skipped"]),
            stats=_counts(plain["stats"]),
            shards=tuple(_shard_from_plain(shard) for shard in plain["shards"]),
            receipts_digest=_text(plain["receipts_digest"]),
        )
        _check_counts(manifest)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise FormatError(f"is not a manifest: {_reason(error)}", path=path) from error
    return manifest


def with_places(record: Placed, change: Callable[[str], str]) -> Placed:
    """Return a record or manifest with each place in it changed."""
    reads = {role: tuple(map(change, places)) for role, places in record.reads.items()}
    return replace(record, stage=change_places(record.stage, change), reads=reads)


def group_stats(stats: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Return the counts by group; those without a group stand under ""."""
    groups: dict[str, dict[str, int]] = {}
    for name, amount in stats.items():
        group, bar, rest = name.partition("|")
        groups.setdefault(group if bar else "", {})[rest if bar else name] = amount
    return groups


def power_bars(values: Mapping[str, int]) -> list[tuple[int, int]]:
    """Return a histogram as (limit, count) for every power of two between its ends.

    {"<=64": 3, "<=256": 1, "sum": 400} gives [(64, 3), (128, 0), (256, 1)].
    """
    limits = {name[2:]: n for name, n in values.items() if name.startswith("<=")}
    counts = {
        int(limit): n
        for limit, n in limits.items()
        if limit.isascii() and limit.isdigit() and len(limit) <= MAX_DIGITS
    }
    bars = [min(counts)] if counts else []
    while bars and bars[-1] < max(counts):
        bars.append(max(1, bars[-1] * 2))
    return [(limit, counts.get(limit, 0)) for limit in bars]


def _check_counts(counts: Receipt | Manifest) -> None:
    num_skipped = sum(counts.skipped.values())
    if counts.num_in != counts.num_kept + num_skipped:
        kept_and_skipped = f"{counts.num_kept} kept and {num_skipped} skipped"
        raise ValueError(f"{counts.num_in} in, but {kept_and_skipped}")
    num_written = sum(shard.num_samples for shard in counts.shards)
    if counts.num_kept != num_written:
        raise ValueError(f"{counts.num_kept} samples kept, but its shards hold {num_written}")


def _fields(record: Any) -> dict[str, Any]:
    # Not `asdict`, which copies deeply: a manifest may list a million files.
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


def _plain_shards(shards: Iterable[ShardEntry]) -> list[dict[str, Any]]:
    return [
        {**_fields(shard), "files": {role: _fields(file) for role, file in shard.files.items()}}
        for shard in shards
    ]


def _shard_from_plain(plain: Any) -> ShardEntry:
    files = {role: _file_from_plain(entry, "shards/") for role, entry in plain["files"].items()}
    return ShardEntry(_text(plain["name"]), _count(plain["num_samples"]), RoleFiles(files))


def _file_from_plain(plain: Any, folder: str) -> FileEntry:
    path = _text(plain["path"])
    name = path.removeprefix(folder)
    # One plain name in the folder where the runner puts such files: it cannot climb out.
    if name == path or SAFE_NAME.fullmatch(name) is None:
        raise ValueError(f"path {path!r} is not a file in {folder}")
    return FileEntry(path, _count(plain["num_bytes"]), _text(plain["checksum"]))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a string")
    return value


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise TypeError(f"{value!r} is not a count")
    return value


def _counts(value: Any) -> dict[str, int]:
    if not isinstance(value, dict):
        raise TypeError(f"{value!r} is not a table of counts")
    for count in value.values():
        if type(count) is not int:
            raise TypeError(f"{count!r} is not a count")
    return value


def _places(value: Any) -> dict[str, tuple[str, ...]]:
    if not isinstance(value, dict):
        raise TypeError(f"{value!r} is not a table of places")
    return {role: tuple(_text(place) for place in places) for role, places in value.items()}


def _reason(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)
