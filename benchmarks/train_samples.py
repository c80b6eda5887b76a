"""Raw samples, shuffled, in batches of 32, one epoch: python benchmarks/train_samples.py

20,000 samples of 60 KB in 20 tars (or what a peer makes of them), page cache warm, nothing decoded;
every loader hands out the bytes of image and json in memory of their own. Without workers, and
with two: worker processes for the peers, threads for us. Goals: without workers 10 times webdataset
and Energon and ahead of all; with two workers 3 times the best.
"""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from made_data import make_samples, make_shards, write_tars
from peers import let_torchvision_load
from side_by_side import Contest, Work, save_report, sized

NUM_SHARDS = 20
BATCH = 32
BUFFER = 1000


def _epoch(batches: Callable[[], Iterable[Any]], num: int, images: Callable[[Any], Any]) -> Work:
    """Return the work of one epoch; nearly all samples must come, and not many twice."""

    def work() -> int:
        count = sum(sum(1 for image in images(batch) if len(image)) for batch in batches())
        if not 0.98 * num <= count <= 1.05 * num:
            raise SystemExit(f"{count} samples of {num}")
        return count

    return work


def _as_is(samples: list[Any]) -> list[Any]:
    return samples


def shardmill(folder: str, num: int, mean_bytes: int, workers: int) -> Work:
    """SampleStream: without threads each member is copied to bytes, since views cost nothing."""
    import shardmill as sm

    index = f"{folder}/index"
    stream = sm.SampleStream(index, batch_size=BATCH, threads=workers, copy=not workers)
    return _epoch(lambda: stream, num, lambda batch: [s.members["jpg"] for s in batch])


def webdataset(folder: str, num: int, mean_bytes: int, workers: int) -> Work:
    """WebDataset with a shuffle buffer of 1,000."""
    import webdataset as wds

    urls = f"{folder}/{{00000..{NUM_SHARDS - 1:05d}}}.tar"

    def batches() -> Iterable[Any]:
        data = wds.WebDataset(urls, shardshuffle=NUM_SHARDS, seed=1).shuffle(BUFFER)
        data = data.batched(BATCH, collation_fn=_as_is)
        return wds.WebLoader(data, batch_size=None, num_workers=workers)

    return _epoch(batches, num, lambda batch: [sample["jpg"] for sample in batch])


def energon(folder: str, num: int, mean_bytes: int, workers: int) -> Work:
    """Energon's crude dataset and its loader, a shuffle buffer of 1,000, no saved states."""
    from megatron.energon import (
        Cooker,
        TaskEncoder,
        WorkerConfig,
        get_loader,
        get_train_dataset,
        stateless,
    )
    from megatron.energon.tools.prepare import command

    links = Path(tempfile.mkdtemp(dir=folder))
    for tar in sorted(Path(folder).glob("*.tar")):
        (links / tar.name).symlink_to(tar)
    options = ["--non-interactive", "--no-progress", "--num-workers", "1", "--split-ratio", "1,0,0"]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        command.main([*options, "--skip-dataset-yaml", str(links)], standalone_mode=False)
    (links / ".nv-meta" / "dataset.yaml").write_text(
        "__module__: megatron.energon\n__class__: CrudeWebdataset\n"
    )

    class Encoder(TaskEncoder):
        decoder = None
        cookers = (Cooker(stateless(_as_is)),)

        def batch(self, samples: list[Any]) -> list[Any]:
            return samples

    def batches() -> Iterable[Any]:
        data = get_train_dataset(
            str(links),
            worker_config=WorkerConfig(rank=0, world_size=1, num_workers=workers),
            batch_size=BATCH,
            shuffle_buffer_size=BUFFER,
            max_samples_per_sequence=100,
            virtual_epoch_length=num // BATCH,
            task_encoder=Encoder(),
        )
        return get_loader(data)

    return _epoch(batches, num, lambda batch: [sample["jpg"] for sample in batch])


