"""Merging the parts of a UniDisc-style tokenization, and what it takes in memory.

Eight parts of padded rows, a quarter of which two parts share, and the leftovers of a stopped rank.
The peer does what UniDisc's merge does: every part is loaded, all are joined, rows that were not
written are taken out by a mask, ids become int32 and are looked at (not with --mem_efficient), rows
are made unique, and the rest is written as one memory map of int16 (that the wrong rows are kept
after `unique` is mended here).
shardmill adopts the parts as token shards: padding goes, codes are shifted, spans and keys are
written, each part by itself. The goals are 5 times the speed and a tenth of the memory.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
from side_by_side import Contest, save_report

NUM_PARTS, ROWS_A_PART, LENGTH, FILLED = 8, 4000, 3072, 0.6
SHARED = ROWS_A_PART // 4
COLUMNS = {
    "input_ids": ("int16", LENGTH),
    "attention_mask": ("bool", LENGTH),
    "modality": ("int8", LENGTH),
    "idx": ("int32", 1),
    "write_flag": ("bool", 1),
}


def shardmill(folder: str) -> Callable[[], int]:
    """Adopt the parts as token shards."""
    from shardmill.run.runner import run_stage
    from shardmill.stages.tokenrecipe import stage_of

    def work() -> int:
        out = Path(folder) / "ours"
        shutil.rmtree(out, ignore_errors=True)
        report = run_stage(stage_of({"from": "unidisc"}, [f"{folder}/parts"]), out, workers=0)
        assert report.manifest is not None, report.failures
        return report.manifest.num_samples

    return work


def join_in_memory(folder: str, saving: bool = False) -> Callable[[], int]:
    """Join all parts with torch, as UniDisc does; `saving` is its --mem_efficient."""
    import torch
    from tensordict import TensorDict

    def work() -> int:
        out = Path(folder) / "theirs"
        shutil.rmtree(out, ignore_errors=True)
        parts = sorted(
            (Path(folder) / "parts").iterdir(), key=lambda path: (path.name[:3] == "tmp", path)
        )
        loaded = [TensorDict.load_memmap(path) for path in parts]
        joined = torch.cat(loaded, dim=0)
        joined = joined[(joined["idx"] >= 0).reshape(-1)]
        if not saving:
            joined["input_ids"] = joined["input_ids"].to(torch.int32)
            assert bool((joined["input_ids"] >= 0).all())
        ids = joined["idx"].reshape(-1).numpy()
        _, first = np.unique(ids, return_index=True)
        joined = joined[torch.from_numpy(np.sort(first))]
        assert int(joined["input_ids"].max()) < 32767
        joined["input_ids"] = joined["input_ids"].to(torch.int16)
        del joined["write_flag"]
        joined.memmap(out)
        return len(joined)

    return work


def write_parts(folder: Path, rows: int) -> int:
    """Write the parts and return how many samples they hold."""
    step = rows - SHARED * rows // ROWS_A_PART
    for number in range(NUM_PARTS + 1):
        is_left = number == NUM_PARTS
        name = "tmp_train_0" if is_left else f"train_{number}"
        first = 0 if is_left else number * step
        write_part(folder / name, np.arange(first, first + rows), num_unwritten=rows // 10)
    return NUM_PARTS * step + rows - step


def write_part(folder: Path, ids: np.ndarray, num_unwritten: int) -> None:
    """Write one part as TensorDict does; a sample's tokens depend on its id alone."""
    folder.mkdir(parents=True)
    count = len(ids) + num_unwritten
    lengths = np.zeros(count, np.int64)
    lengths[: len(ids)] = LENGTH * FILLED + (ids * 7919) % (LENGTH // 4)
    places = np.arange(LENGTH)
    mask = places < lengths[:, None]
    codes = (places >= 64) & (places < 64 + 1024) & mask
    tokens = (np.resize(ids, count)[:, None] * 31 + places) % 16384
    values = {
        "input_ids": np.where(mask, tokens, 0),
        "attention_mask": mask,
        "modality": codes,
        "idx": np.concatenate([ids, np.full(num_unwritten, -1)])[:, None],
        "write_flag": (np.arange(count) < len(ids))[:, None],
    }
    meta: dict[str, object] = {"shape": [count], "device": "cpu"}
    meta["_type"] = "<class 'tensordict._td.TensorDict'>"
    for name, (dtype, width) in COLUMNS.items():
        values[name].astype(dtype).tofile(folder / f"{name}.memmap")
        entry = {"device": "cpu", "shape": [count, width], "dtype": f"torch.{dtype}"}
        meta[name] = {**entry, "is_nested": False}
    (folder / "meta.json").write_text(json.dumps(meta))


def peak_bytes(call: str, folder: str) -> int:
    """Return the memory that a run takes beyond its imports, in a process of its own."""
    code = f"from merge_parts import *; F = {folder!r}; print(watch({call}))"
    command = [sys.executable, "-c", code]
    here = Path(__file__).resolve().parent
    ran = subprocess.run(command, cwd=here, capture_output=True, text=True, check=True)
    return int(ran.stdout.split()[-1])


def watch(work: Callable[[], int]) -> int:
    """Return the peak of memory that belongs to no file while the work runs, less that before."""
    before, peak, done = anonymous_bytes(), 0, threading.Event()

    def look() -> None:
        nonlocal peak
        while not done.wait(0.005):
            peak = max(peak, anonymous_bytes())

    watcher = threading.Thread(target=look)
    watcher.start()
    work()
    done.set()
    watcher.join()
    return max(0, peak - before)


def anonymous_bytes() -> int:
    """Return the memory of this process that is not a mapped file."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def main() -> None:
    """Compare and write the report."""
    with tempfile.TemporaryDirectory(dir=Path(__file__).resolve().parents[1] / ".cache") as name:
        num_samples = write_parts(Path(name) / "parts", ROWS_A_PART)
        contest = Contest("Merging parts", unit="sample")
        contest.add("shardmill", __file__, "shardmill", folder=name)
        contest.add("all in memory", __file__, "join_in_memory", note="UniDisc's way", folder=name)
        contest.add(
            "all in memory, saving",
            __file__,
            "join_in_memory",
            note="with --mem_efficient",
            folder=name,
            saving=True,
        )
        contest.run(rounds=5)
        assert all(c.num_items == num_samples for c in contest.contestants)
        calls = {
            "shardmill": "shardmill(F)",
            "all in memory": "join_in_memory(F)",
            "all in memory, saving": "join_in_memory(F, True)",
        }
        peaks = {title: peak_bytes(call, name) for title, call in calls.items()}
    whole = peaks["all in memory, saving"]
    lines = [
        "| | peak of memory | share |",
        "|---|---:|---:|",
        *(f"| {n} | {p / 1e6:,.0f} MB | {p / whole:.3f} |" for n, p in peaks.items()),
    ]
    amount = (
        f"{num_samples:,} samples in {NUM_PARTS + 1} parts of {ROWS_A_PART:,} rows of {LENGTH:,}."
    )
    sections = [__doc__.partition("\n\n")[2], amount, contest.table(than="shardmill")]
    save_report(__file__, "Merging parts", [*sections, "\n".join(lines)])


if __name__ == "__main__":
    main()
