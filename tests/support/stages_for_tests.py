"""Small stages that misbehave on demand; worker processes import them by name."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from shardmill.errors import ConfigError, Filtered, SampleError
from shardmill.model.stage import Draft, Tally, Unit, Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """Writes a few lines to each unit's shards: deterministic bytes, rejects, two roles."""

    num_units: int = 12
    num_samples: int = 5
    sleep_s: float = 0.0
    salt: str = ""
    version: ClassVar[int] = 1
    content: ClassVar[str] = "other"

    def reads(self) -> Mapping[str, tuple[str, ...]]:
        return {}

    def units(self) -> Iterator[Unit]:
        for i in range(self.num_units):
            yield Unit(name=f"{i:05d}", input={"i": i}, num_samples=self.num_samples)

    def inputs(self) -> Mapping[str, Any]:
        return {"count": self.num_units}

    @contextmanager
    def open(self) -> Iterator[Work]:
        yield self.work

    def work(self, unit: Unit, draft: Draft, tally: Tally) -> None:
        number = int(str(unit.input["i"]))
        with draft.file(unit.name, "txt").open("w") as text:
            for row in range(self.num_samples):
                with tally.sample(f"{unit.name}-{row}"):
                    if self.sleep_s:
                        time.sleep(self.sleep_s / self.num_samples)
                    if (number + row) % 7 == 0:
                        raise Filtered("seventh", f"row {row}")
                    text.write(hashlib.sha256(f"{self.salt}{number}-{row}".encode()).hexdigest())
                    tally.count("lines")
        draft.file(unit.name, "idx").write_bytes(number.to_bytes(8, "little"))
        draft.finish(unit.name, num_samples=tally.num_kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class Nothing:
    """Units without samples or shards: what is left is the runner."""

    num_units: int
    version: ClassVar[int] = 1
    content: ClassVar[str] = "other"

    def reads(self) -> Mapping[str, tuple[str, ...]]:
        return {}

    def units(self) -> Iterator[Unit]:
        for i in range(self.num_units):
            yield Unit(name=f"{i:06d}", input={"i": i})

    def inputs(self) -> Mapping[str, Any]:
        return {}

    @contextmanager
    def open(self) -> Iterator[Work]:
        yield lambda unit, draft, tally: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unruly:
    """Does what `deeds` says for a unit's name, and writes one line for all others.

    A deed that ends in "once" is done only the first time; `notes` is a folder that remembers it.
    The deed of "open" is done when a worker opens the stage.
    """

    notes: Path
    deeds: Mapping[str, str] = field(default_factory=dict)
    num_units: int = 6
    version: ClassVar[int] = 1
    content: ClassVar[str] = "other"

    def reads(self) -> Mapping[str, tuple[str, ...]]:
        return {}

    def units(self) -> Iterator[Unit]:
        for i in range(self.num_units):
            yield Unit(name=f"{i:05d}", input={"i": i})

    def inputs(self) -> Mapping[str, Any]:
        paths = [path for path in self.notes.glob("input*") if path.is_file()]
        return {path.name: (path.stat().st_size, path.stat().st_mtime_ns) for path in paths}

    @contextmanager
    def open(self) -> Iterator[Work]:
        self.do("open")
        yield self.work

    def work(self, unit: Unit, draft: Draft, tally: Tally) -> None:
        with (self.notes / "worked").open("a") as note:
            note.write(f"{unit.name}\n")
        draft.file(unit.name, "txt").write_text("half")
        self.do(unit.name, tally)
        draft.file(unit.name, "txt").write_text(f"line of {unit.name}\n")
        with tally.sample(unit.name):
            pass
        draft.finish(unit.name, num_samples=1)

    def do(self, name: str, tally: Tally | None = None) -> None:
        deed = self.deeds.get(name, "")
        if deed.endswith(" once"):
            note = self.notes / f"{name} done"
            if note.exists():
                return
            note.touch()
        if deed:
            DEEDS[deed.removesuffix(" once")](tally)


def _raise(error: Exception) -> None:
    raise error


def _skip(tally: Tally | None) -> None:
    assert tally is not None
    with tally.sample("broken"):
        raise SampleError("broken sample", "at byte 7")


def _crash(tally: Tally | None) -> None:
    assert tally is not None
    with tally.sample("odd"):
        os.kill(os.getpid(), signal.SIGBUS)


def _lose(tally: Tally | None) -> None:
    assert tally is not None
    tally.num_in += 1


def _shout(_: Tally | None) -> None:
    sys.stdout.write('{"kind":"done","unit":"00001"}\n')
    os.write(1, b"\xff\xfe not utf-8\n" * 10_000)
    os.write(2, b'{"kind":"ask"}\n')
    assert sys.stdin.read() == ""


DEEDS: dict[str, Callable[[Tally | None], object]] = {
    "raise": lambda _: _raise(ValueError("a bug in the stage")),
    "config": lambda _: _raise(ConfigError("no such model: name another")),
    "fill disk": lambda _: _raise(OSError(errno.ENOSPC, "No space left on device", "shard")),
    "read-only": lambda _: _raise(OSError(errno.EROFS, "Read-only file system", "shard")),
    "kill": lambda _: os.kill(os.getpid(), signal.SIGKILL),
    "segfault": lambda _: ctypes.string_at(0),
    "crash in a sample": _crash,
    "exit": lambda _: os._exit(7),
    "sleep": lambda _: time.sleep(60),
    "busy": lambda _: sum(range(10**9)),
    "skip": _skip,
    "lose": _lose,
    "shout": _shout,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise(Lines):
    """Writes other bytes each time, as a model on a GPU may: what a mix of two tries shows."""

    def work(self, unit: Unit, draft: Draft, tally: Tally) -> None:
        time.sleep(self.sleep_s)
        for role in ("one", "two", "three"):
            draft.file(unit.name, role).write_bytes(os.urandom(64))
        with tally.sample(unit.name):
            pass
        draft.finish(unit.name, num_samples=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening(Lines):
    """Notes every time that it is opened, and by whom: a model would be loaded then."""

    notes: Path

    @contextmanager
    def open(self) -> Iterator[Work]:
        with (self.notes / "opened").open("a") as note:
            note.write(f"{os.getpid()}\n")
        yield self.work


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """A unit for each file of a folder, known by its content; one that begins with "bad" fails.

    A unit is named by its place in the list, so that a new file shifts all behind it. Each line is
    a sample, and one that is "-" is a reject.
    """

    folder: Path
    version: ClassVar[int] = 1
    content: ClassVar[str] = "other"

    def reads(self) -> Mapping[str, tuple[str, ...]]:
        return {}

    def units(self) -> Iterator[Unit]:
        for number, (name, mark) in enumerate(self.inputs().items()):
            yield Unit(name=f"{number:05d}", input={"file": name, "mark": mark})

    def inputs(self) -> Mapping[str, Any]:
        paths = sorted(self.folder.iterdir())
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}

    def units_name_content(self) -> bool:
        return True

    @contextmanager
    def open(self) -> Iterator[Work]:
        yield self.work

    def work(self, unit: Unit, draft: Draft, tally: Tally) -> None:
        text = (self.folder / str(unit.input["file"])).read_text()
        if text.startswith("bad"):
            raise ConfigError("cannot be read: mend it")
        shard = f"{unit.name}-{len(text)}"
        draft.file(shard, "txt").write_text(text)
        for number, line in enumerate(text.split("\n")):
            with tally.sample(str(number)):
                if line == "-":
                    raise Filtered("dash", line)
        draft.finish(shard, num_samples=tally.num_kept)
