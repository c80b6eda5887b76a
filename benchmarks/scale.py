"""What happens at ten billion samples: python benchmarks/scale.py

Everything that grows with the data set as a whole, and is not a map over shards, is measured at
growing sizes, each in a process of its own: listing units and receipts, writing and reading the
manifest, joining length tables, planning, opening a plan. From the two largest sizes follow what
an item costs and what is fixed; from those the table for 100 million, a billion and ten billion
samples in volumes of 100 million, with 10,000 samples a shard. Object stores are priced by the
request. The steps are internal functions behind the verbs, called on folders that hold receipts but
no data.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from side_by_side import QUICK, save_report

SAMPLES_A_SHARD = 10_000
SAMPLES_A_VOLUME = 100_000_000
SHARDS_A_VOLUME = SAMPLES_A_VOLUME // SAMPLES_A_SHARD
CAPACITY = 8192
PUT_COST, GET_COST = 5e-6, 4e-7  # US dollars a request, of a usual object store
SHARD_SIZES = (10, 100) if QUICK else (1_000, 10_000, 100_000)
SAMPLE_SIZES = (10_000, 100_000) if QUICK else (1_000_000, 10_000_000)
WHOLE = (100_000_000, 1_000_000_000, 10_000_000_000)


@dataclass(frozen=True, slots=True)
class Cost:
    """What a step took: seconds of wall time, memory beyond the interpreter's, bytes on disk."""

    seconds: float
    memory_mb: float
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Law:
    """A cost that is fixed, and one for each item."""

    fixed: float
    each: float

    def at(self, count: float) -> float:
        """Return the cost of `count` items."""
        return self.fixed + self.each * count


def law(small: tuple[int, float], large: tuple[int, float]) -> Law:
    """Return the straight line through two measurements, never falling."""
    each = max(0.0, (large[1] - small[1]) / (large[0] - small[0]))
    return Law(max(0.0, large[1] - each * large[0]), each)


def make_ledger(folder: Path, num_units: int) -> None:
    """Write a folder of finished units: receipts whose two files are empty."""
    import xxhash

    from shardmill.model.manifest import (
        FileEntry,
        Receipt,
        ShardEntry,
        StageRecord,
        receipt_digest,
        receipt_to_plain,
    )
    from shardmill.model.stage import Unit
    from shardmill.shards.ledger import Ledger
    from shardmill.storage.text import dump_page

    ledger = Ledger(folder, "benchmark")
    ledger.make_folders()
    ledger.make_drafts()
    units = [
        Unit(name=f"{n:08d}", input={"shard": f"{n:08d}"}, num_samples=SAMPLES_A_SHARD)
        for n in range(num_units)
    ]
    record = StageRecord(stage={"kind": "none"}, version=1, digest="0" * 32, content="samples")
    ledger.write_plan(record, {}, units)
    nothing = xxhash.xxh3_64_hexdigest(b"")
    for unit in units:
        files = {}
        for role in ("tar", "idx"):
            (folder / "shards" / f"{unit.name}.{role}").touch()
            files[role] = FileEntry(f"shards/{unit.name}.{role}", 0, nothing)
        receipt = Receipt(
            unit=unit.name,
            digest=receipt_digest("0" * 32, unit),
            num_in=SAMPLES_A_SHARD,
            num_kept=SAMPLES_A_SHARD,
            skipped={},
            shards=(ShardEntry(unit.name, SAMPLES_A_SHARD, files),),
        )
        path = folder / "receipts" / f"{unit.name}.json"
        path.write_bytes(dump_page(receipt_to_plain(receipt)))


def resume(folder: Path, num_units: int) -> int:
    """Find what is left to do in a folder where all is done."""
    from shardmill.shards.ledger import Ledger

    ledger = Ledger(folder)
    assert not ledger.pending(ledger.read_units(), "0" * 32)
    return sum(f.stat().st_size for f in (folder / "receipts").iterdir())


