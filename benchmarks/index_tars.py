"""Indexing tars that webdataset wrote: python benchmarks/index_tars.py

Goal, in one process: 10 times `widsindex create`, 20 times `energon prepare`; 100 times `widsindex`
on members of 1 MB, since only headers are read. `sm.index` also writes receipts, a manifest and the
index of wids.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
import tempfile
from pathlib import Path

from made_data import make_samples
from side_by_side import QUICK, Contest, Work, save_report


def make_tars(folder: Path, num: int, mean_bytes: int, per_shard: int) -> None:
    """Write the tars as webdataset does, with an extra header for each member."""
    import webdataset

    samples = make_samples(num, mean_bytes)
    for number in range(num // per_shard):
        with webdataset.TarWriter(str(folder / f"{number:05d}.tar"), encoder=False) as tar:
            for key, image, text in (next(samples) for _ in range(per_shard)):
                tar.write({"__key__": key, "jpg": image, "json": text})


def shardmill(folder: str, num: int) -> Work:
    """`sm.index` in this process, into a new folder each time."""
    import shardmill as sm

    out = Path(tempfile.mkdtemp(dir=folder))

    def work() -> int:
        shutil.rmtree(out, ignore_errors=True)
        return len(sm.index(f"{folder}/*.tar", out, workers=0))

    return work


def widsindex(folder: str, num: int) -> Work:
    """`widsindex create`, called in its process."""
    from wids import wids_index

    tars = sorted(map(str, Path(folder).glob("*.tar")))
    out = str(Path(tempfile.mkdtemp(dir=folder)) / "index.json")

    def work() -> int:
        Path(out).unlink(missing_ok=True)
        arguments = ["widsindex", "create", *tars, "--name", "x", "--output", out]
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            sys.argv = arguments
            wids_index.main()
        return num

    return work


def energon_prepare(folder: str, num: int) -> Work:
    """`energon prepare` with one worker, on links to the tars; its own processes count too."""
    from megatron.energon.tools.prepare import command

    links = Path(tempfile.mkdtemp(dir=folder))
    for tar in sorted(Path(folder).glob("*.tar")):
        (links / tar.name).symlink_to(tar)
    options = ["--non-interactive", "--no-progress", "--num-workers", "1", "--split-ratio", "1,0,0"]
    options += ["--skip-dataset-yaml", "--force-overwrite", str(links)]

    def work() -> int:
        shutil.rmtree(links / ".nv-meta", ignore_errors=True)
        for index in links.glob("*.idx"):
            index.unlink()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            command.main(options, standalone_mode=False)
        return num

    return work


def section(num: int, mean_bytes: int, per_shard: int, rounds: int) -> str:
    """Run one contest and return its table."""
    title = f"{num:,} samples of {mean_bytes / 1000:g} KB in {num // per_shard} tars"
    contest = Contest(title, unit="sample")
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as folder:
        make_tars(Path(folder), num, mean_bytes, per_shard)
        data = {"folder": folder, "num": num}
        contest.add("shardmill", __file__, "shardmill", **data)
        contest.add("widsindex create", __file__, "widsindex", peer="wids", **data)
        contest.add("energon prepare", __file__, "energon_prepare", **data)
        contest.run(rounds)
    return f"## {title}\n\n{contest.table(than='shardmill')}"


if __name__ == "__main__":
    full = [(20_000, 60_000, 1000, 5), (2_000, 1_000_000, 100, 3)]
    quick = [(200, 60_000, 100, 1), (20, 1_000_000, 10, 1)]
    sizes = quick if QUICK else full
    save_report(__file__, "Indexing tars", (section(*size) for size in sizes))
