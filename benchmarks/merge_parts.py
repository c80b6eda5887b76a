"""Merging the parts of a UniDisc-style tokenization, and what it takes in memory.

Sixteen parts of padded rows, a quarter of which two share, and the leftovers of a stopped rank.
The peer does what UniDisc's merge does: every part is loaded, all are joined, rows that were not
written are taken out by a mask, ids become int32 and are looked at (not with --mem_efficient), rows
are made unique, and the rest is written as one memory map of int16 (that the wrong rows are kept
after `unique` is repaired here).
shardmill adopts the parts as token shards: padding goes, codes are shifted, spans and keys are
written, each part by itself, in one process, or as the command runs, in one for each processor,
whose start counts. shardmill syncs what it writes, the peer does not, and joins with as many
threads as there are processors. The goals are 5 times the speed and a tenth of the memory.

The second table is of parts of pairs (a padded text and an image), the third of full rows of text
that no two parts share: those are linked, and no id is copied.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import TypeAlias

import numpy as np
from side_by_side import Contest, save_report, sized

NUM_PARTS, LENGTH, FILLED = 16, 3072, 0.6
TEXT_LENGTH, NUM_CODES = 128, 1024
ROUNDS = sized(3, 1)
ROWS_A_PART = {"rows": sized(4_000, 80), "pairs": sized(24_000, 80), "full": sized(4_000, 80)}
Contestant: TypeAlias = tuple[Callable[[], int], Callable[[], None]]  # the work, and tidying up


def shardmill(folder: str, workers: int | None = 0) -> Contestant:
    """Adopt the parts as token shards, in this process or with workers."""
    import shardmill as sm

    out = Path(folder) / "ours"

    def work() -> int:
        return len(sm.tokenize(f"{folder}/parts", out, from_="unidisc", workers=workers))

    return work, lambda: shutil.rmtree(out)


def join_in_memory(folder: str, saving: bool = False) -> Contestant:
    """Join all parts with torch, as UniDisc does; `saving` is its --mem_efficient."""
    import torch
    from tensordict import TensorDict

    out = Path(folder) / "theirs"

    def work() -> int:
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
        if "input_ids" in set(joined.keys()):
            assert int(joined["input_ids"].max()) < 32767
            joined["input_ids"] = joined["input_ids"].to(torch.int16)
        del joined["write_flag"]
        joined.memmap(out)
        return len(joined)

    return work, lambda: shutil.rmtree(out)


def write_parts(folder: Path, rows: int, kind: str = "rows") -> int:
    """Write the parts and return how many samples they hold; those of full rows do not overlap."""
    is_full = kind == "full"
    step = rows if is_full else rows - rows // 4
    for number in range(NUM_PARTS):
        ids = np.arange(number * step, number * step + rows)
        write_part(folder / f"train_{number}", ids, 0 if is_full else rows // 10, kind)
    if not is_full:
        write_part(folder / "tmp_train_0", np.arange(rows), rows // 10, kind)
    return NUM_PARTS * step + rows - step


def write_part(folder: Path, ids: np.ndarray, num_unwritten: int, kind: str) -> None:
    """Write one part as TensorDict does; a sample's tokens depend on its id alone."""
    folder.mkdir(parents=True)
    count = len(ids) + num_unwritten
    values = COLUMNS[kind](np.resize(ids, count), np.arange(count) < len(ids))
    values["idx"] = np.concatenate([ids, np.full(num_unwritten, -1)])[:, None].astype("int32")
    values["write_flag"] = (np.arange(count) < len(ids))[:, None]
    meta: dict[str, object] = {"shape": [count], "device": "cpu"}
    meta["_type"] = "<class 'tensordict._td.TensorDict'>"
    for name, column in values.items():
        column.tofile(folder / f"{name}.memmap")
        entry = {"device": "cpu", "shape": list(column.shape), "dtype": f"torch.{column.dtype}"}
        meta[name] = {**entry, "is_nested": False}
    (folder / "meta.json").write_text(json.dumps(meta))


