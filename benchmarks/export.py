"""Each export against the format's own library writing the same rows, in one process each, durably.

Tokens: 4 shards with 4,000 rows each of 200 to 1,500 ids and an image of 256 codes. Pairs: 4 shards
of 2,000 captions with the codes of an image of 512 pixels. The libraries have the rows in memory,
which is not timed, and write them with the settings that their users use: the same encoding, dtype
and compression; each file is synced. shardmill reads its shards, and also writes checksums,
receipts and indexes. Peak memory is that of a process of its own, for the data as it is and for
three times the shards. What a format has no place for is dropped by name; internal tables say it.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from made_data import SUPPORT_DIR, write_tokens
from peers import let_torchvision_load
from side_by_side import Contest, save_report, sized

NUM_SHARDS, LENGTH = sized(4, 2), 2048
ROWS_A_SHARD, PAIRS_A_SHARD = sized(4000, 50), sized(2000, 50)
ROUNDS = sized(5, 1)
Contestant: TypeAlias = tuple[Callable[[], int], Callable[[], Any]]  # the work, and tidying up
# name -> input, format, and what else writes the same rows: (name, function, its environment)
EXPORTS: dict[str, tuple[str, dict[str, Any], tuple[str, str, str | None]]] = {
    "Megatron, one prefix": (
        "tokens",
        {"kind": "megatron", "prefix": "all"},
        ("IndexedDatasetBuilder", "megatron", "megatron"),
    ),
    "Hugging Face Arrow": (
        "tokens",
        {"kind": "hf"},
        ("datasets.ArrowWriter", "datasets_arrow", None),
    ),
    "Hugging Face parquet": (
        "tokens",
        {"kind": "hf", "files": "parquet"},
        ("datasets' to_parquet of Arrow files", "datasets_parquet", None),
    ),
    "TensorDict, fixed length": (
        "tokens",
        {"kind": "tensordict", "length": LENGTH, "pad_id": 0},
        ("pad_sequence and TensorDict.memmap", "tensordict", None),
    ),
    "WebDataset, JSON": (
        "tokens",
        {"kind": "webdataset"},
        ("webdataset.TarWriter", "webdataset_json", "wids"),
    ),
    "WebDataset, arrays": (
        "tokens",
        {"kind": "webdataset", "arrays": True},
        ("webdataset.TarWriter", "webdataset_arrays", "wids"),
    ),
    "Energon": (
        "tokens",
        {"kind": "energon"},
        ("webdataset.TarWriter and energon prepare", "energon", None),
    ),
    "MDS": ("tokens", {"kind": "mds"}, ("streaming.MDSWriter", "mds", "streaming")),
    "LitData": (
        "tokens",
        {"kind": "litdata"},
        ("litdata's BinaryWriter", "litdata", "litdata"),
    ),
    "Liquid, jsonl": (
        "pairs",
        {"kind": "liquid", "files": "jsonl"},
        ("json.dumps, as Liquid's scripts do", "liquid_lines", None),
    ),
}


def shardmill(folder: str, export: str) -> Contestant:
    """Export to a new folder each time."""
    out = Path(folder) / "out"
    return lambda: make(Path(folder), export, out), lambda: shutil.rmtree(out)


def make(folder: Path, export: str, out: Path) -> int:
    """Export to a folder in this process, and return how many rows were written."""
    import shardmill as sm
    from shardmill.formats.format import ASPECTS, kept_by
    from shardmill.model.codec import build
    from shardmill.plugins import FORMATS

    kind, plain, _ = EXPORTS[export]
    codes, format = folder / "codes" if kind == "pairs" else None, build(FORMATS, plain)
    drop = [aspect for aspect in ASPECTS if aspect not in kept_by(format)]
    made = sm.export(folder / kind, out, format=format, codes=codes, drop=drop, workers=0)
    return made.counts.num_kept


Row: TypeAlias = dict[str, Any]


def rows_of(folder: str) -> list[list[Row]]:
    """Return the rows of each shard as a writer in Python has them: arrays and keys in memory."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
    import shardmill as sm

    tokens = sm.open(Path(folder) / "tokens")
    rows = [row_of(row) for row in tokens]
    ends = list(accumulate(shard.num_samples for shard in tokens.manifest.shards))
    return [rows[start:end] for start, end in pairwise([0, *ends])]


