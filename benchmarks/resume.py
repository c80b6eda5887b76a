"""Resume in the middle of an epoch of 10 million packs: python benchmarks/resume.py

From "the process has its imports" to "the first batch is there": the plan is mapped, the state
loaded, and one batch of 8 packs built. The peers shuffle 10 million numbers and replay the first
half. Then the memory that a worker has for itself while it serves packs of 100 million samples.
Goals: under a second, and under 200 MB. The plan is made up through the internal plan writer, for
so many samples would take hours to make.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from made_data import write_tokens
from side_by_side import Contest, Work, save_report, sized

BATCH = 8
NUM_ROWS = 10_000


def make_plan(folder: Path, num_packs: int, per_pack: int) -> None:
    """Write a plan of this size over a small token shard, whose rows serve many packs."""
    from shardmill.model.plan import PackPlan, PackSpec
    from shardmill.shards.plans import write_plan
    from shardmill.shards.tokens.shard import token_lengths

    rows = ({"key": f"{n:08d}", "ids": np.full(64, n % 1000)} for n in range(NUM_ROWS))
    write_tokens(folder / "tokens", [rows], text_size=1000)
    nothing = np.empty(0, np.uint32)
    plan = PackPlan(
        spec=PackSpec(capacity=64 * per_pack),
        lengths_digest=token_lengths(folder / "tokens").digest,
        num_rows=NUM_ROWS,
        members=(np.arange(num_packs * per_pack, dtype=np.int64) % NUM_ROWS).astype(np.uint32),
        starts=np.arange(num_packs + 1, dtype=np.int64) * per_pack,
        balanced=np.random.default_rng(0).permutation(num_packs).astype(np.uint32),
        dropped=nothing,
        drop_reason=np.empty(0, np.uint8),
        drop_reasons=(),
        cut_rows=nothing,
        cut_lengths=np.empty(0, np.int32),
        method="made",
        why="made",
        lower_bound=num_packs,
    )
    write_plan(folder / "packs.plan", plan)


def shardmill(folder: str, num_packs: int) -> Work:
    """`sm.loader`: map the plan, load the state, build the first batch."""
    import shardmill as sm

    def loader() -> Any:
        return sm.loader(
            f"{folder}/packs.plan", f"{folder}/tokens", collate="torch", batch_size=BATCH
        )

    state = {**loader().state_dict(), "consumed": num_packs // 2}

    def work() -> int:
        resumed = loader()
        resumed.load_state_dict(state)
        next(iter(resumed))
        return 1

    return work


class _Numbers:
    """A data set of numbers, for peers that need only a length."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, number: int) -> int:
        return number


def torchdata(folder: str, num_packs: int) -> Work:
    """torchdata's StatefulDataLoader with its random sampler; the state is made by itself."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    def loader() -> StatefulDataLoader:
        return StatefulDataLoader(_Numbers(num_packs), batch_size=BATCH, shuffle=True)

    first = loader()
    for _, _ in zip(range(num_packs // 2 // BATCH), first):
        pass
    state = first.state_dict()

    def work() -> int:
        resumed = loader()
        resumed.load_state_dict(state)
        next(iter(resumed))
        return 1

    return work


def accelerate(folder: str, num_packs: int) -> Work:
    """A DataLoader with DistributedSampler and accelerate.skip_first_batches."""
    from accelerate import skip_first_batches
    from torch.utils.data import DataLoader
    from torch.utils.data.distributed import DistributedSampler

    def work() -> int:
        data = _Numbers(num_packs)
        sampler = DistributedSampler(data, num_replicas=1, rank=0, shuffle=True)
        loader = DataLoader(data, BATCH, sampler=sampler)
        next(iter(skip_first_batches(loader, num_packs // 2 // BATCH)))
        return 1

    return work


def private_megabytes(folder: str) -> float:
    """Return what a process wrote for itself while it served 200 packs; mapped pages are shared."""
    import shardmill as sm

    open_data = sm.PackedDataset  # imports torch, which is not counted
    before = _private()
    packs = open_data(f"{folder}/packs.plan", f"{folder}/tokens")
    for _, (number,) in zip(range(200), packs.sampler()):
        packs[number]
    return _private() - before


def _private() -> float:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty")) / 1000


if __name__ == "__main__":
    num, rounds = sized(10_000_000, 10_000), sized(3, 1)
    contest = Contest(f"The first batch after half an epoch of {num:,} packs", unit="resume")
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as name:
        make_plan(Path(name), num, 10)
        for title, function in (
            ("shardmill", "shardmill"),
            ("torchdata StatefulDataLoader", "torchdata"),
            ("accelerate skip_first_batches", "accelerate"),
        ):
            contest.add(title, __file__, function, folder=name, num_packs=num)
        contest.run(rounds)
        memory = private_megabytes(name)
    text = (
        f"A process that serves packs of {10 * num:,} samples has {memory:.0f} MB for itself on "
        "top of what Python and torch take; the plan is shared."
    )
    save_report(__file__, "Resume", [contest.table(than="shardmill"), text])
