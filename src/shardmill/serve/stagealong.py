"""Shards that come near the GPU while training goes on: once a node, in the background, bounded.

`stage_along(folder, "/dev/shm/data")` returns at once. A thread copies shard after shard, as many
as `max_bytes` and the disk allow; readers that were opened with `near=` read the originals until a
copy has come (see `io.arriving`), and what found no room for as long as they live. Of the processes
of a node one copies, the others wait to take its place. Trouble with copying is told in the log and
never stops training. The copies go with their last user, like those of `stage`.
"""

from __future__ import annotations

import atexit
import fcntl
import logging
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from shardmill.errors import ShardmillError
from shardmill.io.arriving import LOG_NAME
from shardmill.io.receipts import open_manifest
from shardmill.io.sampleset import entry_index, place_of_tar
from shardmill.model.manifest import Manifest, ShardEntry
from shardmill.remote.path import as_path
from shardmill.serve.staging import Copying, Staged, copy_file, use_folder

log = logging.getLogger(__name__)
RETRY_S = 1.0
# Of what is free, so much stays free for others.
SPARE_BYTES = 256 << 20


class Staging:
    """Copying that goes on, until the `with` block, `remove` or the process ends."""

    def __init__(self, source: Path, staged: Staged, manifest: Manifest, limit: int) -> None:
        self.folder, self._staged = staged.folder, staged
        self._source, self._manifest, self._limit = source, manifest, limit
        self._stop, self._done = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="stage-along", daemon=True)
        self._thread.start()
        self._pid = os.getpid()
        atexit.register(self.remove)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until all that has room is there; say whether it is."""
        return self._done.wait(timeout_s)

    def remove(self) -> None:
        """Stop copying; the copies are deleted unless another process of the node uses them."""
        atexit.unregister(self.remove)
        if os.getpid() != self._pid:
            return  # a forked worker that ends in the usual way
        self._stop.set()
        self._thread.join()
        self._staged.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.remove()

    def _run(self) -> None:
        lock = os.open(self.folder / ".stager", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            while not self._stop.is_set() and not _try_lock(lock):
                self._stop.wait(RETRY_S)
            if not self._stop.is_set():
                self._copy_all()
        except (ShardmillError, OSError) as error:
            log.warning("copying to %s stopped, training goes on without: %s", self.folder, error)
        finally:
            os.close(lock)
            self._done.set()

    def _copy_all(self) -> None:
        arrived, used, left_out = _arrived(self.folder), 0, 0
        for shard in self._manifest.shards:
            files = list(_files(self._source, shard))
            num_bytes = sum(file.num_bytes for file in files)
            is_there = shard.name in arrived
            if used + num_bytes > self._limit or not (is_there or self._has_room(num_bytes)):
                left_out += 1
                continue
            used += num_bytes
            for file in files:
                copy_file(self.folder, file, self._stop)
            if self._stop.is_set():
                return
            if not is_there:
                self._announce(shard)
        if left_out:
            log.info("%d shards found no room in %s and stay where they are", left_out, self.folder)

    def _has_room(self, num_bytes: int) -> bool:
        return num_bytes + SPARE_BYTES <= shutil.disk_usage(self.folder).free

    def _announce(self, shard: ShardEntry) -> None:
        with (self.folder / LOG_NAME).open("a") as log_file:
            log_file.write(f"{shard.name}\n")


def stage_along(folder: Path | str, near: Path | str, *, max_bytes: int | None = None) -> Staging:
    """Begin to copy the shards of a finished folder to `near`; all processes of a node may."""
    source = as_path(folder)
    manifest = open_manifest(source)
    limit = max_bytes if max_bytes is not None else 1 << 63
    staged = use_folder(Path(near), manifest.num_bytes)
    return Staging(source, staged, manifest, limit)


def _files(source: Path, shard: ShardEntry) -> Iterator[Copying]:
    for entry in shard.files.values():
        yield Copying(source / entry.path, entry.path, entry.num_bytes, entry.checksum)
    if "idx" in shard.files and "tar" not in shard.files and "spans" not in shard.files:
        # A tar that was indexed where it lies: its size is known, but nobody has summed it up.
        index = entry_index(source, shard)
        url, relative = place_of_tar(source, shard, index)
        yield Copying(as_path(url), relative, index.num_bytes, None)


def _arrived(folder: Path) -> set[str]:
    path = folder / LOG_NAME
    return set(path.read_text().split()) if path.exists() else set()


def _try_lock(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
