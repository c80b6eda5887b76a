"""A file system that behaves as badly as shared ones sometimes do: FUSE over a plain folder.

    python faulty_disk.py BEHIND MOUNT '{"seed": 1, "rates": {"eio": 0.01, "lost_reply": 0.02}}'

    eio          a read, write, fsync, open, rename or unlink fails with EIO and does nothing
    lost_reply   rename, unlink, mkdir, link or create is done, but the client hears ENOENT or
                 EEXIST: what NFS answers when the first reply was lost and the request came again
    stale_s      a new name does not appear in listings of its folder for so long
    no_dir_sync  fsync of a folder is EINVAL, as some file systems have it

Writing to MOUNT/.calm ends all faults; the names of those that happened are in MOUNT/.faults.
"""

from __future__ import annotations

import errno
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def can_mount() -> bool:
    """Say whether a FUSE file system can be mounted here."""
    try:
        import mfusepy  # noqa: F401
    except (ImportError, OSError):  # the package, or the library that it loads
        return False
    return os.access("/dev/fuse", os.R_OK | os.W_OK)


@contextmanager
def faulty_disk(folder: Path, *, seed: int = 0, **faults: float) -> Iterator[Path]:
    """Yield a mount point below `folder` that has these faults."""
    behind, mount = folder / "behind", folder / "mount"
    behind.mkdir()
    mount.mkdir()
    words = [
        sys.executable,
        __file__,
        str(behind),
        str(mount),
        json.dumps({"seed": seed, **faults}),
    ]
    process = subprocess.Popen(words)
    try:
        deadline = time.monotonic() + 30
        while not os.path.ismount(mount):
            assert process.poll() is None, "the file system has ended"
            assert time.monotonic() < deadline, "the file system does not start"
            time.sleep(0.02)
        yield mount
    finally:
        subprocess.run(["umount", "-l", str(mount)], capture_output=True)
        process.wait(timeout=30)


def calm(mount: Path) -> Counter[str]:
    """End all faults, and return how many of each there were."""
    (mount / ".calm").write_bytes(b"")
    return Counter(json.loads((mount / ".faults").read_bytes()))


def _serve(behind: str, mount: str, faults: dict[str, Any]) -> None:
    import mfusepy

    class FaultyDisk(mfusepy.Operations):  # type: ignore[misc]
        """Passes every call to the folder behind it, if nothing happens on the way."""

        use_ns = True

        def __init__(self) -> None:
            self.rng = random.Random(faults.pop("seed"))
            self.happened: Counter[str] = Counter()
            self.born: dict[str, float] = {}
            self.calm = False

        def _strikes(self, fault: str, path: str) -> bool:
            rate = faults.get(fault, 0)
            if self.calm or path in ("/.calm", "/.faults") or self.rng.random() >= rate:
                return False
            self.happened[fault] += 1
            return True

        def _may_fail(self, path: str) -> None:
            if self._strikes("eio", path):
                raise OSError(errno.EIO, "input/output error")

        def _may_lose_reply(self, path: str, code: int) -> None:
            if self._strikes("lost_reply", path):
                raise OSError(code, os.strerror(code))

        def _place(self, path: str) -> str:
            return behind + path

        def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
            found = os.lstat(self._place(path))
            names = ("st_gid", "st_mode", "st_nlink", "st_size", "st_uid", "st_ino")
            times = {f"st_{kind}time": getattr(found, f"st_{kind}time_ns") for kind in "acm"}
            return {name: getattr(found, name) for name in names} | times

        def readdir(self, path: str, fh: int) -> list[Any]:
            names, now = os.listdir(self._place(path)), time.monotonic()
            young = {
                name
                for name in names
                if now - self.born.get(os.path.join(path, name), -1e9) < faults.get("stale_s", 0)
            }
            if young and not self.calm:
                self.happened["stale_s"] += 1
                names = [name for name in names if name not in young]
            # With their numbers: a name without one is left out of the listing by the C library.
            return [(name, self.getattr(os.path.join(path, name)), 0) for name in names]

        def create(self, path: str, mode: int, fi: Any = None) -> int:
            if path == "/.calm":
                self.calm = True
                Path(behind, ".faults").write_text(json.dumps(self.happened))
            self._may_fail(path)
            descriptor = os.open(self._place(path), os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
            self.born[path] = time.monotonic()
            if self._strikes("lost_reply", path):
                os.close(descriptor)
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
            return descriptor

        def open(self, path: str, flags: int) -> int:
            self._may_fail(path)
            return os.open(self._place(path), flags)

        def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
            self._may_fail(path)
            return os.pread(fh, size, offset)

        def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
            self._may_fail(path)
            return os.pwrite(fh, data, offset)

        def truncate(self, path: str, length: int, fh: int | None = None) -> None:
            os.truncate(self._place(path), length)

        def release(self, path: str, fh: int) -> None:
            os.close(fh)

        def fsync(self, path: str, datasync: int, fh: int) -> None:
            self._may_fail(path)

        def fsyncdir(self, path: str, datasync: int, fh: int) -> None:
            if faults.get("no_dir_sync") and not self.calm:
                self.happened["no_dir_sync"] += 1
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

        def rename(self, old: str, new: str) -> None:
            self._may_fail(old)
            os.rename(self._place(old), self._place(new))
            self.born[new] = time.monotonic()
            self._may_lose_reply(old, errno.ENOENT)

        def unlink(self, path: str) -> None:
            self._may_fail(path)
            os.unlink(self._place(path))
            self._may_lose_reply(path, errno.ENOENT)

        def mkdir(self, path: str, mode: int) -> None:
            os.mkdir(self._place(path), mode)
            self._may_lose_reply(path, errno.EEXIST)

        def rmdir(self, path: str) -> None:
            os.rmdir(self._place(path))

        def link(self, target: str, source: str) -> None:
            os.link(self._place(source), self._place(target))
            self.born[target] = time.monotonic()
            self._may_lose_reply(target, errno.EEXIST)

        def symlink(self, target: str, source: str) -> None:
            os.symlink(source, self._place(target))

        def readlink(self, path: str) -> str:
            return os.readlink(self._place(path))

        def chmod(self, path: str, mode: int) -> None:
            os.chmod(self._place(path), mode)

        def chown(self, path: str, uid: int, gid: int) -> None:
            os.chown(self._place(path), uid, gid)

        def utimens(self, path: str, times: tuple[int, int] | None = None) -> None:
            os.utime(self._place(path), ns=times)

        def statfs(self, path: str) -> dict[str, int]:
            found = os.statvfs(self._place(path))
            names = (
                "f_bavail",
                "f_bfree",
                "f_blocks",
                "f_bsize",
                "f_files",
                "f_frsize",
                "f_namemax",
            )
            return {name: getattr(found, name) for name in names}

    # No caches in the kernel: every call arrives here. One thread: the seed orders the faults.
    mfusepy.FUSE(
        FaultyDisk(), mount, foreground=True, nothreads=True, attr_timeout=0, entry_timeout=0,
        negative_timeout=0, use_ino=True,
    )  # fmt: skip


if __name__ == "__main__":
    _serve(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
