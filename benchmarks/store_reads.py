"""Token packs read from an S3 store, against the plain client: python benchmarks/store_reads.py

Four token shards of 32 MiB in a SeaweedFS on this machine. The plain client (obstore) gets each
`.bin` object whole, one after the other; shardmill reads the packs of 8,192 tokens in them by
ranges. Goal: at least 80 % of the plain client's throughput for packs in order, as packs on disk
are read. For comparison, packs at random: through `sm.loader`, which knows the order and reads
ahead, and one by one, each with a request of its own.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from made_data import SUPPORT_DIR, write_tokens
from side_by_side import Contest, Work, save_report, sized

sys.path.insert(0, str(SUPPORT_DIR))
from servers import ACCESS_KEY, SECRET_KEY, s3_server

LENGTH, ROWS, NUM_SHARDS = 8192, sized(1024, 64), 4
VOCABULARY = 150_000
BUCKET, URL = "packs", "s3://packs/tokens"


def plain_client() -> Work:
    """Each object whole, one after the other."""
    store = _store()
    paths = [f"tokens/shards/{number:05d}.bin" for number in range(NUM_SHARDS)]

    def work() -> int:
        num_bytes = sum(len(store.get(path).bytes()) for path in paths)
        return num_bytes >> 20

    return work


def _store() -> Any:
    from obstore.store import S3Store

    options = {"allow_http": True}
    return S3Store(BUCKET, endpoint=os.environ["AWS_ENDPOINT_URL"], client_options=options)


def in_order() -> Work:
    """One row after the other."""
    return _reading(list(range(ROWS * NUM_SHARDS)))


def at_random(num: int) -> Work:
    """Rows anywhere, one request each."""
    return _reading(np.random.default_rng(7).permutation(ROWS * NUM_SHARDS)[:num].tolist())


def _reading(order: list[int]) -> Work:
    import shardmill as sm

    open_rows = sm.RowDataset  # imports torch, which is not timed

    def work() -> int:
        rows = open_rows(URL)  # nothing is left over from the round before
        for number in order:
            assert len(rows[number]) == LENGTH
        return len(order) * LENGTH * 4 >> 20

    return work


def loader(plan: str, num: int) -> Work:
    """The first batches of an epoch, in the order of the plan."""
    import shardmill as sm

    load = sm.loader  # imports torch, which is not timed

    def work() -> int:
        batches = load(plan, URL)
        assert all(batch["input_ids"].numel() == LENGTH for _, batch in zip(range(num), batches))
        return num * LENGTH * 4 >> 20

    return work


def make_tokens(folder: Path) -> Path:
    """Put token shards into the store, and return the plan of packs of one row each."""
    import shardmill as sm

    rng = np.random.default_rng(1)

    def row(shard: int, number: int) -> dict[str, Any]:
        ids = rng.integers(0, VOCABULARY, LENGTH, np.int32)
        return {"key": f"{shard:05d}-{number:05d}", "ids": ids}

    shards = [[row(shard, number) for number in range(ROWS)] for shard in range(NUM_SHARDS)]
    tokens = write_tokens(folder / "tokens", shards, text_size=VOCABULARY)
    store = _store()
    for path in tokens.rglob("*"):
        if path.is_file():
            store.put(f"tokens/{path.relative_to(tokens)}", path)
    return sm.plan(tokens, folder / "packs.plan", capacity=LENGTH).path


def main() -> None:
    """Run the contest and write the table."""
    with tempfile.TemporaryDirectory() as folder, s3_server(Path(folder), "packs") as endpoint:
        os.environ |= {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": "us-east-1",
            "SHARDMILL_SCRATCH": f"{folder}/scratch",
        }
        plan = str(make_tokens(Path(folder)))
        contest = Contest("Packs of 8,192 tokens from an S3 store", unit="MiB")
        contest.add("obstore, objects whole", __file__, "plain_client")
        contest.add("shardmill, packs in order", __file__, "in_order")
        name = "shardmill, the loader's shuffled packs"
        contest.add(name, __file__, "loader", plan=plan, num=sized(1024, 64))
        contest.add("shardmill, packs at random", __file__, "at_random", num=sized(256, 64))
        contest.run(sized(7, 1))
    plain, ours = contest.contestants[0].wall_us, contest.contestants[1].wall_us
    verdict = (
        f"Packs in order reach **{plain / ours:.0%}** of the plain client's throughput (wall time, "
        "best rounds; server, client and reader share the machine's CPUs)."
    )
    table = contest.table(than="obstore, objects whole")
    save_report(__file__, "Token packs from an S3 store", [table, verdict])


if __name__ == "__main__":
    main()
