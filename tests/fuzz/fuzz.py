"""`make fuzz`: broken input for every reader, decoder and gate, bounded by time.

    python tests/fuzz/fuzz.py --seconds 300 --seed 0 [--targets tar,images]
    python tests/fuzz/fuzz.py --replay .fuzz/plan/1f0c...@packs.plan --targets plan

Input number n of a target is a pure function of (seed, target, n), so a child process does the work
and says only which number it is at. One that ends by a signal, does not come back from an input in
time, or runs out of the memory that it may take, is a finding like any exception that is not a
`ShardmillError`; the next child goes on behind it. The first input of each finding is kept below
.fuzz/ and its path is printed; the exit status is 1 if there was any. Targets with C code of ours
run once more, with that code under the address and undefined-behaviour sanitizers.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(HERE.parent / "support")]

from faults import break_file
from targets import TARGETS, Target

SEEDS = HERE / "seeds"
LIMIT_S = (
    30.0  # for one input: what takes a tenth of a second alone may take long on a busy machine
)
START_S = 180.0  # for a child to load its libraries and write its seeds
EXTRA_BYTES = 2 << 30  # what a reader may take beyond what its libraries hold already
ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP)
C_FILES = ("shards.tar._tarscan", "shards.tar._members", "media._resample")
SANITIZERS = "address,undefined"


@dataclass(frozen=True, slots=True)
class Finding:
    """What went wrong, where, and the input that shows it."""

    target: str
    what: str
    path: Path


@dataclass(slots=True)
class Outcome:
    """What one target went through."""

    target: str
    num_inputs: int = 0
    seconds: float = 0.0
    findings: dict[str, Finding] = field(default_factory=dict)
    times: Counter[str] = field(default_factory=Counter)


def read_input(target: Target, folder: Path, changed: Path) -> str:
    """Let a target read; return what is wrong with how it took it, "" if nothing is."""
    from shardmill.errors import ShardmillError

    try:
        target.read(folder, changed)
    except ShardmillError:
        return ""
    except OSError as error:
        # That a file is not there, or no file, is said as the system says it, with its name. Arrow
        # and others raise errors without a number, and any other number is of a call that we made.
        is_absent = error.errno in ABSENT and error.filename is not None
        return "" if is_absent else describe(error)
    except Exception as error:  # what else there is, is what we look for
        return describe(error)
    return ""


def describe(error: Exception) -> str:
    """Return the type of an error and the last line of ours that it passed."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/src/shardmill/" in frame.filename]
    place = (ours or frames)[-1]
    name = place.filename.partition("/src/")[2] or place.filename
    return f"{type(error).__name__} in {name}:{place.lineno}: {str(error)[:120]!r}"


def make_seeds(target: Target, folder: Path) -> list[str]:
    """Write what the target reads when nothing is wrong; return the files that may break."""
    folder.mkdir(parents=True)
    target.make(folder)
    return list_files(target, folder)


def list_files(target: Target, folder: Path) -> list[str]:
    """Return the files that may break, each once, in an order that no file system decides."""
    found = (path for pattern in target.files for path in sorted(folder.glob(pattern)))
    return list(dict.fromkeys(str(path.relative_to(folder)) for path in found if path.is_file()))


def nth_input(
    target: str, seeds: Path, names: list[str], seed: int, number: int
) -> tuple[str, bytes]:
    """Return input `number` of a target: the file that breaks, and its bytes."""
    rng = Random(f"{seed}/{target}/{number}")
    name = rng.choice(names)
    return name, break_file((seeds / name).read_bytes(), rng)


@contextmanager
def folder_with(seeds: Path, name: str, content: bytes) -> Iterator[tuple[Path, Path]]:
    """Yield a folder like the seeds, in which one file has other bytes, and that file."""
    folder = Path(tempfile.mkdtemp(prefix="in-", dir=seeds.parent))
    try:
        # Linked, so that an input costs no copy; a new place each, so that no cache knows it.
        shutil.copytree(seeds, folder, dirs_exist_ok=True, copy_function=os.link, symlinks=True)
        changed = folder / name
        changed.unlink(missing_ok=True)
        changed.parent.mkdir(parents=True, exist_ok=True)
        changed.write_bytes(content)
        yield folder, changed
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def work(name: str, seeds: Path, seed: int, first: int, *, limited: bool) -> None:
    """Go through the inputs of a target from `first` on, in a child: a line for each."""
    target = TARGETS[name]
    names = make_seeds(target, seeds)
    with folder_with(seeds, names[0], (seeds / names[0]).read_bytes()) as (folder, changed):
        say({"whole": read_input(target, folder, changed)})
    if limited:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + EXTRA_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    number = first
    while True:
        say({"begin": number})
        with folder_with(seeds, *nth_input(name, seeds, names, seed, number)) as (folder, changed):
            problem = read_input(target, folder, changed)
        if problem:
            say({"problem": problem})
        number += 1


