"""Token packs read from an S3 store, against the plain client: python benchmarks/store_reads.py

Four token shards of 32 MiB in a SeaweedFS on this machine. The plain client (obstore) gets each
`.bin` object whole, one after the other; shardmill reads the packs of 8,192 tokens in them by
ranges, as tensors of their own. Goal: at least 80 % of the plain client's throughput. The packs are
read in order (as packs on disk are trained on) and, for comparison, at random.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from side_by_side import Contest, Work, save_report

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))
from servers import ACCESS_KEY, SECRET_KEY, s3_server

LENGTH, ROWS, NUM_SHARDS = 8192, 1024, 4
VOCABULARY = 150_000
URL = "s3://packs/tokens"


def plain_client() -> Work:
    """Each object whole, one after the other."""
    import obstore

    from shardmill.storage.objects import find_object

    found = [find_object(f"{URL}/shards/{number:05d}.bin") for number in range(NUM_SHARDS)]

    def work() -> int:
        num_bytes = sum(len(obstore.get(each.client, each.path).bytes()) for each in found)
        return num_bytes >> 20

    return work


def in_order() -> Work:
    """RowDataset, one row after the other."""
    return _reading(range(ROWS * NUM_SHARDS))


def at_random(num: int) -> Work:
    """RowDataset, rows anywhere, one request each."""
    return _reading(np.random.default_rng(7).permutation(ROWS * NUM_SHARDS)[:num].tolist())


def announced(num: int) -> Work:
    """Rows anywhere, 32 announced at a time, as the documents of a pack are."""
    order = np.random.default_rng(7).permutation(ROWS * NUM_SHARDS)[:num].tolist()

    def work() -> int:
        rows = _rows()
        for first in range(0, num, 32):
            some = order[first : first + 32]
            rows.tokens.prefetch(some)
            for number in some:
                assert len(rows[number]) == LENGTH
        return num * LENGTH * 4 >> 20

    return work


def _reading(numbers: Iterable[int]) -> Work:
    order = list(numbers)
    _rows()[0]

    def work() -> int:
        rows = _rows()  # nothing is left over from the round before
        for number in order:
            assert len(rows[number]) == LENGTH
        return len(order) * LENGTH * 4 >> 20

    return work


def _rows() -> Any:
    from shardmill.train.dataset import RowDataset

    return RowDataset(URL)


def make_tokens(folder: Path) -> None:
    """Put the token shards into the store."""
    from shardmill.model.manifest import FileEntry, Manifest, ShardEntry
    from shardmill.model.space import TokenSpace
    from shardmill.model.tokenrow import TokenRow
    from shardmill.shards.ledger import Ledger
    from shardmill.shards.tokens.shard import ROLES
    from shardmill.shards.tokens.write import TokenWriter
    from shardmill.storage.objects import put_file
    from shardmill.storage.path import as_path

    shards, rng = [], np.random.default_rng(1)
    for number in range(NUM_SHARDS):
        files = {role: folder / f"{number:05d}.{role}" for role in ROLES}
        with TokenWriter(files.__getitem__, TokenSpace(text_size=VOCABULARY)) as writer:
            for row in range(ROWS):
                ids = rng.integers(0, VOCABULARY, LENGTH, np.int32)
                writer.append(TokenRow(key=f"{number:05d}-{row:05d}", ids=ids))
        entries = {}
        for role, path in files.items():
            put_file(f"{URL}/shards/{path.name}", path)
            entries[role] = FileEntry(f"shards/{path.name}", path.stat().st_size, "")
        shards.append(ShardEntry(f"{number:05d}", ROWS, entries))
    num = ROWS * NUM_SHARDS
    books = {"num_in": num, "num_kept": num, "skipped": {}, "stats": {}}
    manifest = Manifest(
        content="tokens", stage={}, stage_digest="", units_digest="", shards=tuple(shards), **books
    )
    Ledger(as_path(URL)).write_manifest(manifest)


def main(rounds: int = 7) -> None:
    """Run the contest and write the table."""
    with tempfile.TemporaryDirectory() as folder, s3_server(Path(folder), "packs") as endpoint:
        os.environ |= {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": "us-east-1",
            "SHARDMILL_SCRATCH": f"{folder}/scratch",
        }
        make_tokens(Path(folder))
        contest = Contest("Packs of 8,192 tokens from an S3 store", unit="MiB")
        contest.add("obstore, objects whole", __file__, "plain_client")
        contest.add("shardmill, packs in order", __file__, "in_order")
        contest.add("shardmill, packs at random, announced", __file__, "announced", num=1024)
        contest.add("shardmill, packs at random", __file__, "at_random", num=256)
        contest.run(rounds)
    plain, ours = contest.contestants[0].wall_us, contest.contestants[1].wall_us
    verdict = (
        f"Packs in order reach **{plain / ours:.0%}** of the plain client's throughput (wall time, "
        "best rounds; server, client and reader share the machine's CPUs)."
    )
    table = contest.table(than="obstore, objects whole")
    save_report(__file__, "Token packs from an S3 store", [table, verdict])


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 7)