def hf_arrow(folder: str, num: int, mean_bytes: int, workers: int) -> Work:
    """Arrow files of Hugging Face datasets, map style, shuffled by a DataLoader."""
    from datasets import Dataset, Features, Value, concatenate_datasets
    from datasets.arrow_writer import ArrowWriter
    from torch.utils.data import DataLoader

    kinds = {"key": Value("string"), "jpg": Value("binary"), "json": Value("binary")}
    paths = [Path(folder) / f"{number:05d}.arrow" for number in range(NUM_SHARDS)]
    if not paths[-1].exists():
        for path, shard in zip(paths, make_shards(num, mean_bytes, NUM_SHARDS)):
            with ArrowWriter(path=str(path), features=Features(kinds)) as out:
                for key, image, text in shard:
                    out.write({"key": key, "jpg": image, "json": text})
                out.finalize()
    data = concatenate_datasets([Dataset.from_file(str(path)) for path in paths])

    def batches() -> Iterable[Any]:
        return DataLoader(data, BATCH, shuffle=True, num_workers=workers, collate_fn=_as_is)

    return _epoch(batches, num, lambda batch: [sample["jpg"] for sample in batch])


def streaming(folder: str, num: int, mean_bytes: int, workers: int) -> Work:
    """MosaicML StreamingDataset."""
    let_torchvision_load()
    from streaming import MDSWriter, StreamingDataset
    from torch.utils.data import DataLoader

    columns = {"key": "str", "jpg": "bytes", "json": "bytes"}
    shard_bytes = (num // NUM_SHARDS) * (mean_bytes + 250)
    with MDSWriter(out=folder, columns=columns, size_limit=shard_bytes, exist_ok=True) as out:
        for key, image, text in make_samples(num, mean_bytes):
            out.write({"key": key, "jpg": image, "json": text})
    data = StreamingDataset(local=folder, shuffle=True, batch_size=BATCH)

    def batches() -> Iterable[Any]:
        return DataLoader(data, BATCH, num_workers=workers, collate_fn=_as_is)

    return _epoch(batches, num, lambda batch: [sample["jpg"] for sample in batch])


def litdata(folder: str, num: int, mean_bytes: int, workers: int) -> Work:
    """litdata's StreamingDataset and StreamingDataLoader."""
    let_torchvision_load()
    from litdata import StreamingDataLoader, StreamingDataset
    from litdata.streaming.writer import BinaryWriter

    writer = BinaryWriter(folder, chunk_bytes=(num // NUM_SHARDS) * (mean_bytes + 250))
    for number, (_key, image, text) in enumerate(make_samples(num, mean_bytes)):
        writer[number] = {"jpg": image, "json": text}
    writer.done()
    writer.merge(1)
    data = StreamingDataset(folder, shuffle=True)

    def batches() -> Iterable[Any]:
        return StreamingDataLoader(data, batch_size=BATCH, num_workers=workers, collate_fn=_as_is)

    return _epoch(batches, num, lambda batch: [sample["jpg"] for sample in batch])


CONTESTANTS = (
    ("shardmill", "shardmill", None, "our tars, full shuffle"),
    ("webdataset", "webdataset", None, "the same tars, buffer of 1,000"),
    ("Energon", "energon", None, "the same tars, buffer of 1,000"),
    ("HF Arrow, map style", "hf_arrow", None, "Arrow, full shuffle"),
    ("streaming", "streaming", "streaming", "MDS, py1e shuffle"),
    ("litdata", "litdata", "litdata", "chunks, its shuffle"),
)


def section(folder: Path, num: int, mean_bytes: int, workers: int, rounds: int) -> str:
    """Run one contest and return its table."""
    how = f"{workers} workers" if workers else "no workers"
    title = f"{num:,} samples of {mean_bytes / 1000:g} KB, {how}"
    contest = Contest(title, unit="sample")
    for name, function, peer, note in CONTESTANTS:
        place = folder / (function if peer else "shared") / (str(workers) if peer else "")
        data = {"folder": str(place), "num": num, "mean_bytes": mean_bytes, "workers": workers}
        if not place.exists():
            place.mkdir(parents=True)
            if peer is None:
                write_tars(place, num, mean_bytes, NUM_SHARDS)
        contest.add(name, __file__, function, peer=peer, note=note, **data)
    contest.run(rounds)
    return f"## {title}\n\n{contest.table(than='shardmill')}"


if __name__ == "__main__":
    count, rounds = sized(20_000, 800), sized(4, 1)
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as name:
        sections = [section(Path(name), count, 60_000, workers, rounds) for workers in (0, 2)]
    save_report(__file__, "Serving raw samples", sections)