def say(message: dict[str, Any]) -> None:
    os.write(3, json.dumps(message).encode() + b"\n")


class Child:
    """A process that goes through inputs, and what it said last."""

    def __init__(self, name: str, folder: Path, seed: int, first: int, env: dict[str, str]) -> None:
        words = [sys.executable, __file__, "--child", str(folder / "seeds"), "--targets", name]
        words += ["--seed", str(seed), "--first", str(first)]
        read_end, write_end = os.pipe()
        self._log = (folder / "log").open("wb+")
        self.process = subprocess.Popen(
            ["sh", "-c", f'exec "$@" 3>&{write_end}', "sh", *words],
            pass_fds=[write_end],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env={**os.environ, **env},
        )
        os.close(write_end)
        self._lines, self._read_end = b"", read_end

    def next(self, limit_s: float) -> dict[str, Any] | None:
        """Return what it says next; None if it says nothing in time or nothing any more."""
        while b"\n" not in self._lines:
            ready, _, _ = select.select([self._read_end], [], [], limit_s)
            got = os.read(self._read_end, 1 << 16) if ready else b""
            if not got:
                return None
            self._lines += got
        line, _, self._lines = self._lines.partition(b"\n")
        said: dict[str, Any] = json.loads(line)
        return said

    def end(self) -> str:
        """Make sure that it is gone; return how it went."""
        try:
            # One that died closed its pipe a moment before.
            code, hung = self.process.wait(timeout=2), False
        except subprocess.TimeoutExpired:
            self.process.kill()
            code, hung = self.process.wait(), True
        os.close(self._read_end)
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").splitlines()
        self._log.close()
        said = next((line for line in lines if "ERROR: " in line or "runtime error" in line), "")
        if hung:
            return "hang"
        return (
            f"{signal.Signals(-code).name} {said}"
            if code < 0
            else f"exit {code} {said or lines[-1:]}"
        )


def fuzz(name: str, seconds: float, seed: int, kept: Path, env: dict[str, str]) -> Outcome:
    """Feed a target for some seconds."""
    outcome = Outcome(name)
    number, end_s = 0, 0.0
    while not end_s or time.monotonic() < end_s:
        with tempfile.TemporaryDirectory(prefix="fuzz-", dir=shared_memory()) as place:
            folder = Path(place)
            child = Child(name, folder, seed, number, env)
            said = child.next(START_S)
            if said is None or said["whole"]:
                raise SystemExit(f"{name}: whole input fails: {said or child.end()}")
            # What starting takes is not counted, or slow targets would see no input.
            end_s = end_s or time.monotonic() + seconds
            begun_s = time.monotonic()
            running = None
            while time.monotonic() < end_s:
                said = child.next(LIMIT_S)
                if said is None:
                    keep(outcome, child.end(), kept, folder, seed, running or number)
                    break
                if "begin" in said:
                    running, outcome.num_inputs = said["begin"], outcome.num_inputs + 1
                else:
                    keep(outcome, said["problem"], kept, folder, seed, running or number)
            else:
                child.process.kill()
                child.end()
            outcome.seconds += time.monotonic() - begun_s
            number = (running if running is not None else number) + 1
    return outcome


def keep(outcome: Outcome, what: str, kept: Path, folder: Path, seed: int, number: int) -> None:
    """Count a finding; the first of its kind is stored and printed."""
    where = what.partition(": ")[0]
    outcome.times[where] += 1
    if where in outcome.findings:
        return
    target = TARGETS[outcome.target]
    names = list_files(target, folder / "seeds")
    name, content = nth_input(outcome.target, folder / "seeds", names, seed, number)
    path = kept / outcome.target / f"{seed}-{number}@{name.replace('/', '+')}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    outcome.findings[where] = Finding(outcome.target, what, path)
    print(f"  {outcome.target}: {what}\n    {path}", flush=True)


def replay(target: Target, path: Path, folder: Path) -> str:
    """Read a kept input again; return what is wrong with how it was taken, "" if nothing is."""
    make_seeds(target, folder / "seeds")
    name = path.name.partition("@")[2].replace("+", "/")
    with folder_with(folder / "seeds", name, path.read_bytes()) as (place, changed):
        return read_input(target, place, changed)


