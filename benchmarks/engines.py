"""What engines cost and how they scale: python benchmarks/engines.py

10,000 empty units leave nothing but the engine: goals are under 1 ms a unit on this machine, under
10 ms through Ray, and a status in under 2 s. Then a stage that only computes, on one virtual node
of one processor and on two, under SLURM and Ray: the goal is 1.8 x the units a second. Rates are
those of the events, from the first start to the last end: starting a cluster does not count. The
stage is a plugin; internal is only the function behind `shardmill status`.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from made_data import SUPPORT_DIR, MadeUnits, spin
from side_by_side import save_report, sized, unit_times

sys.path.insert(0, str(SUPPORT_DIR))

from ray_nodes import ray_cluster
from slurm_cluster import missing_programs, slurm_cluster

from shardmill.running.engine import Engine
from shardmill.running.local import Local
from shardmill.running.ray import Ray
from shardmill.running.runner import run_stage
from shardmill.running.slurm import Slurm
from shardmill.running.status import read_status

NUM_ROUNDS = sized(3, 1)
NUM_UNITS, NUM_SPINS = sized(10_000, 50), sized(80, 4)
SPIN_S = 0.25


def rounds_for(seconds: float) -> int:
    """Return how many rounds take so long on one processor."""
    began_s = time.process_time()
    spin(1_000_000)
    return int(1_000_000 * seconds / (time.process_time() - began_s))


def rate(out: Path) -> float:
    """Return units a second, from the first start to the last end, in all logs of a folder."""
    starts, ends = unit_times(out)
    return len(ends) / (ends[-1] - starts[0])


def run_on(engine: Engine, stage: MadeUnits, folder: Path, **options: Any) -> Path:
    """Run a stage into a fresh folder and return it."""
    out = folder / f"out-{time.monotonic_ns()}"
    report = run_stage(stage, out, on=engine, **options)
    assert report.complete, report.failures
    return out


def overhead_section(folder: Path) -> str:
    """Return the table of what an empty unit costs."""
    rows = ["| engine | ms a unit | status, s |", "|---|---:|---:|"]
    blank = MadeUnits(num_units=NUM_UNITS)
    with engines_for_overhead(folder) as engines:
        for name, engine, options in engines:
            outs = [run_on(engine, blank, folder, **options) for _ in range(NUM_ROUNDS)]
            best = max(rate(out) for out in outs)
            (outs[-1] / "manifest.json").unlink()
            began_s = time.perf_counter()
            read_status(outs[-1])
            status_s = time.perf_counter() - began_s
            rows.append(f"| {name} | {1000 / best:.2f} | {status_s:.2f} |")
    title = f"## {NUM_UNITS:,} empty units, best of {NUM_ROUNDS} rounds"
    note = "Status before the manifest is there: it reads every receipt and every log."
    return "\n\n".join([title, "\n".join(rows), note])


@contextmanager
def engines_for_overhead(folder: Path) -> Iterator[list[tuple[str, Engine, dict[str, int]]]]:
    """Yield each engine with its options."""
    engines: list[tuple[str, Engine, dict[str, int]]] = [
        ("local, in process", Local(), {"workers": 0}),
        ("local, 2 workers", Local(), {"workers": 2}),
    ]
    with ray_cluster(1, 1) as cluster:
        engines.append(("Ray, 2 nodes of 1 CPU", Ray(address=cluster.address), {}))
        if missing_programs():
            yield engines
            return
        with slurm_cluster(folder / "slurm") as slurm:
            os.environ["SLURM_CONF"] = slurm.conf_path
            engines.append(("SLURM, 2 nodes of 1 CPU", Slurm(tasks=2, poll_s=0.5), {}))
            yield engines


def scaling_section(folder: Path) -> str:
    """Return the table of one node against two."""
    stage = MadeUnits(num_units=NUM_SPINS, num_rounds=rounds_for(SPIN_S))
    rows = ["| engine | 1 node, units/s | 2 nodes, units/s | ratio |", "|---|---:|---:|---:|"]
    scalings = {"Ray": ray_rates, "SLURM": slurm_rates}
    if missing_programs():
        del scalings["SLURM"]
    for name, rates in scalings.items():
        one, two = rates(stage, folder)
        rows.append(f"| {name} | {one:.2f} | {two:.2f} | {two / one:.2f} x |")
    title = f"## {NUM_SPINS} units of {SPIN_S} s of computing, best of {NUM_ROUNDS} rounds"
    return f"{title}\n\n" + "\n".join(rows)


def ray_rates(stage: MadeUnits, folder: Path) -> tuple[float, float]:
    """Return the rates on one node and on two.

    One cluster after the other: the daemons of a second one would take the processors.
    """
    rates = []
    for nodes in ((1,), (1, 1)):
        with ray_cluster(*nodes) as cluster:
            engine = Ray(address=cluster.address)
            rates.append(max(rate(run_on(engine, stage, folder)) for _ in range(NUM_ROUNDS)))
    return rates[0], rates[1]


def slurm_rates(stage: MadeUnits, folder: Path) -> tuple[float, float]:
    """Return the rates on one node and on two, which take turns."""
    with slurm_cluster(folder / "slurm-scaling") as cluster:
        os.environ["SLURM_CONF"] = cluster.conf_path
        return alternate(
            lambda: run_on(Slurm(tasks=1, poll_s=0.5), stage, folder),
            lambda: run_on(Slurm(tasks=2, poll_s=0.5), stage, folder),
        )


def alternate(one: Callable[[], Path], two: Callable[[], Path]) -> tuple[float, float]:
    """Return the best rate of each, over rounds in which both run."""
    rates = [(rate(one()), rate(two())) for _ in range(NUM_ROUNDS)]
    return max(first for first, _ in rates), max(second for _, second in rates)


def sections(folder: Path) -> Iterator[str]:
    """Yield the sections of the report."""
    yield overhead_section(folder)
    yield scaling_section(folder)


def main() -> None:
    """Print the tables and keep them."""
    folder = Path(tempfile.mkdtemp(prefix="engines-"))
    save_report(__file__, "What engines cost, and how they scale", sections(folder))
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
