"""Writing samples that are in memory to tars: python benchmarks/write_tars.py

Goal: 5 times the samples/s of webdataset.TarWriter, and within 2 times of writing the bytes raw.
This measures the internal tar writer and sample writer alone; `sm.ingest` also reads a table.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from made_data import make_samples, write_ustar
from side_by_side import QUICK, Contest, Work, save_report

PER_SHARD = 1000


def _shards(folder: str, num: int, mean_bytes: int) -> tuple[Path, list[list]]:
    samples = list(make_samples(num, mean_bytes))
    per_shard = PER_SHARD if mean_bytes < 500_000 else PER_SHARD // 10
    shards = [samples[i : i + per_shard] for i in range(0, num, per_shard)]
    return Path(folder), shards


def _writing(folder: str, num: int, mean_bytes: int, write: Callable[[Path, list], None]) -> Work:
    """Return the work of writing every shard; what a round wrote goes before the next begins."""
    base, shards = _shards(folder, num, mean_bytes)

    def work() -> int:
        shutil.rmtree(base, ignore_errors=True)
        base.mkdir(parents=True)
        for number, shard in enumerate(shards):
            write(base / f"{number:05d}.tar", shard)
        return num

    return work


def shardmill_tar(**arguments) -> Work:
    """Our tar and its index."""
    from shardmill.shards.tar.index import IndexedTar

    def write(path: Path, shard: list) -> None:
        with IndexedTar(path, path.with_suffix(".idx")) as tar:
            for key, image, text in shard:
                tar.add(key, [("jpg", image), ("json", text)])

    return _writing(write=write, **arguments)


def shardmill_samples(**arguments) -> Work:
    """Our whole sample: the document as json, the caption as txt, hash of the content, index."""
    from shardmill.model.sample import Document, MediaSize, Sample, Segment
    from shardmill.model.stage import Draft
    from shardmill.shards.samples import SampleWriter

    def write(path: Path, shard: list) -> None:
        size = {"jpg": MediaSize(width=512, height=384)}
        with SampleWriter(Draft(path.parent), lambda _: path.stem) as writer:
            for key, image, text in shard:
                caption = json.loads(text)["caption"]
                parts = (Segment(kind="image", media="jpg"), Segment(kind="text", text=caption))
                sample = Sample(key=key, document=Document(parts), media={"jpg": image})
                writer.add(sample, size)

    return _writing(write=write, **arguments)


def webdataset_tar(**arguments) -> Work:
    """webdataset.TarWriter, given bytes."""
    import webdataset

    def write(path: Path, shard: list) -> None:
        with webdataset.TarWriter(str(path), encoder=False) as tar:
            for key, image, text in shard:
                tar.write({"__key__": key, "jpg": image, "json": text})

    return _writing(write=write, **arguments)


def python_tarfile(**arguments) -> Work:
    """tarfile of the standard library, plain ustar."""
    return _writing(write=write_ustar, **arguments)


def raw_bytes(**arguments) -> Work:
    """The bytes of ready tars, written a megabyte at a time: the limit."""
    ready = _ready_tars(arguments)

    def write(path: Path, shard: list) -> None:
        tar = memoryview(ready[int(path.stem)])
        fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        for start in range(0, len(tar), 1 << 20):
            os.write(fd, tar[start : start + (1 << 20)])
        os.close(fd)

    return _writing(write=write, **arguments)


def _ready_tars(arguments: dict) -> list[bytes]:
    """Every tar in memory, so that the same bytes are read and written as by the others."""
    from shardmill.shards.tar.write import TarWriter

    folder, shards = _shards(**arguments)
    folder.mkdir(parents=True, exist_ok=True)
    ready = []
    for shard in shards:
        with TarWriter(folder / "ready.tar") as tar:
            for key, image, text in shard:
                tar.add(key, [("jpg", image), ("json", text)])
        ready.append((folder / "ready.tar").read_bytes())
    return ready


CONTESTANTS = {
    "shardmill tar + index": shardmill_tar,
    "shardmill samples (json, txt, hash, index)": shardmill_samples,
    "webdataset.TarWriter": webdataset_tar,
    "Python tarfile, ustar": python_tarfile,
    "the same bytes raw": raw_bytes,
}


def section(num: int, mean_bytes: int, rounds: int) -> str:
    """Run one contest and return its table."""
    title = f"{num:,} samples of {mean_bytes / 1000:g} KB"
    contest = Contest(title, unit="sample")
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as folder:
        for name, function in CONTESTANTS.items():
            place = f"{folder}/{function.__name__}"
            contest.add(
                name, __file__, function.__name__, folder=place, num=num, mean_bytes=mean_bytes
            )
        contest.run(rounds)
    return f"## {title}\n\n{contest.table(than='shardmill tar + index')}"


if __name__ == "__main__":
    full = [(20_000, 60_000, 5), (2_000, 1_000_000, 3)]
    quick = [(200, 60_000, 1), (20, 1_000_000, 1)]
    sizes = quick if QUICK else full
    save_report(__file__, "Writing tars", (section(*size) for size in sizes))
