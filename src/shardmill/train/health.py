"""The health of a loader: what workers are reading and what they could not read.

Every process of a loader sees it through a private folder that goes with the process that made it;
if that was killed, the next loader finds its lock free and removes it:

    owner     locked by the process that made the folder
    at        one slot of four int64 a worker: pid, pack, row, and 1 while it reads
    faults    one JSON line for each sample that could not be read, appended in one write
    left_out  the same for samples that turned out longer than planned

Files and not queues, because a worker that dies takes its queue with it.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import shutil
import struct
import tempfile
import weakref
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import orjson

from shardmill.errors import ShardmillError

PREFIX, OWNER = "shardmill-health-", "owner"
# More than any loader has workers; beyond, two of them would share a slot.
NUM_SLOTS = 1024
SLOT = struct.Struct("<4q")
# Some libraries put whole files into their messages; a short line is written at once.
MAX_DETAIL = 300
MAX_LISTED = 20


class TooManyFaults(ShardmillError):
    """More samples could not be read than the loader may replace by padding."""


@dataclass(frozen=True, slots=True)
class SampleFault:
    """A sample that could not be read: where it stands in the plan, its name and why."""

    pack: int
    row: int
    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name} (row {self.row}, pack {self.pack}): {self.reason}"


@dataclass(frozen=True, slots=True)
class WorkerPosition:
    """Where a worker is: process, pack and row."""

    pid: int
    pack: int
    row: int


class Health:
    """What the workers of one data set report; `max_faults` samples may be replaced by padding.

    It can be sent to another process, which then opens the same files.
    """

    def __init__(self, max_faults: int, folder: Path | None = None) -> None:
        self.max_faults = max_faults
        self._slots: mmap.mmap | None = None
        if folder is not None:
            self.folder = folder
            return
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        # Locked before others are looked for: a folder whose lock is free is taken for an orphan.
        owner = os.open(self.folder / OWNER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(owner, fcntl.LOCK_EX)
        weakref.finalize(self, _remove, self.folder, owner, os.getpid())
        remove_orphans(self.folder.parent)
        (self.folder / "at").write_bytes(bytes(NUM_SLOTS * SLOT.size))
        for name in ("faults", "left_out"):
            (self.folder / name).touch()

    def __reduce__(self) -> tuple[object, ...]:
        return Health, (self.max_faults, self.folder)

    def reading(self, worker: int, pack: int, row: int) -> None:
        """Record that this worker now reads this row."""
        SLOT.pack_into(self._at(), worker % NUM_SLOTS * SLOT.size, os.getpid(), pack, row, 1)

    def resting(self, worker: int) -> None:
        """Record that this worker reads nothing."""
        SLOT.pack_into(self._at(), worker % NUM_SLOTS * SLOT.size, os.getpid(), 0, 0, 0)

    def positions(self) -> list[WorkerPosition]:
        """Return where each worker is that was reading when it was last heard of."""
        return [WorkerPosition(*at[:3]) for at in SLOT.iter_unpack(self._at()) if at[0] and at[3]]

    def add(self, fault: SampleFault) -> None:
        """Record a fault; raise `TooManyFaults` with the list when there are more than allowed."""
        self._append("faults", fault)
        faults = self.faults()
        if len(faults) > self.max_faults:
            listed = "".join(f"\n  {fault}" for fault in faults[:MAX_LISTED])
            more = f"\n  and {len(faults) - MAX_LISTED} more" if len(faults) > MAX_LISTED else ""
            raise TooManyFaults(
                f"{len(faults)} samples could not be read, {self.max_faults} are allowed: repair "
                f"the data (shardmill check), or allow more with max_faults{listed}{more}"
            )

    def leave_out(self, fault: SampleFault) -> None:
        """Record a sample that had to be left out, which is no fault of it and stops nothing."""
        self._append("left_out", fault)

    def faults(self) -> list[SampleFault]:
        """Return the samples that could not be read, each once."""
        return self._listed("faults")

    def left_out(self) -> list[SampleFault]:
        """Return the samples that had to be left out, each once."""
        return self._listed("left_out")

    def _append(self, name: str, fault: SampleFault) -> None:
        line = [fault.pack, fault.row, fault.name, fault.reason[:MAX_DETAIL]]
        # One write in append mode: lines of several processes never mix.
        fd = os.open(self.folder / name, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(fd, orjson.dumps(line) + b"\n")
        finally:
            os.close(fd)

    def _listed(self, name: str) -> list[SampleFault]:
        lines = (self.folder / name).read_bytes().splitlines()
        # By pack and row, since the next epoch reads the same sample again.
        found = {tuple(at[:2]): SampleFault(*at) for at in map(orjson.loads, lines)}
        return list(found.values())

    def _at(self) -> mmap.mmap:
        if self._slots is None:
            with (self.folder / "at").open("r+b") as file:
                self._slots = mmap.mmap(file.fileno(), 0)
        return self._slots


def remove_orphans(parent: Path) -> None:
    """Remove the folders whose owners were killed, so that their locks are free."""
    for folder in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):
            owner = os.open(folder / OWNER, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(owner)


def _remove(folder: Path, owner: int, pid: int) -> None:
    # A forked worker inherits the finalizer, but the folder is not its own.
    if os.getpid() == pid:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(owner)
