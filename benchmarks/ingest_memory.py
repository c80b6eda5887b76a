"""Peak memory of an ingest of 10,000 and of 100,000 rows with small images: it must not grow.

Each size runs in a process of its own that plans and works, and reports the largest resident set
it ever had (VmHWM; `ru_maxrss` would include what the process that started it had). The rows name
2,000 different JPEGs of about 4 KB.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from side_by_side import save_report, sized

NUM_IMAGES = sized(2000, 50)
FORMATS = ("rows.jsonl", "rows.json", "rows.jsonl.zst", "rows.parquet")


def write_images(folder: Path) -> None:
    """Write photographs in miniature: smooth colours with some noise."""
    from PIL import Image

    random = np.random.default_rng(0)
    for number in range(NUM_IMAGES):
        small = Image.fromarray(random.integers(0, 255, (6, 8, 3), dtype=np.uint8))
        pixels = np.asarray(small.resize((128, 96), Image.Resampling.BICUBIC)).astype(np.int16)
        noisy = np.clip(pixels + random.integers(-12, 12, pixels.shape), 0, 255).astype(np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(noisy).save(buffer, "JPEG", quality=75)
        (folder / f"{number}.jpg").write_bytes(buffer.getvalue())


def write_table(path: Path, num_rows: int) -> None:
    """Write the rows in the format that the name says."""
    rows = [
        {"image": f"{n % NUM_IMAGES}.jpg", "caption": f"image number {n} of many", "score": n}
        for n in range(num_rows)
    ]
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    if path.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=5000)
    elif path.suffix == ".zst":
        import zstandard

        path.write_bytes(zstandard.compress(lines))
    else:
        path.write_bytes(json.dumps(rows).encode() if path.suffix == ".json" else lines)


def ingest(table: Path, out: Path) -> None:
    """Ingest a table in this process; print rows, seconds and the peak in megabytes."""
    import shardmill as sm

    start = time.perf_counter()
    made = sm.ingest(table, out, workers=0)
    seconds = time.perf_counter() - start
    print(json.dumps([made.counts.num_kept, seconds, peak_mb()]))


def peak_mb() -> float:
    """Return the largest resident set of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def section(folder: Path, sizes: tuple[int, int]) -> str:
    """Run all formats in both sizes and return the table."""
    lines = [
        "| table | rows | rows/s | peak | grows by |",
        "|---|---|---|---|---|",
    ]
    for name in FORMATS:
        before = None
        for num_rows in sizes:
            write_table(folder / name, num_rows)
            with tempfile.TemporaryDirectory(dir=folder) as out:
                command = [sys.executable, __file__, "ingest", str(folder / name), f"{out}/out"]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
            count, seconds, peak = json.loads(done.stdout.splitlines()[-1])
            assert count == num_rows
            growth = "" if before is None else f"{peak - before:+.1f} MB"
            before = peak
            lines.append(
                f"| {name} | {num_rows:,} | {num_rows / seconds:,.0f} | {peak:.1f} MB | {growth} |"
            )
    return "\n".join(lines)


def main() -> None:
    """Make the images, run all sizes, save the report."""
    sizes = sized(10_000, 100), sized(100_000, 1_000)
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as folder:
        write_images(Path(folder))
        save_report(__file__, "Memory of an ingest", [section(Path(folder), sizes)])


if __name__ == "__main__":
    if sys.argv[1:2] == ["ingest"]:
        ingest(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        main()
