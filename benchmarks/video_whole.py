"""Packing whole videos: python benchmarks/video_whole.py

Goal: 80 % of the speed of copying the bytes. The bytes of 40 clips of a minute are copied to one
file and synced, as a shard is before its receipt; an ingest also reads headers, hashes contents,
writes index and receipt, and checks what it wrote.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path

from made_data import minute_clip
from side_by_side import Contest, Work, save_report, sized

NUM_CLIPS = sized(40, 2)
MEGABYTE = 1 << 20


def make_clips(folder: Path) -> Path:
    """Write clips that differ in their last bytes, and the table of them; returns the table."""
    content = minute_clip().read_bytes()
    rows = []
    for number in range(NUM_CLIPS):
        path = folder / f"{number:03d}.mp4"
        # A box of kind "free" at the end: other bytes, the same video.
        path.write_bytes(content + (16).to_bytes(4, "big") + b"free" + number.to_bytes(8, "big"))
        rows.append(json.dumps({"video": path.name, "caption": f"clip {number}"}))
    table = folder / "clips.jsonl"
    table.write_text("\n".join(rows) + "\n")
    return table


def copy_bytes(table: str, out: str) -> Work:
    """Copy all clips to one file in pieces of a megabyte, and sync it."""
    paths = sorted(Path(table).parent.glob("*.mp4"))

    def work() -> int:
        with Path(out).open("wb", buffering=0) as target:
            for path in paths:
                with path.open("rb", buffering=0) as source:
                    shutil.copyfileobj(source, target, MEGABYTE)
            os.fsync(target.fileno())
        return sum(path.stat().st_size for path in paths) // MEGABYTE

    return work


def webdataset(table: str, out: str) -> Work:
    """Write the clips with their captions by webdataset, and sync the tar."""
    import webdataset as wds

    paths = sorted(Path(table).parent.glob("*.mp4"))

    def work() -> int:
        with wds.TarWriter(out) as writer:
            for number, path in enumerate(paths):
                words = {"caption": f"clip {number}"}
                writer.write({"__key__": path.stem, "json": words, "mp4": path.read_bytes()})
        descriptor = os.open(out, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
        return sum(path.stat().st_size for path in paths) // MEGABYTE

    return work


def ingest(table: str, out: str) -> Work:
    """Ingest the table."""
    import shardmill as sm

    def work() -> int:
        shutil.rmtree(out, ignore_errors=True)
        return sm.ingest(table, out, workers=0, max_skip_rate=0).manifest.num_bytes // MEGABYTE

    return work


def frames(table: str, out: str, check: bool) -> Work:
    """Pass shards of whole videos through the frames stage."""
    import shardmill as sm

    shards = sm.ingest(table, f"{out}-in", workers=0)
    sampler = {"kind": "whole", "check": check}

    def work() -> int:
        shutil.rmtree(out, ignore_errors=True)
        made = sm.frames(shards, out, sampler=sampler, workers=0, max_skip_rate=0)
        return made.manifest.num_bytes // MEGABYTE

    return work


def section(rounds: int) -> str:
    """Run the contest."""
    contest = Contest("Whole videos into shards", unit="MB")
    with tempfile.TemporaryDirectory(dir=minute_clip().parent) as name:
        base = Path(name)
        table = str(make_clips(base))
        copying = "copying the bytes"
        contest.add(copying, __file__, "copy_bytes", table=table, out=str(base / "copied"))
        contest.add("shardmill ingest", __file__, "ingest", table=table, out=str(base / "ingested"))
        for check in (False, True):
            words = "checked" if check else "unchecked"
            contest.add(
                f"shardmill frames, whole, {words}",
                __file__,
                "frames",
                table=table,
                out=str(base / f"whole-{check}"),
                check=check,
            )
        contest.add(
            "webdataset.TarWriter",
            __file__,
            "webdataset",
            peer="wids",
            table=table,
            out=str(base / "wds.tar"),
        )
        contest.run(rounds)
    best = {c.name: min(c.wall_s) for c in contest.contestants}
    shares = [f"{name}: {100 * best[copying] / best[name]:.0f} %" for name in best]
    words = "Speed by wall time against copying: " + ", ".join(shares) + "."
    return f"{contest.table(than=copying)}\n\n{words}"


if __name__ == "__main__":
    save_report(__file__, "Packing whole videos", [section(sized(5, 1))])
