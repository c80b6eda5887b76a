"""Runs contestants alternately in one run and prints who was how fast.

A contestant is a function of a benchmark file, `def shardmill(**arguments) -> Callable[[], int]`:
it prepares what must not be timed and returns the work, which returns how many items it did; or it
returns the work and what tidies up after it, which is not timed either. Each
lives in a process of its own (with its peer's packages in front of the path) that stays alive from
round to round, so that all have warm caches and imports; rounds go around the table, and the best
of each counts. CPU time is that of the process and its children, user and system.

    contest = Contest("Writing tars", unit="sample")
    contest.add("shardmill", __file__, "shardmill", folder="/tmp/x")
    contest.add("webdataset.TarWriter", __file__, "webdataset", peer="wids", folder="/tmp/y")
    save_report(__file__, "Writing tars", [contest.run(rounds=5).table(than="shardmill")])

Every program takes `--quick`: little data and few rounds, to see that it works. The tables of such
a run are printed, not kept.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from peers import peer_environment

RESULTS_DIR = Path(__file__).resolve().parent / "results"
Work = Callable[[], int]
# In the environment, so that the processes of the contestants know it, too.
if "--quick" in sys.argv:
    os.environ["BENCHMARK_QUICK"] = "1"
QUICK = "BENCHMARK_QUICK" in os.environ


def sized(full: int, quick: int) -> int:
    """Return the size or the number of rounds for this run."""
    return quick if QUICK else full


@dataclass(slots=True)
class Contestant:
    """One way to do the work, and what each round took."""

    name: str
    process: subprocess.Popen[str] | None
    note: str = ""
    work: Work | None = None
    num_items: int = 0
    cpu_s: list[float] = field(default_factory=list)
    wall_s: list[float] = field(default_factory=list)

    @property
    def cpu_us(self) -> float:
        """Microseconds of CPU for an item, in the best round."""
        return min(self.cpu_s) / self.num_items * 1e6

    @property
    def wall_us(self) -> float:
        """Microseconds of wall time for an item, in the best round."""
        return min(self.wall_s) / self.num_items * 1e6

    def ask(self, request: str) -> dict[str, Any]:
        """Send a line to the process and return its answer, or work here."""
        if self.work is not None:
            return timed(self.work)
        assert self.process is not None
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(request + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                return answer
        raise SystemExit(f"{self.name} ended with code {self.process.wait()}")


@dataclass(slots=True)
class Contest:
    """Contestants that do the same work on the same data."""

    title: str
    unit: str
    contestants: list[Contestant] = field(default_factory=list)

    def add(
        self,
        name: str,
        file: str,
        function: str,
        *,
        peer: str | None = None,
        note: str = "",
        **arguments: Any,
    ) -> None:
        """Start a contestant: `function` of `file`, called with `arguments` in a new process."""
        command = [sys.executable, __file__, file, function, json.dumps(arguments)]
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=peer_environment(peer),
        )
        self.contestants.append(Contestant(name, process, note))

    def add_here(self, name: str, work: Work) -> None:
        """Add a contestant that works in this process, for those who share all that is loaded."""
        self.contestants.append(Contestant(name, None, work=work))

    def run(self, rounds: int = 5) -> Self:
        """Let everybody work once a round, in turn."""
        for number in range(rounds):
            for contestant in self.contestants:
                answer = contestant.ask("go")
                contestant.num_items = answer["num_items"]
                contestant.cpu_s.append(answer["cpu_s"])
                contestant.wall_s.append(answer["wall_s"])
            print(f"round {number + 1} of {rounds} of {self.title!r}", file=sys.stderr)
        for contestant in self.contestants:
            if contestant.process is not None:
                contestant.process.communicate("")
        return self

    def best(self, name: str) -> Contestant:
        """Return a contestant by name."""
        return next(c for c in self.contestants if c.name == name)

    def table(self, *, than: str) -> str:
        """Return the table in markdown: how many times the CPU time of `than` each took."""
        base = self.best(than).cpu_us
        lines = [
            f"| | CPU us/{self.unit} | {self.unit}s/CPU-s | wall us/{self.unit} "
            f"| CPU against {than} | |",
            "|---|---:|---:|---:|---:|---|",
        ]
        lines += [
            f"| {c.name} | {c.cpu_us:,.1f} | {_rate(1e6 / c.cpu_us)} | {c.wall_us:,.1f} "
            f"| {c.cpu_us / base:.2f} x | {c.note} |"
            for c in sorted(self.contestants, key=lambda c: c.cpu_us)
        ]
        return "\n".join(lines)


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def save_report(file: str, title: str, sections: Iterable[str]) -> None:
    """Print the report and keep it in results/NAME.md, with the machine it was made on.

    The file is written after each section, so that a run that is stopped leaves what it has; a
    quick run keeps nothing.
    """
    done: list[str] = []
    for section in sections:
        done.append(section)
        if not QUICK:
            text = "\n\n".join([f"# {title}", machine(), *done]) + "\n"
            (RESULTS_DIR / f"{Path(file).stem}.md").write_text(text)
        print(section + "\n", flush=True)


def unit_times(out: Path) -> tuple[list[float], list[float]]:
    """Return when the units of a folder started and when they ended, from its event logs."""
    lines = [line for log in (out / "events").glob("*.jsonl") for line in log.open()]
    events = [json.loads(line) for line in lines]
    starts, ends = (
        sorted(event["time"] for event in events if event["kind"] == kind)
        for kind in ("start", "done")
    )
    return starts, ends


def machine() -> str:
    """Return one line about this machine and the load on it."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    load = os.getloadavg()[0]
    return (
        f"Python {platform.python_version()}, {platform.system()} {platform.release()}, {model}, "
        f"{len(os.sched_getaffinity(0))} CPUs, load {load:.1f} at the end. Best of the rounds; "
        "contestants took turns."
    )


def serve(file: str, function: str, arguments: dict[str, Any]) -> None:
    """Prepare a contestant and work once for each line of standard input."""
    sys.path.insert(0, str(Path(file).resolve().parent))
    spec = importlib.util.spec_from_file_location("contestant", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = getattr(module, function)(**arguments)
    work, tidy = made if isinstance(made, tuple) else (made, lambda: None)
    for _ in sys.stdin:
        answer = timed(work)
        tidy()
        print("\n" + json.dumps(answer), flush=True)


def timed(work: Work) -> dict[str, Any]:
    """Work, and return how many items were done in which time."""
    cpu, wall = cpu_seconds(), time.perf_counter()
    num_items = work()
    cpu, wall = cpu_seconds() - cpu, time.perf_counter() - wall
    return {"num_items": num_items, "cpu_s": cpu, "wall_s": wall}


def cpu_seconds() -> float:
    """Return the CPU time of this process and of its children that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
