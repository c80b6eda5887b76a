"""Packs of 32,768 tokens with images, built when asked for: python benchmarks/train_pixels.py

Chats of English prose, most with a JPEG of a common size, through the image processor of Qwen2.5-VL
and its real tokenizer, two DataLoader workers, CPU time of all processes:

    lazy     read, render, tokenize, find the answers, decode, process, lay out, collate
    built    packs whose ids, masks and positions wait in memory; decode, process, collate
    media    the images of the packs decoded and processed, in one process, nothing else
    decode   the images of the packs decoded, in one process, nothing else

What lazy costs more than built is the overhead of packing lazily. Goal: 10 % of what it takes to
get the images from JPEG to what the model takes (media).
"""

from __future__ import annotations

import io
import os
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import measure
from side_by_side import Contest, Work, save_report

from shardmill.model.sample import Document, MediaSize, Sample, Segment

CAPACITY = 32_768
WORKERS = 2


def make_chats(num: int) -> Iterator[tuple[Sample, dict[str, MediaSize]]]:
    """Yield chats with smooth images, the same every time."""
    rng = random.Random(0)
    images = {size: jpeg(*size) for size in measure.SIZES}
    for number in range(num):
        media, sizes, segments = {}, {}, []
        if rng.random() < 0.8:
            size = rng.choice(measure.SIZES)
            media["jpg"] = images[size]
            sizes["jpg"] = MediaSize(width=size[0], height=size[1])
            segments.append(Segment(kind="image", media="jpg", role="user"))
        for turn, (role, longest) in enumerate((("user", 160), ("assistant", 900))):
            start = rng.randrange(len(measure.PROSE) - longest)
            text = measure.PROSE[start : start + rng.randint(20, longest)]
            segments.append(Segment(kind="text", text=text, role=role, turn=turn))
        yield Sample(key=f"{number:08d}", document=Document(tuple(segments)), media=media), sizes


def jpeg(width: int, height: int) -> bytes:
    """Return an image that is neither flat nor noise."""
    import numpy as np
    from PIL import Image

    noise = np.random.default_rng(width).integers(0, 256, (height // 8, width // 8, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).resize((width, height)).save(file, "JPEG", quality=90)
    return file.getvalue()


def make_inputs(folder: Path, num: int) -> None:
    """Write samples, the model folder, lengths and the plan."""
    from sample_folder import write_sample_folder

    from shardmill.model.plan import PackSpec
    from shardmill.packing.plan import plan_packs
    from shardmill.running.runner import run_stage
    from shardmill.shards.plans import write_plan
    from shardmill.stages.measure import Measure, merge_lengths
    from shardmill.tokens.visual.pretrained import rule_of_folder

    write_sample_folder(folder / "samples", [list(make_chats(num))])
    measure.make_model(folder / "model")
    rule = rule_of_folder(folder / "model")
    stage = Measure(input_dir=folder / "samples", rule=rule, tokenizer=folder / "model")
    run_stage(stage, folder / "lengths", workers=0)
    table = merge_lengths(folder / "lengths")
    write_plan(folder / "packs.plan", plan_packs(table, PackSpec(capacity=CAPACITY)))


def _open(folder: str) -> Any:
    from hf_processors import transformers

    transformers().logging.set_verbosity_error()
    from shardmill.train.dataset import PackedDataset
    from shardmill.train.pixels import PixelReader

    root = Path(folder)
    reader = PixelReader.open(root / "samples", root / "model")
    lengths = root / "lengths" / "lengths.bin"
    return PackedDataset(root / "packs.plan", reader, lengths=lengths, max_faults=0)


def _drawn(dataset: Any, sampler: Any) -> Work:
    from shardmill.train.collate import Collate
    from shardmill.train.loader import StepLoader

    collate = Collate(length=CAPACITY)

    def work() -> int:
        loader = StepLoader(dataset, sampler, num_workers=WORKERS, collate_fn=collate)
        return sum(len(batch["input_ids"]) for batch in loader)

    return work


def lazy(folder: str) -> Work:
    """Packs made in the workers."""
    packs = _open(folder)
    return _drawn(packs, packs.sampler())


class Built:
    """Packs that wait; only their images are made when a pack is asked for."""

    def __init__(self, packs: Any) -> None:
        self.reader = packs.reader
        self.packs = [packs[number].pack for number in range(len(packs))]

    def __getitem__(self, number: int) -> Any:
        from shardmill.train.documents import TrainPack

        pack = self.packs[number]
        return TrainPack(number, pack, process(self.reader, pack.samples.tolist()))


def built(folder: str) -> Work:
    """Packs made beforehand."""
    packs = _open(folder)
    return _drawn(Built(packs), packs.sampler())


def process(reader: Any, rows: list[int], *, decode_only: bool = False) -> dict[str, Any]:
    """Return the tensors of the images of these samples, an image at a time as they come."""
    import torch
    from PIL import Image

    from shardmill.media.image import decode_image

    made = []
    for sample in reader.reader.views(rows):
        if "jpg" not in sample.members:
            continue
        pixels = decode_image(sample.members["jpg"])
        if not decode_only:
            image = Image.fromarray(pixels)
            made.append(reader.processor.image_processor(images=[image], return_tensors="pt"))
    return {n: torch.cat([one[n] for one in made]) for n in (made[0] if made else ())}


def media(folder: str) -> Work:
    """The images, decoded and processed."""
    packs = _open(folder)
    return _alone(packs, decode_only=False)


def decode(folder: str) -> Work:
    """The images, decoded."""
    packs = _open(folder)
    return _alone(packs, decode_only=True)


def _alone(packs: Any, *, decode_only: bool) -> Work:
    import torch

    torch.set_num_threads(1)  # as in a worker
    plan = packs.plans.first

    def work() -> int:
        for number in range(len(plan)):
            process(packs.reader, plan[number].tolist(), decode_only=decode_only)
        return len(plan)

    return work


def section(folder: Path, num: int, rounds: int) -> str:
    """Run the contest and return its table and what it says."""
    make_inputs(folder, num)
    contest = Contest(f"Packs of {CAPACITY:,} tokens with images, {WORKERS} workers", unit="pack")
    for name in ("lazy", "built", "media", "decode"):
        contest.add(name, __file__, name, folder=str(folder))
    contest.run(rounds)
    cost = {c.name: c.cpu_us for c in contest.contestants}
    overhead = cost["lazy"] - cost["built"]
    text = (
        f"Building packs when they are asked for costs {100 * overhead / cost['media']:.1f} % of "
        f"decoding and processing their images, {100 * overhead / cost['decode']:.1f} % of "
        "decoding them alone."
    )
    return f"## {contest.title}\n\n{contest.table(than='media')}\n\n{text}"


if __name__ == "__main__":
    quick = "--quick" in sys.argv
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as name:
        parts = [section(Path(name), 150 if quick else 600, 2 if quick else 5)]
    save_report(__file__, "Building packs in the loader", parts)