def row_of(row: Any) -> Row:
    """Return the fields that the exports write of a row."""
    loss_mask = np.zeros(len(row.ids), np.uint8)
    for start, length in row.loss.tolist():
        loss_mask[start : start + length] = 1
    media = [
        {"name": m.name, "kind": m.kind, "position": m.position, "num_tokens": m.num_tokens}
        for m in row.media
    ]
    lengths = np.array([len(row.ids)], np.int32)
    fields = {"input_ids": row.ids, "loss_mask": loss_mask, "lengths": lengths, "media": media}
    return {"key": row.key, "keys": [row.key], **fields}


def writer(folder: str, write: Callable[[Path, list[list[Row]]], None]) -> Contestant:
    """Return a contestant that writes all rows to a new folder and syncs its files."""
    shards, out = rows_of(folder), Path(folder) / f"theirs-{os.getpid()}"

    def work() -> int:
        out.mkdir()
        write(out, shards)
        for path in out.rglob("*"):
            sync(path)
        return sum(map(len, shards))

    return work, lambda: shutil.rmtree(out)


def megatron(folder: str) -> Contestant:
    """Add each row as a document."""
    import torch
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    def write(out: Path, shards: list[list[Row]]) -> None:
        builder = IndexedDatasetBuilder(str(out / "all.bin"), dtype=np.uint16)
        for shard in shards:
            for row in shard:
                builder.add_item(torch.from_numpy(row["input_ids"].astype(np.int32)))
                builder.end_document()
        builder.finalize(str(out / "all.idx"))

    return writer(folder, write)


def modality_of(row: Row) -> Any:
    """Return 1 for the tokens of images."""
    modality = np.zeros(len(row["input_ids"]), np.uint8)
    for medium in row["media"]:
        modality[medium["position"] : medium["position"] + medium["num_tokens"]] = 1
    return modality


def datasets_arrow(folder: str) -> Contestant:
    """Write each row with the writer behind `Dataset.from_generator`."""
    import datasets
    from datasets.arrow_writer import ArrowWriter

    lists = {"input_ids": "uint16", "loss_mask": "uint8", "modality": "uint8", "lengths": "int32"}
    features = datasets.Features(
        key=datasets.Value("string"),
        **{name: datasets.Sequence(datasets.Value(dtype)) for name, dtype in lists.items()},
    )

    def write(out: Path, shards: list[list[Row]]) -> None:
        for number, shard in enumerate(shards):
            with ArrowWriter(path=str(out / f"{number}.arrow"), features=features) as table:
                for row in shard:
                    values = {"key": row["key"], "modality": modality_of(row)}
                    values |= {name: row[name] for name in lists if name != "modality"}
                    table.write(values)
                table.finalize()

    return writer(folder, write)


def datasets_parquet(folder: str) -> Contestant:
    """Let `datasets` write what `load_from_disk` opens, as one file."""
    import datasets

    datasets.disable_progress_bars()
    target, arrow = Path(folder) / "theirs.parquet", Path(folder) / "arrow"
    make(Path(folder), "Hugging Face Arrow", arrow)
    data = datasets.load_from_disk(str(arrow))

    def work() -> int:
        data.to_parquet(target)
        sync(target)
        return len(data)

    return work, target.unlink