def collect(folder: Path, num_units: int) -> int:
    """Write the manifest from the receipts."""
    from shardmill.model.manifest import build_manifest
    from shardmill.shards.ledger import Ledger

    ledger = Ledger(folder, "benchmark")
    units = ledger.read_units()
    receipts = [r for r in ledger.valid_receipts(units, "0" * 32) if r is not None]
    ledger.write_manifest(build_manifest(Ledger(folder).read_stage(), units, receipts))
    return (folder / "manifest.json").stat().st_size


def open_folder(folder: Path, num_units: int) -> int:
    """Read the manifest, as every reader does first."""
    from shardmill.shards.ledger import open_manifest

    assert len(open_manifest(folder).shards) == num_units
    return (folder / "manifest.json").stat().st_size


def join(folder: Path, num_samples: int) -> int:
    """Join the length tables of all shards into one file."""
    from shardmill.model.plan import join_tables, length_table
    from shardmill.shards.plans import write_lengths

    random = np.random.default_rng(0)
    tables = []
    for shard in range(num_samples // SAMPLES_A_SHARD):
        lengths = np.minimum(8000, random.lognormal(6, 1, SAMPLES_A_SHARD)).astype(np.int32) + 1
        starts = (0, SAMPLES_A_SHARD)
        names = [f"{shard:08d}"]
        tables.append(
            length_table(lengths, num_visual=lengths // 2, shard_names=names, shard_starts=starts)
        )
    write_lengths(folder / "lengths.bin", join_tables(tables))
    return (folder / "lengths.bin").stat().st_size


def plan(folder: Path, num_samples: int) -> int:
    """Plan packs from a length table."""
    from shardmill.model.plan import PackSpec
    from shardmill.packing.plan import plan_packs
    from shardmill.shards.plans import open_lengths, write_plan

    table = open_lengths(folder / "lengths.bin")
    write_plan(folder / "packs.plan", plan_packs(table, PackSpec(capacity=CAPACITY)))
    return (folder / "packs.plan").stat().st_size


def open_packs(folder: Path, num_samples: int) -> int:
    """Map a plan and find the packs of a step in the middle of an epoch."""
    from shardmill.shards.plans import open_plan

    found = open_plan(folder / "packs.plan")
    assert found.members[found.starts[len(found) // 2]] < num_samples
    return 0


Step = Callable[[Path, int], int]
OF_SHARDS: dict[str, Step] = {
    "find what is left to do": resume,
    "write the manifest": collect,
    "read the manifest": open_folder,
}
OF_SAMPLES: dict[str, Step] = {
    "join length tables": join,
    "plan packs": plan,
    "open the plan": open_packs,
}


def apart(step: str, folder: Path, count: int) -> Cost:
    """Run a step in a process of its own, so that its peak of memory is its own."""
    command = [sys.executable, __file__, step, str(folder), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return Cost(**json.loads(done.stdout.splitlines()[-1]))


def here(step: str, folder: Path, count: int) -> None:
    """Run a step in this process and print what it took."""

    work = {**OF_SHARDS, **OF_SAMPLES}[step]
    if step == "plan packs":  # compiled code is on disk after a first plan
        from shardmill.model.plan import PackSpec, length_table
        from shardmill.packing.plan import plan_packs

        plan_packs(length_table([5, 6, 7]), PackSpec(capacity=9))
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
    before, began = memory_mb("VmRSS"), time.perf_counter()
    num_bytes = work(folder, count)
    seconds = time.perf_counter() - began
    peak = memory_mb("VmHWM") - before
    print(json.dumps({"seconds": seconds, "memory_mb": peak, "num_bytes": num_bytes}))


def memory_mb(name: str) -> float:
    """Return the memory of this process now (VmRSS) or at most (VmHWM)."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status[name].split()[0]) / 1024


Measured = dict[str, dict[int, Cost]]


def measure(steps: dict[str, Step], sizes: tuple[int, ...], unit: str) -> Measured:
    """Return what every step took at every size."""
    costs: Measured = {step: {} for step in steps}
    for count in sizes:
        with tempfile.TemporaryDirectory(prefix="scale-") as name:
            folder = Path(name)
            if steps is OF_SHARDS:
                make_ledger(folder, count)
            for step in steps:
                costs[step][count] = apart(step, folder, count)
                print(f"{count:,} {unit}: {step}", file=sys.stderr)
    return costs


def measured_table(costs: Measured, unit: str) -> str:
    """Return the table of what was measured."""
    rows = [f"| step | {unit} | s | MB of memory | MB on disk |", "|---|---:|---:|---:|---:|"]
    for step, by_size in costs.items():
        rows += [
            f"| {step} | {count:,} | {cost.seconds:.2f} | {cost.memory_mb:,.0f} "
            f"| {cost.num_bytes / 1e6:,.1f} |"
            for count, cost in by_size.items()
        ]
    return "\n".join(rows)


def laws(by_size: dict[int, Cost]) -> tuple[Law, Law, Law]:
    """Return the laws of seconds, megabytes of memory and bytes on disk."""
    (small, a), (large, b) = list(by_size.items())[-2:]
    return (
        law((small, a.seconds), (large, b.seconds)),
        law((small, a.memory_mb), (large, b.memory_mb)),
        law((small, a.num_bytes), (large, b.num_bytes)),
    )


def whole_table(shards: Measured, samples: Measured) -> str:
    """Return what each global step takes at the sizes that nobody tries on a laptop."""
    totals = " | ".join(f"{total:,}: minutes, GB on disk" for total in WHOLE[1:])
    rows = [
        f"| step, in one process | a volume: s | GB of memory | {totals} |",
        "|---|---:|---:|" + "---:|" * len(WHOLE[1:]),
    ]
    of_shards = [(step, by_size, SHARDS_A_VOLUME) for step, by_size in shards.items()]
    of_samples = [(step, by_size, SAMPLES_A_VOLUME) for step, by_size in samples.items()]
    for step, by_size, count in of_shards + of_samples:
        seconds, memory, num_bytes = (found.at(count) for found in laws(by_size))
        cells = [
            f"{seconds * volumes / 60:,.1f}, {num_bytes * volumes / 1e9:,.1f}"
            for volumes in (total // SAMPLES_A_VOLUME for total in WHOLE[1:])
        ]
        rows.append(f"| {step} | {seconds:,.2f} | {memory / 1e3:,.2f} | {' | '.join(cells)} |")
    return "\n".join(rows)


def requests_table() -> str:
    """Return how many files and requests of an object store a stage makes, and their price."""
    rows = [
        "| samples | shards | files | puts | gets of one resume | US dollars |",
        "|---:|---:|---:|---:|---:|---:|",
    ]
    for total in WHOLE:
        shards = total // SAMPLES_A_SHARD
        puts = shards * 3  # tar, index, receipt
        gets = shards + shards * 3 // 1000  # the receipts, and lists of 1000 names
        price = puts * PUT_COST + gets * GET_COST
        rows.append(f"| {total:,} | {shards:,} | {puts:,} | {puts:,} | {gets:,} | {price:,.2f} |")
    return "\n".join(rows)


def main() -> None:
    """Measure, and write the tables."""
    sizes = (*SAMPLE_SIZES, 100_000_000) if "--huge" in sys.argv else SAMPLE_SIZES
    shards = measure(OF_SHARDS, SHARD_SIZES, "shards")
    samples = measure(OF_SAMPLES, sizes, "samples")
    sections = [
        "## Measured: steps over shards\n\n" + measured_table(shards, "shards"),
        "## Measured: steps over samples\n\n" + measured_table(samples, "samples"),
        "## Ten billion samples, from the two largest sizes\n\n" + whole_table(shards, samples),
        "## Requests of one stage on an object store\n\n" + requests_table(),
    ]
    save_report(__file__, "Ten billion samples", sections)


if __name__ == "__main__":
    if len(sys.argv) == 4:
        here(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
    else:
        main()
