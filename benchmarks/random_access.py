"""Random access to raw bytes: python benchmarks/random_access.py

20,000 samples of 60 KB in 40 shards, read in one shuffled order, page cache warm, nothing decoded.

Handed out: every member of the sample (image and json) by name, in memory of its own, as `bytes`
wherever a reader can give `bytes`. This is the goal: 2.5 times the best of wids, streaming, HF
Arrow and array_record. Peers may keep all 40 shards open, which wids does not do as it ships.

Handed out and read: the same, and each image is then read once by a hash of memory speed, as a
decoder would read it. Views, which copy nothing, compete here with what peers hand out.

This measures the internal reader of raw members, which `sm.SampleStream` and `sm.open` stand on.
"""

from __future__ import annotations

import os
import random
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from made_data import make_samples, make_shards, write_tars
from peers import let_torchvision_load
from side_by_side import Contest, Work, save_report, sized

NUM_SHARDS = 40


def _reading(num: int, read: Callable[[int], Any], touch: bool) -> Work:
    """Return the work of reading samples in one shuffled order; `read` returns an image."""
    from xxhash import xxh3_64_intdigest

    consume = xxh3_64_intdigest if touch else len
    order = list(range(num))
    random.Random(7).shuffle(order)

    def work(first: int = num) -> int:
        if not all(consume(read(number)) for number in order[:first]):
            raise SystemExit("an empty sample")
        return min(first, num)

    return work


def shardmill(folder: str, num: int, mean_bytes: int, touch: bool) -> Work:
    """Our samples, every member copied to bytes."""
    from shardmill.shards.samples import open_samples

    samples = open_samples(Path(folder) / "index")
    return _reading(num, lambda number: samples.copies(number)["jpg"], touch)


def shardmill_views(folder: str, num: int, mean_bytes: int, touch: bool) -> Work:
    """Our samples as views of the mapped tar."""
    from shardmill.shards.samples import open_samples

    samples = open_samples(Path(folder) / "index")
    return _reading(num, lambda number: samples.raw(number)["jpg"], touch)


