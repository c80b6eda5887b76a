"""Random access to raw bytes: python benchmarks/random_access.py

20,000 samples of 60 KB in 40 shards, read in one shuffled order, page cache warm, nothing decoded.
Each reader may keep all 40 shards open and hands out a picture in its own way (a view, bytes, a
BytesIO); each picture is then read once, by a hash of memory speed, as a decoder would read it: so
that nobody wins by not touching the bytes. Goal: 2.5 times the best of wids, streaming, HF Arrow
and array_record.
"""

from __future__ import annotations

import os
import random
import struct
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from made_samples import make_samples
from side_by_side import Contest, Work, save_report

NUM_SHARDS = 40


def _reading(num: int, read: Callable[[int], Any], *, touch: bool = True) -> Work:
    """Return the work of reading all samples in one shuffled order; `read` returns a picture."""
    from xxhash import xxh3_64_intdigest

    consume = xxh3_64_intdigest if touch else len
    order = list(range(num))
    random.Random(7).shuffle(order)

    def work() -> int:
        if not all(consume(read(number)) for number in order):
            raise SystemExit("an empty sample")
        return num

    return work


def _shards(num: int, mean_bytes: int) -> list[list[tuple[str, bytes, bytes]]]:
    samples = make_samples(num, mean_bytes)
    return [[next(samples) for _ in range(num // NUM_SHARDS)] for _ in range(NUM_SHARDS)]


def make_ours(folder: str, num: int, mean_bytes: int) -> None:
    """Write our shards; the three contestants share them."""
    from shardmill.io.indexwrite import IndexRows
    from shardmill.io.tarwrite import TarWriter

    for number, shard in enumerate(_shards(num, mean_bytes)):
        rows, path = IndexRows(), Path(folder) / f"{number:05d}.tar"
        with TarWriter(path) as tar:
            for key, picture, text in shard:
                start, at = tar.add(key, [("jpg", picture), ("json", text)])
                rows.add(key, start, at.exts, at.offsets, at.sizes)
            end = tar.num_bytes
        rows.write(path.with_suffix(".idx"), end=end, num_bytes=tar.num_bytes)


def _open_ours(folder: str, num: int, mean_bytes: int):
    from shardmill.io.sampleset import SampleSet
    from shardmill.model.manifest import FileEntry, ShardEntry

    entries = []
    for number in range(NUM_SHARDS):
        files = {role: FileEntry(f"{number:05d}.{role}", 0, "") for role in ("tar", "idx")}
        entries.append(ShardEntry(f"{number:05d}", num // NUM_SHARDS, files))
    return SampleSet(Path(folder), entries)


def shardmill(folder: str, num: int, mean_bytes: int) -> Work:
    """Our samples as views of the mapped tar, as they are handed out."""
    samples = _open_ours(folder, num, mean_bytes)
    return _reading(num, lambda number: samples.raw(number)["jpg"])


def shardmill_untouched(folder: str, num: int, mean_bytes: int) -> Work:
    """The same, but nobody looks at the bytes."""
    samples = _open_ours(folder, num, mean_bytes)
    return _reading(num, lambda number: samples.raw(number)["jpg"], touch=False)


def shardmill_bytes(folder: str, num: int, mean_bytes: int) -> Work:
    """Our samples, every member copied to bytes."""
    samples = _open_ours(folder, num, mean_bytes)

    def read(number: int) -> bytes:
        sample = {ext: bytes(view) for ext, view in samples.raw(number).items()}
        return sample["jpg"]

    return _reading(num, read)


def wids(folder: str, num: int, mean_bytes: int) -> Work:
    """wids.ShardListDataset with room for all shards, on the tars as they lie."""
    import webdataset
    from wids import ShardListDataset

    shardlist = []
    for number, shard in enumerate(_shards(num, mean_bytes)):
        path = f"{folder}/{number:05d}.tar"
        with webdataset.TarWriter(path, encoder=False) as tar:
            for key, picture, text in shard:
                tar.write({"__key__": key, "jpg": picture, "json": text})
        shardlist.append({"url": path, "nsamples": len(shard)})
    dataset = ShardListDataset(
        shardlist,
        localname=lambda url: url,
        keep=True,
        lru_size=2 * NUM_SHARDS,
        transformations=[],
    )
    return _reading(num, lambda number: dataset[number][".jpg"].getbuffer())


def streaming(folder: str, num: int, mean_bytes: int) -> Work:
    """MDS shards through streaming.LocalDataset."""
    _let_torchvision_load()
    from streaming import LocalDataset, MDSWriter

    columns = {"key": "str", "jpg": "bytes", "json": "bytes"}
    shard_bytes = (num // NUM_SHARDS) * (mean_bytes + 250)
    with MDSWriter(out=folder, columns=columns, size_limit=shard_bytes) as out:
        for key, picture, text in make_samples(num, mean_bytes):
            out.write({"key": key, "jpg": picture, "json": text})
    dataset = LocalDataset(folder)
    return _reading(num, lambda number: dataset[number]["jpg"])


def _let_torchvision_load() -> None:
    # The wheel of torchvision has no operators for a torch without CUDA, and says so on import.
    import torch

    global library
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def hf_arrow(folder: str, num: int, mean_bytes: int) -> Work:
    """Arrow files of Hugging Face datasets, mapped."""
    from datasets import Dataset, Features, Value, concatenate_datasets
    from datasets.arrow_writer import ArrowWriter

    kinds = {"key": Value("string"), "jpg": Value("binary"), "json": Value("binary")}
    paths = []
    for number, shard in enumerate(_shards(num, mean_bytes)):
        paths.append(f"{folder}/{number:05d}.arrow")
        with ArrowWriter(path=paths[-1], features=Features(kinds)) as out:
            for key, picture, text in shard:
                out.write({"key": key, "jpg": picture, "json": text})
            out.finalize()
    dataset = concatenate_datasets([Dataset.from_file(path) for path in paths])
    return _reading(num, lambda number: dataset[number]["jpg"])


def array_record(folder: str, num: int, mean_bytes: int) -> Work:
    """array_record's data source; a record is a length, the json and the picture."""
    from array_record.python.array_record_data_source import ArrayRecordDataSource
    from array_record.python.array_record_module import ArrayRecordWriter

    paths = []
    for number, shard in enumerate(_shards(num, mean_bytes)):
        paths.append(f"{folder}/{number:05d}.array_record")
        out = ArrayRecordWriter(paths[-1], "group_size:1,uncompressed")
        for _key, picture, text in shard:
            out.write(struct.pack("<I", len(text)) + text + picture)
        out.close()
    source = ArrayRecordDataSource(paths)

    def read(number: int) -> memoryview:
        record = memoryview(source[number])
        (length,) = struct.unpack_from("<I", record)
        sample = {"json": record[4 : 4 + length], "jpg": record[4 + length :]}
        return sample["jpg"]

    return _reading(num, read)


CONTESTANTS = (
    ("shardmill", "shardmill", None, "tar + index, views"),
    ("shardmill, all copied", "shardmill_bytes", None, "tar + index, bytes"),
    ("shardmill, not touched", "shardmill_untouched", None, "tar + index, views, not hashed"),
    ("wids", "wids", "wids", "tar, BytesIO"),
    ("streaming", "streaming", "streaming", "MDS, bytes"),
    ("HF Arrow", "hf_arrow", None, "Arrow, bytes"),
    ("array_record", "array_record", "array_record", "group size 1, no compression, bytes"),
)


def section(num: int, mean_bytes: int, rounds: int) -> str:
    """Run the contest and return its table."""
    title = f"{num:,} samples of {mean_bytes / 1000:g} KB in {NUM_SHARDS} shards, shuffled"
    contest = Contest(title, unit="sample")
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as folder:
        for name, function, peer, note in CONTESTANTS:
            place = Path(folder) / function.partition("_")[0]
            data = {"folder": str(place), "num": num, "mean_bytes": mean_bytes}
            if not place.exists():
                place.mkdir()
                if name == "shardmill":
                    make_ours(**data)
            contest.add(name, __file__, function, peer=peer, note=note, **data)
        contest.run(rounds)
    return f"## {title}\n\n{contest.table(than='shardmill')}"


if __name__ == "__main__":
    quick = "--quick" in sys.argv
    save_report(
        __file__,
        "Random access",
        [section(2_000 if quick else 20_000, 60_000, rounds=3 if quick else 7)],
    )
