"""What the runner itself costs: python benchmarks/runner_overhead.py [NUM_UNITS]

Empty units leave nothing but planning, handing out, committing and collecting. Goal: under 1 ms a
unit for 10,000 of them; listing what is done, a finished folder and the status in well under 2 s.
Each figure is the best of several rounds into a fresh folder.
"""

from __future__ import annotations

import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from made_units import MadeUnits
from side_by_side import save_report

from shardmill.running.runner import run_stage
from shardmill.running.status import read_status

NUM_ROUNDS = 2


@dataclass(frozen=True, slots=True)
class Cost:
    """Wall and processor seconds, of this process and of its children."""

    wall_s: float
    cpu_s: float


def measure(work: Callable[[], object]) -> Cost:
    """Return what a call costs."""
    began_s, cpu_s = time.perf_counter(), cpu_seconds()
    work()
    return Cost(time.perf_counter() - began_s, cpu_seconds() - cpu_s)


def cpu_seconds() -> float:
    """Return the processor time so far, of this process and of the children that ended."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def run_all(folder: Path, num_units: int) -> dict[str, Cost]:
    """Return the cost of each case, once."""
    costs = {}
    for num_files in (0, 2):
        stage = MadeUnits(num_units=num_units, num_files=num_files)
        for workers in (0, 1, 2):
            out = folder / f"{num_files}-{workers}-{time.monotonic_ns()}"
            name = f"{num_files} files a unit, workers={workers}"
            costs[name] = measure(partial(run_stage, stage, out, workers=workers))
    costs["run again, finished"] = measure(partial(run_stage, stage, out, workers=0))
    costs["status, finished"] = measure(partial(read_status, out))
    (out / "manifest.json").unlink()
    costs["status, not collected"] = measure(partial(read_status, out))
    costs["run again, not collected"] = measure(partial(run_stage, stage, out, workers=0))
    return costs


def main() -> None:
    """Print the table and keep it."""
    num_units = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    folder = Path(tempfile.mkdtemp(prefix="runner-overhead-"))
    rounds = [run_all(folder, num_units) for _ in range(NUM_ROUNDS)]
    shutil.rmtree(folder)
    rows = ["| | wall s | wall ms/unit | CPU ms/unit |", "|---|---:|---:|---:|"]
    for name in rounds[0]:
        wall_s = min(costs[name].wall_s for costs in rounds)
        cpu_s = min(costs[name].cpu_s for costs in rounds)
        per_unit = f"{1e3 * wall_s / num_units:.3f} | {1e3 * cpu_s / num_units:.3f}"
        rows.append(f"| {name} | {wall_s:.2f} | {per_unit} |")
    title = f"## {num_units:,} units, best of {NUM_ROUNDS} rounds"
    save_report(__file__, "What the runner costs", [title, "\n".join(rows)])


if __name__ == "__main__":
    main()