def _wids(folder: str, num: int, mean_bytes: int, lru_size: int):
    """wids.ShardListDataset on the tars as they lie; returns the read of a sample."""
    import webdataset
    from wids import ShardListDataset

    urls = [f"{folder}/{number:05d}.tar" for number in range(NUM_SHARDS)]
    shardlist = [{"url": url, "nsamples": num // NUM_SHARDS} for url in urls]
    if _is_first(folder):
        for url, shard in zip(urls, make_shards(num, mean_bytes, NUM_SHARDS)):
            with webdataset.TarWriter(url, encoder=False) as tar:
                for key, image, text in shard:
                    tar.write({"__key__": key, "jpg": image, "json": text})
    dataset = ShardListDataset(
        shardlist,
        localname=lambda url: url,
        keep=True,
        lru_size=lru_size,
        transformations=[],
    )

    def read(number: int) -> bytes:
        # A BytesIO over bytes gives these bytes back without copying; getbuffer would copy.
        sample = dataset[number]
        members = {ext: sample[ext].getvalue() for ext in (".jpg", ".json")}
        return members[".jpg"]

    return read


def wids(folder: str, num: int, mean_bytes: int, touch: bool) -> Work:
    """wids with room for all shards."""
    return _reading(num, _wids(folder, num, mean_bytes, 2 * NUM_SHARDS), touch)


def wids_shipped(folder: str, num: int, mean_bytes: int, touch: bool) -> Work:
    """wids with its own cache of 10 shards: it opens a shard for most samples, so few are read."""
    work = _reading(num, _wids(folder, num, mean_bytes, 10), touch)
    return lambda: work(num // 100)


def _is_first(folder: str) -> bool:
    """Say whether the data of this peer must be written; the second contest finds it."""
    try:
        (Path(folder) / "written").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def streaming(folder: str, num: int, mean_bytes: int, touch: bool) -> Work:
    """MDS shards through streaming.LocalDataset."""
    let_torchvision_load()
    from streaming import LocalDataset, MDSWriter

    columns = {"key": "str", "jpg": "bytes", "json": "bytes"}
    shard_bytes = (num // NUM_SHARDS) * (mean_bytes + 250)
    data = f"{folder}/mds"
    if _is_first(folder):
        with MDSWriter(out=data, columns=columns, size_limit=shard_bytes) as out:
            for key, image, text in make_samples(num, mean_bytes):
                out.write({"key": key, "jpg": image, "json": text})
    dataset = LocalDataset(data)
    return _reading(num, lambda number: dataset[number]["jpg"], touch)


def hf_arrow(folder: str, num: int, mean_bytes: int, touch: bool) -> Work:
    """Arrow files of Hugging Face datasets, mapped."""
    from datasets import Dataset, Features, Value, concatenate_datasets
    from datasets.arrow_writer import ArrowWriter

    kinds = {"key": Value("string"), "jpg": Value("binary"), "json": Value("binary")}
    paths = [f"{folder}/{number:05d}.arrow" for number in range(NUM_SHARDS)]
    if _is_first(folder):
        for path, shard in zip(paths, make_shards(num, mean_bytes, NUM_SHARDS)):
            with ArrowWriter(path=path, features=Features(kinds)) as out:
                for key, image, text in shard:
                    out.write({"key": key, "jpg": image, "json": text})
                out.finalize()
    dataset = concatenate_datasets([Dataset.from_file(path) for path in paths])
    return _reading(num, lambda number: dataset[number]["jpg"], touch)


def array_record(folder: str, num: int, mean_bytes: int, touch: bool) -> Work:
    """array_record's data source; a record is a length, the json and the image."""
    from array_record.python.array_record_data_source import ArrayRecordDataSource
    from array_record.python.array_record_module import ArrayRecordWriter

    paths = [f"{folder}/{number:05d}.array_record" for number in range(NUM_SHARDS)]
    if _is_first(folder):
        for path, shard in zip(paths, make_shards(num, mean_bytes, NUM_SHARDS)):
            out = ArrayRecordWriter(path, "group_size:1,uncompressed")
            for _key, image, text in shard:
                out.write(struct.pack("<I", len(text)) + text + image)
            out.close()
    source = ArrayRecordDataSource(paths)

    def read(number: int) -> memoryview:
        record = memoryview(source[number])
        (length,) = struct.unpack_from("<I", record)
        sample = {"json": record[4 : 4 + length], "jpg": record[4 + length :]}
        return sample["jpg"]

    return _reading(num, read, touch)


CONTESTANTS = (
    ("shardmill", "shardmill", None, "tar + index, bytes"),
    ("shardmill, views", "shardmill_views", None, "tar + index, views of the mapped file"),
    ("wids, room for all shards", "wids", "wids", "tar, BytesIO"),
    ("wids as it ships", "wids_shipped", "wids", "tar, BytesIO, 10 shards open"),
    ("streaming", "streaming", "streaming", "MDS, bytes"),
    ("HF Arrow", "hf_arrow", None, "Arrow, bytes"),
    ("array_record", "array_record", "array_record", "group size 1, no compression, bytes"),
)


def section(folder: Path, num: int, mean_bytes: int, touch: bool, rounds: int) -> str:
    """Run a contest and return its table."""
    how = "handed out and read" if touch else "handed out"
    title = f"{num:,} samples of {mean_bytes / 1000:g} KB in {NUM_SHARDS} shards, shuffled, {how}"
    contest = Contest(title, unit="sample")
    for name, function, peer, note in CONTESTANTS:
        place = folder / function.partition("_")[0]
        data = {"folder": str(place), "num": num, "mean_bytes": mean_bytes, "touch": touch}
        if not place.exists():
            place.mkdir()
            if name == "shardmill":
                write_tars(place, num, mean_bytes, NUM_SHARDS)
        if function == "wids_shipped":
            contest.contestants[-1].ask("go")  # whose tars it reads
        contest.add(name, __file__, function, peer=peer, note=note, **data)
    contest.run(rounds)
    return f"## {title}\n\n{contest.table(than='shardmill')}"


if __name__ == "__main__":
    count, rounds = sized(20_000, 400), sized(7, 1)
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as name:
        save_report(
            __file__,
            "Random access",
            (section(Path(name), count, 60_000, touch, rounds) for touch in (False, True)),
        )
