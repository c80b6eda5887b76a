"""Packs of 32,768 tokens with images, built when asked for: python benchmarks/train_pixels.py

Chats of English prose, most with a JPEG of a common size, through the image processor of Qwen2.5-VL
and its real tokenizer, two DataLoader workers, CPU time of all processes:

    lazy     read, render, tokenize, find the answers, decode, arrange, lay out, collate
    built    packs whose ids, masks and positions wait in memory; decode, arrange, collate
    media    the images of the packs decoded and processed, in one process, nothing else
    levels   the images decoded and arranged as uint8, for floats to be made on the device
    floats   the same, and floats made of them here
    decode   the images of the packs decoded, in one process, nothing else

What lazy costs more than built is the overhead of packing lazily. Goals: `levels` a quarter of what
the processor takes (media) in a quarter of the bytes, `floats` never more than it.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import measure
from side_by_side import Contest, Work, save_report, sized

CAPACITY = 32_768
WORKERS = 2


def make_inputs(folder: Path, num: int) -> None:
    """Write samples, the model folder, lengths and the plan."""
    import shardmill as sm

    shards = measure.make_chats(folder, num, 1)
    measure.make_model(folder / "model")
    lengths = sm.measure(shards, folder / "lengths", model=folder / "model", workers=0)
    sm.plan(lengths, folder / "packs.plan", capacity=CAPACITY)


def _open(folder: str) -> Any:
    from hf_processors import transformers

    import shardmill as sm

    transformers().logging.set_verbosity_error()
    return sm.PackedDataset(
        f"{folder}/packs.plan",
        f"{folder}/shards",
        processor=f"{folder}/model",
        lengths=f"{folder}/lengths",
        max_faults=0,
    )


def lazy(folder: str) -> Work:
    """Packs made in the workers of the loader."""
    import shardmill as sm

    packs = _open(folder)
    loader = sm.loader(packs, workers=WORKERS, collate=sm.Collate("nemo", length=CAPACITY))
    return lambda: sum(len(batch["input_ids"]) for batch in loader)


class Built:
    """Packs that wait; only their images are made when a pack is asked for."""

    def __init__(self, packs: Any) -> None:
        self.reader = packs.reader
        self.packs = [packs[number] for number in range(len(packs))]

    def __getitem__(self, number: int) -> Any:
        found = self.packs[number]
        tensors = process(self.reader, found.pack.samples.tolist(), "floats")
        return replace(found, tensors=tensors)


def built(folder: str) -> Work:
    """Packs made beforehand."""
    from torch.utils.data import DataLoader

    import shardmill as sm

    packs, collate = _open(folder), sm.Collate("nemo", length=CAPACITY)
    made = Built(packs)

    def work() -> int:
        order = packs.sampler()
        loader = DataLoader(made, batch_sampler=order, num_workers=WORKERS, collate_fn=collate)
        return sum(len(batch["input_ids"]) for batch in loader)

    return work


def process(reader: Any, rows: list[int], how: str) -> dict[str, Any]:
    """Return the tensors of the images of these samples, an image at a time as they come."""
    import simplejpeg
    import torch
    from PIL import Image

    made = []
    for sample in reader.reader.views(rows):
        if "jpg" not in sample.members:
            continue
        pixels = simplejpeg.decode_jpeg(sample.members["jpg"])
        if how == "media":
            image = Image.fromarray(pixels)
            made.append(reader.processor.image_processor(images=[image], return_tensors="pt"))
        elif how in ("levels", "floats"):
            made.append(reader.levels.make([pixels]))
    joined = {n: torch.cat([one[n] for one in made]) for n in (made[0] if made else ())}
    return reader.levels.finish(joined) if how == "floats" else joined


def alone(folder: str, how: str) -> Work:
    """The images and nothing else."""
    import torch

    packs = _open(folder)

    torch.set_num_threads(1)  # as in a worker
    plan = packs.plans.first

    def work() -> int:
        for number in range(len(plan)):
            process(packs.reader, plan[number].tolist(), how)
        return len(plan)

    return work


def section(folder: Path, num: int, rounds: int) -> str:
    """Run the contest and return its table and what it says."""
    make_inputs(folder, num)
    contest = Contest(f"Packs of {CAPACITY:,} tokens with images, {WORKERS} workers", unit="pack")
    for name in ("lazy", "built"):
        contest.add(name, __file__, name, folder=str(folder))
    for how in ("media", "levels", "floats", "decode"):
        contest.add(how, __file__, "alone", folder=str(folder), how=how)
    contest.run(rounds)
    cost = {c.name: c.cpu_us for c in contest.contestants}
    overhead = cost["lazy"] - cost["built"]
    text = (
        f"Building packs when they are asked for costs {100 * overhead / cost['media']:.1f} % of "
        f"decoding and processing their images, {100 * overhead / cost['decode']:.1f} % of "
        "decoding them alone. Levels take "
        f"{cost['levels'] / cost['media']:.2f} x the CPU of the processor, floats "
        f"{cost['floats'] / cost['media']:.2f} x."
    )
    return f"## {contest.title}\n\n{contest.table(than='media')}\n\n{text}"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as name:
        parts = [section(Path(name), sized(600, 60), sized(5, 1))]
    save_report(__file__, "Building packs in the loader", parts)
