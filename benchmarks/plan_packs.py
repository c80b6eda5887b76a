"""Planning packs: python benchmarks/plan_packs.py [--huge]

Goals: a million samples 50 times as fast as NeMo's knapsack with the histogram planner and 10 times
with the window planner; not slower than NeMo without compiled code; at most 1.0001 times the lower
bound of packs on every set of lengths; 100 million samples (--huge) in 5 s and 30 s with 1.5 GB.
This measures the internal planner on lengths in memory, as the peers take them; `sm.plan` also
reads the lengths from a folder and writes the plan.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import packers
from side_by_side import Contest, Work, cpu_seconds, save_report, sized

sys.path.insert(0, str(packers.SUPPORT_DIR))
from packing_lengths import SETS, draw

NUM = sized(1_000_000, 5_000)
NUM_FOR_PEERS = sized(100_000, 2_000)


def shardmill(data: str, capacity: int, method: str, loops: str = "compiled") -> Work:
    """From lengths to packs of rows, without ordering them, as the peers do."""
    from shardmill.model.plan import PackSpec
    from shardmill.packing.loops import load_loops
    from shardmill.packing.plan import block_order, choose, count_lengths

    lengths = draw(data, capacity, NUM)[0]
    chosen = load_loops(loops)  # type: ignore[arg-type]
    spec = PackSpec(capacity=capacity, method=method)

    def work() -> int:
        histogram = count_lengths(lengths, capacity)
        patterns = choose(histogram, capacity, spec, chosen).patterns
        rows = chosen.sort_rows(lengths, *block_order(len(lengths), 1), histogram)
        chosen.deal_rows(patterns, rows, histogram)
        return len(lengths)

    work()
    return work


def shardmill_plan(data: str, capacity: int, loops: str) -> Work:
    """The whole plan: checked, packed with the best method, ordered for balance."""
    from shardmill.model.plan import PackSpec, length_table
    from shardmill.packing.plan import plan_packs

    tokens, visual = draw(data, capacity, NUM)
    table = length_table(tokens, num_visual=visual)

    def work() -> int:
        plan_packs(table, PackSpec(capacity=capacity), loops=loops)  # type: ignore[arg-type]
        return NUM

    work()
    return work


def peer(data: str, capacity: int, packer: str, **arguments: Any) -> Work:
    """A public packer on the same lengths, as the list that it takes."""
    pack = getattr(packers, packer)(**arguments)
    lengths = draw(data, capacity, NUM)[0].tolist()

    def work() -> int:
        pack(lengths, capacity)
        return len(lengths)

    return work


def speed(name: str, capacity: int) -> str:
    """Return the table of who plans a million samples how fast."""
    contest = Contest(f"{name} {capacity}", unit="sample")
    at: dict[str, Any] = {"data": name, "capacity": capacity}
    contest.add("shardmill histogram", __file__, "shardmill", **at, method="histogram")
    contest.add("shardmill window", __file__, "shardmill", **at, method="window")
    plain: dict[str, Any] = {**at, "loops": "plain"}
    contest.add("shardmill window, plain", __file__, "shardmill", **plain, method="window")
    contest.add("shardmill plan, both and order", __file__, "shardmill_plan", **at, loops="auto")
    contest.add("shardmill plan, plain", __file__, "shardmill_plan", **plain)
    contest.add("NeMo greedy_knapsack", __file__, "peer", **at, packer="nemo")
    contest.add("LLaMA-Factory, buffer 1000", __file__, "peer", **at, packer="llama_factory")
    table = contest.run(sized(2, 1)).table(than="NeMo greedy_knapsack")
    return f"## {NUM:,} samples, {name} {capacity}\n\n{table}"


def quality() -> str:
    """Return the table of packs over the lower bound, on every set of lengths."""
    from shardmill.model.plan import PackSpec, length_table
    from shardmill.packing.plan import plan_packs

    # The peers are too slow for a million samples of every set.
    peers = (
        (packers.nemo(), NUM_FOR_PEERS),
        (packers.llama_factory(), NUM_FOR_PEERS),
        (packers.ms_swift(), NUM_FOR_PEERS // 5),
    )
    lines = [
        "| lengths | capacity | bound | shardmill | method | best fit | NeMo, 100k "
        "| LLaMA-Factory, 100k | ms-swift, 20k |",
        "|---|---:|---:|---:|---|---:|---:|---:|---:|",
    ]
    for name, capacity in SETS:
        tokens, visual = draw(name, capacity, NUM)
        spec = PackSpec(capacity=capacity)
        plan = plan_packs(length_table(tokens, num_visual=visual), spec)
        of = [n / plan.lower_bound for n in (len(plan), plan.counts["histogram"])]
        for pack, num in peers:
            some = tokens[:num]
            of.append(len(pack(some.tolist(), capacity)) / _bound(some, capacity))
        lines.append(
            f"| {name} | {capacity} | {plan.lower_bound:,} | **{of[0]:.6f}** | {plan.method} "
            f"| {of[1]:.6f} | {of[2]:.6f} | {of[3]:.4f} | {of[4]:.4f} |"
        )
        print(lines[-1], file=sys.stderr)
    return f"## Packs over the lower bound, {NUM:,} samples\n\n" + "\n".join(lines)


def _bound(lengths: np.ndarray, capacity: int) -> int:
    from shardmill.packing.fit import lower_bound

    return lower_bound(np.bincount(lengths, minlength=capacity + 1), capacity)


def streaming() -> str:
    """Return the table of how full packs of an endless stream are."""
    from shardmill.packing.stream import StreamPlanner

    knapsack = packers.llama_factory()
    lines = ["| lengths | window 64 | window 128 | knapsack, buffer 1000 |", "|---|---:|---:|---:|"]
    for name, capacity in (("vlm", 4096), ("vlm", 8192), ("vlm", 32768), ("img", 4096)):
        lengths = draw(name, capacity, NUM_FOR_PEERS)[0].tolist()
        fills = []
        for window in (64, 128):
            planner = StreamPlanner(capacity, window=window)
            packs = [pack for item in enumerate(lengths) if (pack := planner.add(*item))]
            filled = sum(lengths[number] for pack in packs for number in pack)
            fills.append(filled / capacity / len(packs))
        fills.append(sum(lengths) / capacity / len(knapsack(lengths, capacity)))
        cells = " | ".join(f"{100 * fill:.4f} %" for fill in fills)
        lines.append(f"| {name} {capacity} | {cells} |")
    return f"## Streaming, fill of {NUM_FOR_PEERS:,} samples\n\n" + "\n".join(lines)


def first_call() -> str:
    """Return how long a fresh process takes for its first plan."""
    code = (
        "import time\n"
        "from shardmill.model.plan import length_table\n"
        "from shardmill.model.plan import PackSpec\n"
        "from shardmill.packing.plan import plan_packs\n"
        "table = length_table([1 + n % 700 for n in range({num})])\n"
        "start = time.process_time()\n"
        "plan_packs(table, PackSpec(capacity=4096))\n"
        "print(time.process_time() - start)"
    )
    least = {}
    for num in (10_000, 50_000):
        command = [sys.executable, "-c", code.format(num=num)]
        runs = [subprocess.run(command, capture_output=True, check=True) for _ in range(3)]
        least[num] = min(float(run.stdout) for run in runs)
    listed = ", ".join(f"{num:,} samples {cpu_s:.2f} s" for num, cpu_s in least.items())
    return f"## Start\n\nCPU time of a process's first plan: {listed}."


def huge(num: int) -> str:
    """Return time and memory above the input for many samples, in this process."""
    from shardmill.model.plan import PackSpec, length_table
    from shardmill.packing.loops import load_loops
    from shardmill.packing.plan import block_order, choose, count_lengths, plan_packs

    loops = load_loops("compiled")
    plan_packs(length_table([5, 6, 7]), PackSpec(capacity=9))
    tokens = np.resize(draw("vlm", 8192, 2_000_000)[0], num)
    lines = ["| | CPU s | wall s | peak above the input |", "|---|---:|---:|---:|"]
    for method in ("histogram", "window"):
        spec = PackSpec(capacity=8192, method=method)
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
        before, cpu, wall = _memory("VmRSS"), cpu_seconds(), time.perf_counter()
        histogram = count_lengths(tokens, 8192)
        choice = choose(histogram, 8192, spec, loops)
        rows = loops.sort_rows(tokens, *block_order(num, 1), histogram)
        members = loops.deal_rows(choice.patterns, rows, histogram)
        took = cpu_seconds() - cpu, time.perf_counter() - wall
        peak = _memory("VmHWM") - before
        ratio = choice.patterns.num_packs / choice.lower_bound
        lines.append(
            f"| {method}, {ratio:.6f} x the bound | {took[0]:.2f} | {took[1]:.2f} "
            f"| {peak / 1e9:.2f} GB |"
        )
        del rows, members, choice
    return f"## {num:,} samples, vlm 8192\n\n" + "\n".join(lines)


def _memory(name: str) -> int:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status[name].split()[0]) * 1024


def main() -> None:
    sizes = [sized(10_000_000, 100_000)] + ([100_000_000] if "--huge" in sys.argv else [])
    sections = [
        *(speed(*at) for at in (("vlm", 8192), ("vlm", 32768), ("img", 4096))),
        quality(),
        streaming(),
        first_call(),
        *(_apart(size) for size in sizes),
    ]
    save_report(__file__, "Planning packs", sections)


def _apart(num: int) -> str:
    # In a process of its own, whose peak is that of this work.
    command = [sys.executable, __file__, "huge", str(num)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    if sys.argv[1:2] == ["huge"]:
        print(huge(int(sys.argv[2])))
    else:
        main()