def shared_memory() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def build_sanitized(folder: Path) -> dict[str, str] | str:
    """Compile our C code with sanitizers; return the environment to run it in, or why not."""
    asked = ["gcc", "-print-file-name=libasan.so"]
    library = subprocess.check_output(asked, text=True).strip() if shutil.which("gcc") else ""
    if not Path(library).is_absolute():  # gcc repeats the name of a library that it does not have
        return "there is no gcc with libasan here"
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    for name in C_FILES:
        source = ROOT / "src/shardmill" / f"{name.replace('.', '/')}.c"
        flags = [f"-fsanitize={SANITIZERS}", "-fno-sanitize-recover=undefined", "-g", "-O1"]
        include = f"-I{sysconfig.get_path('include')}"
        words = [
            "gcc",
            "-shared",
            "-fPIC",
            *flags,
            include,
            str(source),
            "-o",
            f"{folder}/{name}{suffix}",
        ]
        built = subprocess.run(words, capture_output=True, text=True)
        if built.returncode:
            return f"{source} does not compile: {built.stderr[-300:]}"
    return {
        "LD_PRELOAD": library,
        "SHARDMILL_SANITIZED": str(folder),
        # Python never frees all that it holds when it ends, and a crash must end the process.
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1:abort_on_error=1",
        "PYTHONMALLOC": "malloc",
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Feed broken input to every reader.")
    parser.add_argument("--seconds", type=float, default=300, help="for all targets together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--targets", default="", help="some of the table, by comma")
    parser.add_argument("--kept", type=Path, default=ROOT / ".fuzz")
    parser.add_argument("--replay", type=Path, help="a kept input of the target")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--first", type=int, default=0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    names = given.targets.split(",") if given.targets else list(TARGETS)
    if given.child is not None:
        load_sanitized()
        limited = "SHARDMILL_SANITIZED" not in os.environ
        work(names[0], given.child, given.seed, given.first, limited=limited)
    if given.list:
        print("\n".join(f"{name:16} {target.says}" for name, target in TARGETS.items()))
        return 0
    if given.replay is not None:
        with tempfile.TemporaryDirectory() as place:
            problem = replay(TARGETS[names[0]], given.replay, Path(place))
        print(problem or "taken as it should be")
        return bool(problem)
    return run(names, given.seconds, given.seed, given.kept)


def run(names: list[str], seconds: float, seed: int, kept: Path) -> int:
    """Fuzz each target for its share of the time, and print the table."""
    with tempfile.TemporaryDirectory() as place:
        sanitized = build_sanitized(Path(place))
        rounds: list[tuple[str, dict[str, str]]] = [(name, {}) for name in names]
        if isinstance(sanitized, str):
            print(f"without sanitizers: {sanitized}")
        else:
            rounds += [(name, sanitized) for name in names if TARGETS[name].runs_c]
        outcomes = []
        for name, env in rounds:
            outcome = fuzz(name, seconds / len(rounds), seed, kept, env)
            outcomes.append((f"{name}, sanitized" if env else name, outcome))
            per_s = outcome.num_inputs / max(outcome.seconds, 0.1)
            said = (
                f"{outcome.num_inputs:9,} inputs {per_s:8.0f} /s  {len(outcome.findings)} findings"
            )
            print(f"{outcomes[-1][0]:24} {said}", flush=True)
    num_inputs = sum(outcome.num_inputs for _, outcome in outcomes)
    num_findings = sum(len(outcome.findings) for _, outcome in outcomes)
    print(f"{num_inputs:,} inputs of {len(outcomes)} targets, seed {seed}: {num_findings} findings")
    return 1 if num_findings else 0


def load_sanitized() -> None:
    """Put the C code that was built with sanitizers in the place of the other."""
    folder = os.environ.get("SHARDMILL_SANITIZED")
    if folder is None:
        return
    from importlib import import_module
    from importlib.machinery import ExtensionFileLoader
    from importlib.util import module_from_spec, spec_from_file_location

    for name in C_FILES:
        whole = f"shardmill.{name}"
        path = f"{folder}/{name}{sysconfig.get_config_var('EXT_SUFFIX')}"
        spec = spec_from_file_location(whole, path, loader=ExtensionFileLoader(whole, path))
        assert spec is not None and spec.loader is not None
        sys.modules[whole] = module = module_from_spec(spec)
        spec.loader.exec_module(module)
        package, _, own = whole.rpartition(".")
        setattr(import_module(package), own, module)


if __name__ == "__main__":
    sys.exit(main())