def padded_rows(ids: np.ndarray, is_written: np.ndarray) -> dict[str, np.ndarray]:
    """Return rows of text with an image in it, 60 to 85 % full."""
    lengths = (LENGTH * FILLED + (ids * 7919) % (LENGTH // 4)) * is_written
    places = np.arange(LENGTH)
    mask = places < lengths[:, None]
    codes = (places >= 64) & (places < 64 + NUM_CODES) & mask
    tokens = (ids[:, None] * 31 + places) % 16384
    return {
        "input_ids": np.where(mask, tokens, 0).astype("int16"),
        "attention_mask": mask,
        "modality": codes.astype("int8"),
    }


def padded_pairs(ids: np.ndarray, is_written: np.ndarray) -> dict[str, np.ndarray]:
    """Return texts of up to 128 tokens and the codes of an image."""
    lengths = (16 + (ids * 7919) % (TEXT_LENGTH - 16)) * is_written
    mask = np.arange(TEXT_LENGTH) < lengths[:, None]
    tokens = (ids[:, None] * 31 + np.arange(TEXT_LENGTH)) % 32000
    return {
        "txt_input_ids": np.where(mask, tokens, 0).astype("int32"),
        "txt_attention_mask": mask,
        "img_input_ids": ((ids[:, None] * 31 + np.arange(NUM_CODES)) % 16384).astype("int16"),
    }


def full_rows(ids: np.ndarray, is_written: np.ndarray) -> dict[str, np.ndarray]:
    """Return rows of text without padding."""
    shape = (len(ids), LENGTH)
    return {
        "input_ids": ((ids[:, None] * 31 + np.arange(LENGTH)) % 32000).astype("int16"),
        "attention_mask": np.ones(shape, "bool"),
        "modality": np.zeros(shape, "int8"),
    }


COLUMNS = {"rows": padded_rows, "pairs": padded_pairs, "full": full_rows}


def peak_bytes(call: str, folder: str) -> int:
    """Return the memory that a run takes beyond its imports, in a process of its own."""
    code = f"from merge_parts import *; F = {folder!r}; print(watch(*{call}))"
    command = [sys.executable, "-c", code]
    here = Path(__file__).resolve().parent
    ran = subprocess.run(command, cwd=here, capture_output=True, text=True, check=True)
    return int(ran.stdout.split()[-1])


def watch(work: Callable[[], int], tidy: Callable[[], None]) -> int:
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
    tidy()
    return max(0, peak - before)


def anonymous_bytes() -> int:
    """Return the memory of this process that is not a mapped file."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def merge(kind: str) -> tuple[str, str]:
    """Let all merge parts of a kind; returns the tables of time and of memory."""
    with tempfile.TemporaryDirectory(dir=Path(__file__).resolve().parents[1] / ".cache") as name:
        num_samples = write_parts(Path(name) / "parts", ROWS_A_PART[kind], kind)
        contest = Contest(f"Merging {kind}", unit="sample")
        contest.add("shardmill", __file__, "shardmill", folder=name)
        contest.add("shardmill, as it runs", __file__, "shardmill", folder=name, workers=None)
        ways = {"all in memory, saving": True, "all in memory": False}
        notes = {True: "with --mem_efficient", False: "UniDisc's way"}
        for title, saving in ways.items():
            if saving or kind == "rows":
                arguments = {"folder": name, "saving": saving}
                contest.add(title, __file__, "join_in_memory", note=notes[saving], **arguments)
        contest.run(rounds=ROUNDS)
        assert all(c.num_items == num_samples for c in contest.contestants)
        calls = {"shardmill": "shardmill(F)"}
        calls |= {
            title: f"join_in_memory(F, {saving})"
            for title, saving in ways.items()
            if saving or kind == "rows"
        }
        peaks = {title: peak_bytes(call, name) for title, call in calls.items()}
    whole = peaks["all in memory, saving"]
    lines = [
        "| | peak of memory | share |",
        "|---|---:|---:|",
        *(f"| {n} | {p / 1e6:,.0f} MB | {p / whole:.3f} |" for n, p in peaks.items()),
    ]
    title = (
        f"**{kind.capitalize()}**: {num_samples:,} samples in parts of {ROWS_A_PART[kind]:,} rows."
    )
    return f"{title}\n\n{contest.table(than='shardmill')}", "\n".join(lines)


def main() -> None:
    """Compare and write the report."""
    tables = (table for kind in ROWS_A_PART for table in merge(kind))
    save_report(__file__, "Merging parts", chain([__doc__.partition("\n\n")[2]], tables))


if __name__ == "__main__":
    main()
