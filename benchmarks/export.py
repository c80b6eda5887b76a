"""Each export against copying the very bytes that it writes, in one process each, durably.

Tokens: 8 shards with 16,000 rows each of 200 to 1,500 ids and an image of 256 codes. Pairs: 12
shards of 8,000 captions with 512-pixel codes (1,024 an image). The copy takes the files of a
finished export with `shutil.copyfile`, syncs each and its folder, as the export does. Peers write
the same rows; their time is given for each megabyte of ours, whatever the size of their files. Then
three times the shards, with as many workers as the command takes, against the same copy. Peak
memory is that of a process of its own, for the data as it is and for three times the shards.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from side_by_side import Contest, save_report

# name -> (input, format); a new format is a line here
EXPORTS: dict[str, tuple[str, dict[str, Any]]] = {
    "Megatron, a prefix a shard": ("tokens", {"kind": "megatron"}),
    "Megatron, one prefix": ("tokens", {"kind": "megatron", "prefix": "all"}),
    "Hugging Face Arrow": ("tokens", {"kind": "hf"}),
    "Hugging Face parquet": ("tokens", {"kind": "hf", "files": "parquet"}),
    "TensorDict, fixed length": ("tokens", {"kind": "tensordict", "length": 2048, "pad_id": 0}),
    "TensorDict, pairs": (
        "tokens",
        {
            "kind": "tensordict-pairs",
            "img_length": 256,
            "txt_length": 1500,
            "pad_id": 0,
        },
    ),
    "WebDataset, JSON": ("tokens", {"kind": "webdataset"}),
    "WebDataset, arrays": ("tokens", {"kind": "webdataset", "arrays": True}),
    "Energon": ("tokens", {"kind": "energon"}),
    "MDS": ("tokens", {"kind": "mds"}),
    "LitData": ("tokens", {"kind": "litdata", "unlearned": "learn"}),
    "Liquid, Arrow": ("pairs", {"kind": "liquid"}),
    "Liquid, jsonl": ("pairs", {"kind": "liquid", "files": "jsonl"}),
    "Liquid, jsonl of codes": ("pairs", {"kind": "liquid-pairs"}),
}
# name -> {what else writes the same rows: its function}
PEERS = {
    "Hugging Face parquet": {
        "pyarrow, of tables in memory": "pyarrow_parquet",
        "datasets, of Arrow files": "datasets_parquet",
    },
}
Contestant: TypeAlias = tuple[Callable[[], int], Callable[[], Any]]  # the work, and tidying up
ROUNDS = int(os.environ.get("BENCHMARK_ROUNDS", "5"))


def shardmill(folder: str, export: str, workers: int = 0) -> Contestant:
    """Export to a new folder each time, in this process or with workers."""
    out = Path(folder) / "out"
    return lambda: make(Path(folder), export, out, workers), lambda: shutil.rmtree(out)


def make(folder: Path, export: str, out: Path, workers: int = 0) -> int:
    """Export to a folder and return how many megabytes it has."""
    from shardmill.run.runner import run_stage

    report = run_stage(stage_of(folder, export), out, workers=workers)
    assert report.complete, report.failures
    return max(1, num_bytes(out) // 1_000_000)


def copy(folder: str, export: str) -> Contestant:
    """Copy the files of an export, each synced, and sync their folders."""
    source, out = Path(folder) / "made", Path(folder) / "copied"

    def work() -> int:
        (out / "shards").mkdir(parents=True)
        for path in data_files(source):
            target = out / path.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
            sync(target)
        sync(out)
        sync(out / "shards")
        return max(1, num_bytes(source) // 1_000_000)

    return work, lambda: shutil.rmtree(out)


def pyarrow_parquet(folder: str, export: str) -> Contestant:
    """Write tables that are ready in memory with pyarrow's own settings, each file synced."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    made, out = Path(folder) / "made", Path(folder) / "theirs"
    paths = sorted((Path(folder) / "arrow" / "shards").glob("*.arrow"))
    tables = [pa.ipc.open_stream(path.read_bytes()).read_all() for path in paths]

    def work() -> int:
        out.mkdir()
        for path, table in zip(paths, tables):
            parquet.write_table(table, out / f"{path.stem}.parquet")
            sync(out / f"{path.stem}.parquet")
        return max(1, num_bytes(made) // 1_000_000)

    return work, lambda: shutil.rmtree(out)


def datasets_parquet(folder: str, export: str) -> Contestant:
    """Let `datasets` write what `load_from_disk` opens, as one file."""
    import datasets

    datasets.disable_progress_bars()
    made, target = Path(folder) / "made", Path(folder) / "theirs.parquet"
    data = datasets.load_from_disk(str(Path(folder) / "arrow"))

    def work() -> int:
        data.to_parquet(target)
        sync(target)
        return max(1, num_bytes(made) // 1_000_000)

    return work, target.unlink


def sync(path: Path) -> None:
    """Return when a file or a folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def data_files(out: Path) -> Iterator[Path]:
    """Yield the files that a reader of the format reads."""
    private = {"receipts", "rejects", "failures", "events", "locks", ".draft"}
    for path in sorted(out.rglob("*")):
        if path.is_file() and path.relative_to(out).parts[0] not in private:
            yield path


def num_bytes(out: Path) -> int:
    """Return the bytes of all these files."""
    return sum(path.stat().st_size for path in data_files(out))


def stage_of(folder: Path, name: str) -> Any:
    """Return the export of the data in a folder."""
    from shardmill.model.codec import build
    from shardmill.plugins import FORMATS
    from shardmill.stages.export import Export

    kind, plain = EXPORTS[name]
    codes = folder / "codes" if kind == "pairs" else None
    return Export(input_dir=folder / kind, codes_dir=codes, format=build(FORMATS, plain))


def write_tokens(folder: Path, num_shards: int) -> None:
    """Write token shards with captions and codes."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))
    from token_folder import write_token_folder

    from shardmill.model.space import TokenSpace
    from shardmill.model.tokenrow import MediaSpan, TokenRow

    space = TokenSpace(text_size=32_000, added=("boi", "eoi"), num_codes=16_384)
    rng = np.random.default_rng(0)

    def row(number: int) -> TokenRow:
        ids = rng.integers(0, 32_000, int(rng.integers(200, 1500)))
        image = MediaSpan(name="jpg", kind="image", position=101, num_tokens=256, before=1, after=1)
        codes = rng.integers(space.code_offset, space.code_offset + 16_384, 256)
        ids = np.concatenate([ids[:100], [32_000], codes, [32_001], ids[100:]])
        loss = np.array([[len(ids) // 2, len(ids) - len(ids) // 2]])
        return TokenRow(key=f"cc12m-{number:08d}", ids=ids, loss=loss, media=(image,))

    shards = [[row(16_000 * s + n) for n in range(16_000)] for s in range(num_shards)]
    write_token_folder(folder / "tokens", shards, space)


def write_pairs(folder: Path, num_shards: int) -> None:
    """Write shards of pairs with a small image, and their codes."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))
    from coded_folder import make_pair, store_coded

    captions = [f"A photograph of thing number {n}, seen from the side. " * 3 for n in range(100)]
    samples = [
        make_pair(f"cc12m-{number:08d}", captions[number % 100], bytes(4000))
        for number in range(8000 * num_shards)
    ]
    store_coded(folder, samples, per_shard=8000)
    (folder / "samples").rename(folder / "pairs")


def section(name: str, folder: Path, workers: int = 0) -> tuple[str, float, float]:
    """Run one contest; return its table and the shares of the copy's speed, by wall and by CPU."""
    shutil.rmtree(folder / "made", ignore_errors=True)
    if name in PEERS and not workers and not (folder / "arrow").exists():
        make(folder, "Hugging Face Arrow", folder / "arrow")
    make(folder, name, folder / "made")
    contest = Contest(name, unit="MB")
    given = {"folder": str(folder), "export": name}
    contest.add("shardmill export", __file__, "shardmill", workers=workers, **given)
    contest.add("copying its bytes", __file__, "copy", **given)
    for peer, function in PEERS.get(name, {}).items() if not workers else ():
        contest.add(peer, __file__, function, **given)
    contest.run(ROUNDS)
    ours, theirs = contest.best("shardmill export"), contest.best("copying its bytes")
    table = contest.table(than="copying its bytes")
    return table, theirs.wall_us / ours.wall_us, theirs.cpu_us / ours.cpu_us


def peak_mb(folder: Path, name: str) -> float:
    """Return the largest anonymous memory of a process that exports."""
    command = [sys.executable, __file__, "peak", str(folder), name]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def print_peak(folder: Path, name: str) -> None:
    """Export in this process, and print its peak above what it had before, in megabytes."""
    import threading

    def resident() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))

    out, before, seen, over = folder / "out", resident(), [0], threading.Event()

    def watch() -> None:
        while not over.wait(0.002):
            seen[0] = max(seen[0], resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    make(folder, name, out)
    over.set()
    watcher.join()
    shutil.rmtree(out)
    print((max(seen[0], before) - before) / 1024)


def sections(folder: Path) -> Iterator[str]:
    """Yield the tables of speed, then that of memory."""
    summary = ["| export | of the copy's speed, wall | by CPU time |", "|---|---:|---:|"]
    for name in EXPORTS:
        table, wall, cpu = section(name, folder)
        summary.append(f"| {name} | {wall:.0%} | {cpu:.0%} |")
        yield f"## {name}\n\n{table}"
    yield "## Together\n\n" + "\n".join(summary)
    big = folder / "big"
    big.mkdir()
    write_tokens(big, 24)
    write_pairs(big, 36)
    workers = os.cpu_count() or 1
    lines = [
        f"As the command runs: {workers} workers, whose start counts; three times the shards.\n",
        "| export | of the copy's speed, wall |",
        "|---|---:|",
    ]
    lines += [f"| {name} | {section(name, big, workers)[1]:.0%} |" for name in EXPORTS]
    yield "## With workers\n\n" + "\n".join(lines)
    lines = [
        "| peak of anonymous memory, MB | as above | three times the shards |",
        "|---|---:|---:|",
    ]
    lines += [
        f"| {name} | {peak_mb(folder, name):.0f} | {peak_mb(big, name):.0f} |" for name in EXPORTS
    ]
    yield "## Memory\n\n" + "\n".join(lines)


def main() -> None:
    """Make the data and run all contests."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCHMARK_DIR")) as name:
        folder = Path(name)
        write_tokens(folder, 8)
        write_pairs(folder, 12)
        save_report(__file__, "Exports", sections(folder))


if __name__ == "__main__":
    if sys.argv[1:2] == ["peak"]:
        print_peak(Path(sys.argv[2]), sys.argv[3])
    else:
        main()
