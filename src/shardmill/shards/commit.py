"""Finished drafts become shards: files first, the receipt last, several units with few fsyncs.

For a group of units, each line ends before the next begins:

    1. fsync the drafts' files, and the shared files of which units wrote their ranges
    2. remove receipts of older files of these units, and their rejects, fsync both folders
    3. rename them into shards/ and rejects/, fsync both
    4. write the new receipts in the drafts, fsync each
    5. rename them into receipts/, fsync it

So whatever a crash takes away, the files of a receipt that can be read are whole. Into an
object store, 3 uploads the files and 5 creates the receipts; an upload lasts when it returns.
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path

import xxhash

from shardmill.errors import Damaged, UnitFailed
from shardmill.model.manifest import (
    FileEntry,
    Receipt,
    ShardEntry,
    receipt_digest,
    receipt_to_plain,
)
from shardmill.model.stage import Checksummed, Draft, Stage, Tally, Unit
from shardmill.shards.ledger import Ledger
from shardmill.storage.cache import local_copy
from shardmill.storage.path import is_remote
from shardmill.storage.text import dump_line, dump_page

CHUNK_BYTES = 1 << 20
REPAIR = "`shardmill check` finds all that is damaged; make it again, or copy it back"


@dataclass(frozen=True, slots=True)
class Sealed:
    """A draft that is finished and accounted for: its receipt, and where its files shall go.

    `shared` are the files in place of which the unit wrote its ranges.
    """

    unit: Unit
    receipt: Receipt
    moves: tuple[tuple[Path, Path], ...]
    shared: tuple[Path, ...] = ()


def seal(
    ledger: Ledger, unit: Unit, stage_digest: str, draft: Draft, tally: Tally, read: str = ""
) -> Sealed:
    """Return the draft with its receipt; the counts have been checked, the files are closed."""
    shards = tuple(_shard_entry(draft, name) for name in draft.shards)
    rejects = _write_rejects(ledger, unit, draft, tally)
    receipt = Receipt(
        unit=unit.name,
        digest=receipt_digest(stage_digest, unit),
        num_in=tally.num_in,
        num_kept=tally.num_kept,
        skipped=dict(tally.skipped),
        stats=dict(tally.stats),
        shards=shards,
        rejects=rejects,
        broken=dict(tally.broken),
        read=read,
    )
    entries = [entry for shard in shards for entry in shard.files.values()]
    moves = [(draft.dir / Path(e.path).name, ledger.out_dir / e.path) for e in entries]
    if rejects is not None:
        moves.append((draft.dir / "rejects", ledger.out_dir / rejects.path))
    return Sealed(unit, receipt, tuple(moves), tuple(draft.shared))


def commit(ledger: Ledger, group: Sequence[Sealed], stage_digest: str) -> None:
    """Put finished units in place; a unit that someone else finished first keeps what is there."""
    known = [s for s in group if ledger.receipt_path(s.unit.name).is_file()]
    done = {s.unit.name for s in known if ledger.valid_receipt(s.unit, stage_digest)}
    # Only what was seen to be wrong is removed. If this run is suspended right here and somebody
    # takes over, a receipt that they write meanwhile stays, and our drafts are gone.
    outdated = [s.unit.name for s in known if s.unit.name not in done]
    fresh = [s for s in group if s.unit.name not in done]
    moves = [move for sealed in fresh for move in sealed.moves]
    shared = {path for sealed in fresh for path in sealed.shared}
    backend = ledger.backend
    backend.sync([*(source for source, _ in moves), *sorted(shared)])
    backend.remove(map(ledger.receipt_path, outdated))
    names = [sealed.unit.name for sealed in fresh if sealed.receipt.rejects is None]
    backend.remove(map(ledger.rejects_path, names))
    backend.move(moves)
    backend.write_receipts(
        [(ledger.receipt_path(s.unit.name), dump_page(receipt_to_plain(s.receipt))) for s in fresh]
    )
    # The units are done. What earlier tries left does no harm; it goes when all is complete.
    with suppress(OSError):
        paths = (ledger.failure_path, ledger.earlier_path)
        backend.discard(path(sealed.unit.name) for sealed in group for path in paths)


def checksum_read(stage: Stage, unit: Unit) -> str:
    """Return the checksum of the raw files that a unit reads, as they are now.

    "" if its input says what they hold, as it does of rows whose checksum it has and of objects of
    a store, which have a tag.
    """
    return stage.checksum_read(unit) if isinstance(stage, Checksummed) else checksum_places(unit)


def checksum_places(unit: Unit) -> str:
    """Return the checksum of the files that a unit names by their places."""
    return checksum_files([] if "xxh3" in unit.input else unit.places)


def checksum_files(places: Iterable[str]) -> str:
    """Return the checksum of local files and of the files in local folders, "" if there are none.

    A pipe or a device, which would be waited for, counts as an empty file; so does a missing one.
    """
    local = [place for place in places if not is_remote(place)]
    state = xxhash.xxh3_64()
    for place in local:
        names = sorted(os.listdir(place)) if os.path.isdir(place) else [""]  # noqa: PTH112, PTH208
        for name in names:
            path = f"{place}/{name}" if name else place
            found = _stat(path)
            checksum = _checksum_raw(path, *found) if found is not None else ""
            state.update(f"{name}\0{checksum}\0".encode("utf-8", "surrogateescape"))
    return state.hexdigest() if local else ""


def _stat(path: str) -> tuple[int, ...] | None:
    try:
        info = os.stat(path)  # noqa: PTH116
    except (OSError, ValueError):
        return None
    is_file = stat.S_ISREG(info.st_mode)
    # Who writes other bytes may set the old time, but not that of the change itself.
    known = (info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino)
    return known if is_file else None


@lru_cache(maxsize=256)
def _checksum_raw(path: str, *_: int) -> str:
    """Return the checksum of a file, once for all units of this process that read parts of it."""
    return checksum_file(Path(path)).checksum


def checksum_file(path: Path) -> FileEntry:
    """Return the size and the xxh3-64 of a file, under its own name."""
    state, num_bytes = xxhash.xxh3_64(), 0
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(CHUNK_BYTES):
            state.update(chunk)
            num_bytes += len(chunk)
    return FileEntry(path.name, num_bytes, state.hexdigest())


def verify_file(path: Path, entry: FileEntry) -> None:
    """Raise `Damaged` unless a file, or the copy of an object, is what its receipt says."""
    found = checksum_file(local_copy(path))
    if (found.num_bytes, found.checksum) != (entry.num_bytes, entry.checksum):
        raise Damaged(
            f"{path}: has {found.num_bytes} bytes with the checksum {found.checksum}, its receipt "
            f"says {entry.num_bytes} and {entry.checksum}: {REPAIR}"
        )


def _shard_entry(draft: Draft, name: str) -> ShardEntry:
    shard = draft.shards[name]
    if shard.num_samples is None:
        raise UnitFailed(f"shard {name} was begun but not finished")
    files = {role: _file_entry(draft, f"{name}.{role}") for role in shard.roles}
    return ShardEntry(name, shard.num_samples, files)


def _file_entry(draft: Draft, name: str) -> FileEntry:
    try:
        entry = _checksum_draft(draft.dir / name)
    except FileNotFoundError as error:
        raise UnitFailed(f"the stage announced the file {name}, but did not write it") from error
    return replace(entry, path=f"shards/{name}")


def _checksum_draft(path: Path) -> FileEntry:
    # Still in memory: to map it costs half of reading it, and other threads run all the while.
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as content:
            return FileEntry(path.name, len(content), xxhash.xxh3_64(content).hexdigest())
    except (OSError, ValueError):  # empty, or on a file system that maps no files
        return checksum_file(path)


def _write_rejects(ledger: Ledger, unit: Unit, draft: Draft, tally: Tally) -> FileEntry | None:
    if not tally.rejects:
        return None
    path = draft.dir / "rejects"
    ledger.disk.write(path, b"".join(dump_line(asdict(reject)) for reject in tally.rejects))
    return replace(checksum_file(path), path=f"rejects/{unit.name}.jsonl")