def tensordict(folder: str) -> Contestant:
    """Pad all rows with torch, and store them as memory maps."""
    import torch
    from tensordict import TensorDict

    def write(out: Path, shards: list[list[Row]]) -> None:
        rows = [row for shard in shards for row in shard]
        pad = torch.nn.utils.rnn.pad_sequence
        ids = pad([torch.from_numpy(r["input_ids"].astype(np.int16)) for r in rows], True)
        mask = pad([torch.ones(len(r["input_ids"]), dtype=torch.bool) for r in rows], True)
        kinds = pad([torch.from_numpy(modality_of(r).astype(np.int8)) for r in rows], True)
        more = (0, LENGTH - ids.shape[1])
        columns = {"input_ids": ids, "attention_mask": mask, "modality": kinds}
        padded = {name: torch.nn.functional.pad(c, more) for name, c in columns.items()}
        padded["idx"] = torch.arange(len(rows), dtype=torch.int32)[:, None]
        TensorDict(padded, batch_size=[len(rows)]).memmap(str(out / "td"))

    return writer(folder, write)


def _tars(out: Path, shards: list[list[Row]], *, arrays: bool) -> None:
    import webdataset

    names = ("input_ids", "loss_mask")
    for number, shard in enumerate(shards):
        with webdataset.TarWriter(str(out / f"{number:05d}.tar")) as tar:
            for row in shard:
                fields = {name: v for name, v in row.items() if name != "key"}
                fields["lengths"] = row["lengths"].tolist()
                sample: Row = {"__key__": row["key"], "json": fields}
                for name in names:
                    if arrays:
                        sample[f"{name}.npy"] = fields.pop(name)
                    else:
                        fields[name] = row[name].tolist()
                tar.write(sample)


def webdataset_json(folder: str) -> Contestant:
    """Write all fields as JSON."""
    return writer(folder, lambda out, shards: _tars(out, shards, arrays=False))


def webdataset_arrays(folder: str) -> Contestant:
    """Write ids and masks as .npy members."""
    return writer(folder, lambda out, shards: _tars(out, shards, arrays=True))


def energon(folder: str) -> Contestant:
    """Write the same tars, and let Energon prepare them."""
    from megatron.energon.tools.prepare import command

    def write(out: Path, shards: list[list[Row]]) -> None:
        _tars(out, shards, arrays=True)
        options = ["--non-interactive", "--no-progress", "--num-workers", "1"]
        options += ["--split-ratio", "1,0,0", "--skip-dataset-yaml", "--force-overwrite", str(out)]
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            command.main(options, standalone_mode=False)

    return writer(folder, write)


def mds(folder: str) -> Contestant:
    """Write each row with the columns of the export."""
    let_torchvision_load()
    from streaming import MDSWriter

    columns = {
        "input_ids": "ndarray:uint16",
        "keys": "json",
        "lengths": "ndarray:int32",
        "loss_mask": "ndarray:uint8",
        "media": "json",
    }

    def write(out: Path, shards: list[list[Row]]) -> None:
        with MDSWriter(out=str(out / "mds"), columns=columns) as shard_writer:
            for shard in shards:
                for row in shard:
                    shard_writer.write({name: row[name] for name in columns})

    return writer(folder, write)


def litdata(folder: str) -> Contestant:
    """Write each row as a tensor of tokens, with the writer behind `optimize`."""
    import torch
    from litdata.streaming.item_loader import TokensLoader
    from litdata.streaming.writer import BinaryWriter

    def write(out: Path, shards: list[list[Row]]) -> None:
        loader = TokensLoader()
        binary = BinaryWriter(str(out), chunk_bytes="64MB", item_loader=loader)
        rows = (row for shard in shards for row in shard)
        for number, row in enumerate(rows):
            binary[number] = torch.from_numpy(row["input_ids"].copy())
        binary.done()
        binary.merge()

    return writer(folder, write)


