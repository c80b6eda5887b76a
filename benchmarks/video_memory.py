"""Peak memory of taking frames from a minute and from two hours of 720p: it must not grow.

Goal: at most 200 MB more for two hours. Each runs in a process of its own, which reports the
largest resident set it ever had (VmHWM, with the parts of files that it mapped), how much of it was
its own (RssAnon, looked at a hundred times a second), and how long it took.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from made_data import long_clip
from side_by_side import save_report, sized

MINUTES = (1, sized(120, 2))
GOAL_MB = 200
SAMPLERS = (
    {"kind": "uniform", "count": 16},
    {"kind": "keyframes"},
    {"kind": "nearest", "count": 16},
    {"kind": "fps", "fps": 2.0, "max_frames": 64},
    {"kind": "whole"},
)


def store(clip: Path, folder: Path) -> None:
    """Write a folder of one shard that holds the clip."""
    import shardmill as sm

    table = clip.with_suffix(".jsonl")
    table.write_text(json.dumps({"video": clip.name, "caption": "a caption"}) + "\n")
    sm.ingest(table, folder, workers=0, max_skip_rate=0)


def take(folder: Path, sampler: dict, out: Path) -> None:
    """Take frames in this process; print seconds and peaks in megabytes."""
    import shardmill as sm

    own = [0]

    def watch() -> None:
        while True:
            own[0] = max(own[0], status("RssAnon"))
            time.sleep(0.01)

    threading.Thread(target=watch, daemon=True).start()
    start = time.process_time()
    sm.frames(folder, out, sampler=sampler, workers=0, max_skip_rate=0)
    cpu_s = time.process_time() - start
    print(json.dumps({"cpu_s": cpu_s, "peak_kb": status("VmHWM"), "own_kb": own[0]}))


def status(name: str) -> int:
    """Return a line of this process's status, in kilobytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1])
    raise KeyError(name)


def measured(folder: Path, sampler: dict, out: Path) -> dict:
    """Run `take` in a process of its own."""
    words = [sys.executable, __file__, str(folder), json.dumps(sampler), str(out)]
    return json.loads(subprocess.run(words, check=True, capture_output=True).stdout)


def section() -> str:
    """Return the table."""
    lines = [
        "| frames | video | CPU s | own memory, MB | with mapped files, MB |",
        "|---|---|---:|---:|---:|",
    ]
    worst = 0.0
    with tempfile.TemporaryDirectory(dir=long_clip(1).parent) as name:
        base = Path(name)
        for minutes in MINUTES:
            store(long_clip(minutes), base / f"in-{minutes}")
        for sampler in SAMPLERS:
            own = []
            for minutes in MINUTES:
                out = base / f"{sampler['kind']}-{minutes}"
                found = measured(base / f"in-{minutes}", sampler, out)
                own.append(found["own_kb"] / 1000)
                lines.append(
                    f"| {sampler['kind']} | {minutes} min | {found['cpu_s']:.1f} | {own[-1]:.0f} "
                    f"| {found['peak_kb'] / 1000:.0f} |"
                )
                print(lines[-1], file=sys.stderr)
            worst = max(worst, own[1] - own[0])
    verdict = "met" if worst <= GOAL_MB else "missed"
    size = long_clip(MINUTES[1]).stat().st_size / 1e6
    lines.append(
        f"\n{MINUTES[1]} minutes are {size:,.0f} MB. They need at most {worst:.0f} MB more than "
        f"one minute (goal: {GOAL_MB}, {verdict}). A whole video goes from tar to tar through "
        "mapped pages of the page cache, which are not the process's own."
    )
    return "\n".join(lines)


if __name__ == "__main__":
    if len(sys.argv) == 4:
        take(Path(sys.argv[1]), json.loads(sys.argv[2]), Path(sys.argv[3]))
    else:
        save_report(__file__, "Memory of taking frames", [section()])