def liquid_lines(folder: str) -> Contestant:
    """Write a line of JSON for each pair, with its codes as JSON text."""
    import shardmill as sm

    samples, codes = sm.open(Path(folder) / "pairs"), sm.open(Path(folder) / "codes")
    pairs = [(s.text, found[0].codes.reshape(-1)) for s, found in zip(samples, codes)]
    target = Path(folder) / "theirs.jsonl"

    def work() -> int:
        with target.open("w") as file:
            for text, codes in pairs:
                row = {"data_type": "image_text", "text": text, "length": len(text) + 4096}
                row |= {"vqcode_512": json.dumps(codes.tolist())}
                row |= dict.fromkeys(("vqcode_multi768", "width", "height"), "no")
                file.write(json.dumps(row) + "\n")
        sync(target)
        return len(pairs)

    return work, target.unlink


def sync(path: Path) -> None:
    """Return when a file or a folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def write_rows(folder: Path, num_shards: int) -> None:
    """Write token shards with captions and codes."""
    rng, text_size = np.random.default_rng(0), 32_000
    image = {"name": "jpg", "kind": "image", "position": 101, "num_tokens": 256}
    image |= {"before": 1, "after": 1}
    first_code = text_size + 2

    def row(number: int) -> Row:
        ids = rng.integers(0, text_size, int(rng.integers(200, 1500)))
        codes = rng.integers(first_code, first_code + 16_384, 256)
        ids = np.concatenate([ids[:100], [text_size], codes, [text_size + 1], ids[100:]])
        loss = np.array([[len(ids) // 2, len(ids) - len(ids) // 2]])
        return {"key": f"cc12m-{number:08d}", "ids": ids, "loss": loss, "media": (image,)}

    bounds = [ROWS_A_SHARD * number for number in range(num_shards + 1)]
    shards = [[row(number) for number in range(a, b)] for a, b in pairwise(bounds)]
    space = {"text_size": text_size, "added": ("boi", "eoi"), "num_codes": 16_384}
    write_tokens(folder / "tokens", shards, **space)


def write_pairs(folder: Path, num_shards: int) -> None:
    """Write shards of pairs with a small image, and their codes."""
    sys.path.insert(0, str(SUPPORT_DIR))
    from coded_folder import make_pair, store_coded

    captions = [f"A photograph of thing number {n}, seen from the side. " * 3 for n in range(100)]
    samples = [
        make_pair(f"cc12m-{number:08d}", captions[number % 100], bytes(4000))
        for number in range(PAIRS_A_SHARD * num_shards)
    ]
    store_coded(folder, samples, per_shard=PAIRS_A_SHARD)
    (folder / "samples").rename(folder / "pairs")


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
    """Yield the table of speed, then that of memory."""
    lines = [
        "| export | its library | CPU us a row: ours, theirs | wall us a row: ours, theirs "
        "| CPU, times less |",
        "|---|---|---:|---:|---:|",
    ]
    for name, (_, _, (library, function, peer)) in EXPORTS.items():
        contest = Contest(name, unit="row")
        contest.add("shardmill", __file__, "shardmill", folder=str(folder), export=name)
        contest.add(library, __file__, function, peer=peer, folder=str(folder))
        contest.run(ROUNDS)
        ours, theirs = contest.best("shardmill"), contest.best(library)
        lines.append(
            f"| {name} | {library} | {ours.cpu_us:.0f}, {theirs.cpu_us:.0f} "
            f"| {ours.wall_us:.0f}, {theirs.wall_us:.0f} | {theirs.cpu_us / ours.cpu_us:.1f} |"
        )
        print(lines[-1], file=sys.stderr, flush=True)
    yield "## Against the format's own library\n\n" + "\n".join(lines)
    big = folder / "big"
    big.mkdir()
    write_rows(big, 3 * NUM_SHARDS)
    write_pairs(big, 3 * NUM_SHARDS)
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
        write_rows(folder, NUM_SHARDS)
        write_pairs(folder, NUM_SHARDS)
        save_report(__file__, "Exports", sections(folder))


if __name__ == "__main__":
    if sys.argv[1:2] == ["peak"]:
        print_peak(Path(sys.argv[2]), sys.argv[3])
    else:
        main()
