"""Packs of 32,768 tokens with images or videos, in one process: python benchmarks/train_pixels.py

Chats of English prose through the processor of Qwen2.5-VL and its real tokenizer: most with a JPEG
of a common size, or each with a clip of H.264 of which the processor takes two frames a second.
CPU time of one core, contestants in turn, the best of the rounds:

    packs      whole packs for a loader with a device: read, render, tokenize, find the answers,
               decode, arrange as uint8, lay out, collate
    packs, floats   the same without a device, with floats made of all pixels
    processor  the media of the packs decoded and processed, nothing else
    levels     the media decoded and arranged as uint8, for floats to be made on the device
    floats     the same, and floats made of them here
    decode     the media of the packs decoded, nothing else

What `packs, floats` costs more than `floats` is the overhead of packing lazily. Goals: `levels` a
quarter of what the processor takes in a quarter of the bytes, `floats` never more than it.
Media are decoded alone by internal modules, as the loader does it.
"""

from __future__ import annotations

import io
import json
import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import measure
from side_by_side import Contest, Work, save_report, sized

CAPACITY = 32_768
# Width, height and seconds of the clips, which have 30 frames a second.
CLIPS = ((640, 360, 8), (1280, 720, 6), (480, 854, 10), (854, 480, 12))
RATE = 30


def make_inputs(folder: Path, num: int, kind: str) -> None:
    """Write samples, the model folder, lengths and the plan."""
    import shardmill as sm

    shards = measure.make_chats(folder, num, 1) if kind == "images" else make_clips(folder, num)
    measure.make_model(folder / "model")
    config = folder / "model" / "preprocessor_config.json"
    # Videos as the published checkpoints have them, and frames chosen as its tools do.
    video = {"min_pixels": 128 * 28 * 28, "max_pixels": 768 * 28 * 28, "fps": 2}
    own = {"video_processor_type": "Qwen2VLVideoProcessor", "do_sample_frames": True, **video}
    (folder / "model" / "video_preprocessor_config.json").write_text(
        json.dumps({**json.loads(config.read_text()), **own})
    )
    lengths = sm.measure(shards, folder / "lengths", model=folder / "model", workers=0)
    sm.plan(lengths, folder / "packs.plan", capacity=CAPACITY)


def make_clips(folder: Path, num: int) -> Any:
    """Write chats about clips, and return their shards."""
    import shardmill as sm

    (folder / "clips").mkdir()
    for number, size in enumerate(CLIPS):
        (folder / "clips" / f"{number}.mp4").write_bytes(clip(*size))
    rng = random.Random(0)
    with (folder / "chats.jsonl").open("w") as file:
        for number in range(num):
            start = rng.randrange(len(measure.PROSE) - 900)
            texts = f"<video>{measure.PROSE[start : start + 99]}", measure.PROSE[start:][:600]
            turns = [{"from": w, "value": t} for w, t in zip(("human", "gpt"), texts)]
            row = {"id": f"{number:08d}", "video": f"clips/{number % len(CLIPS)}.mp4"}
            file.write(json.dumps({**row, "conversations": turns}) + "\n")
    return sm.ingest(folder / "chats.jsonl", folder / "shards")


def clip(width: int, height: int, seconds: int) -> bytes:
    """Return a clip that moves and is neither flat nor noise."""
    import av
    import numpy as np
    from PIL import Image

    rng, file = np.random.default_rng(width), io.BytesIO()
    noise = rng.integers(0, 256, (height // 8, width // 8, 3), np.uint8)
    first = np.asarray(Image.fromarray(noise).resize((width, height)))
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=RATE, options={"crf": "23"})
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for number in range(seconds * RATE):
            moved = np.ascontiguousarray(np.roll(first, 2 * number, axis=1))
            frame = av.VideoFrame.from_ndarray(moved, format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return file.getvalue()


def _open(folder: str) -> Any:
    import torch
    from hf_processors import transformers

    import shardmill as sm

    transformers().logging.set_verbosity_error()
    torch.set_num_threads(1)  # as in a worker
    return sm.PackedDataset(
        f"{folder}/packs.plan",
        f"{folder}/shards",
        processor=f"{folder}/model",
        lengths=f"{folder}/lengths",
        max_faults=0,
    )


def full_packs(packs: Any) -> Any:
    """Return how many packs the tokens would fill: the last one is far from full."""
    return float(packs.table.num_tokens.sum()) / CAPACITY


def whole(folder: str, in_levels: bool) -> Work:
    """Packs as a worker makes them."""
    import shardmill as sm

    packs, collate = _open(folder), sm.Collate("nemo", length=CAPACITY)
    packs.in_levels = in_levels

    def work() -> int:
        for number in range(len(packs)):
            collate([packs[number]])
        return full_packs(packs)

    return work


def decoded(reader: Any, rows: list[int], resized: bool) -> Iterator[Any]:
    """Yield the media of these samples; the frames of a video at their own size or the model's."""
    from shardmill.media.image import decode_image
    from shardmill.shards.samples import parse_sample
    from shardmill.train.pixels.reader import read_video

    for row, raw in zip(rows, reader.reader.views(rows)):
        sample = parse_sample(raw.key, raw.members)
        for segment in sample.document.media():
            content = sample.media[segment.media]
            if segment.kind == "image":
                yield decode_image(content)
                continue
            size = reader.reader.sizes(row)[segment.media]
            yield read_video(content, size, reader.rule, reader.videos.resize if resized else None)


def process(reader: Any, rows: list[int], how: str) -> dict[str, Any]:
    """Return the tensors of the media of these samples, one at a time as they come."""
    from PIL import Image

    from shardmill.train.documents import join_tensors
    from shardmill.train.pixels.processor import VideoFrames

    made = []
    for medium in decoded(reader, rows, resized=how in ("levels", "floats")):
        if how in ("levels", "floats"):
            made.append(reader.levels.make([medium]))
        elif how == "processor" and isinstance(medium, VideoFrames):
            videos = reader.processor.video_processor
            made.append(videos(videos=[medium.pixels], do_sample_frames=False, return_tensors="pt"))
        elif how == "processor":
            image = Image.fromarray(medium)
            made.append(reader.processor.image_processor(images=[image], return_tensors="pt"))
    joined = join_tensors([dict(one) for one in made])
    return reader.levels.finish(joined) if how == "floats" else joined


def alone(folder: str, how: str) -> Work:
    """The media and nothing else."""
    packs = _open(folder)
    plan = packs.plans.first

    def work() -> int:
        for number in range(len(plan)):
            process(packs.reader, plan[number].tolist(), how)
        return full_packs(packs)

    return work


def pixel_bytes(folder: str, how: str) -> int:
    """Return the bytes of the tensors of all packs."""
    packs = _open(folder)
    plan = packs.plans.first
    made = (process(packs.reader, plan[n].tolist(), how) for n in range(len(plan)))
    return sum(tensor.nbytes for one in made for tensor in one.values())


def section(kind: str, num: int, rounds: int) -> str:
    """Run the contest and return its table and what it says."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as name:
        make_inputs(Path(name), num, kind)
        contest = Contest(f"Packs of {CAPACITY:,} tokens with {kind}", unit="pack")
        contest.add_here("packs", whole(name, in_levels=True))
        contest.add_here("packs, floats", whole(name, in_levels=False))
        for how in ("processor", "levels", "floats", "decode"):
            contest.add_here(how, alone(name, how))
        contest.run(rounds)
        bytes_of = {how: pixel_bytes(name, how) for how in ("processor", "levels")}
    cost = {c.name: c.cpu_us for c in contest.contestants}
    rate = {name: 1e6 / us for name, us in cost.items()}
    apart = cost["processor"] - cost["decode"]
    overhead = cost["packs, floats"] - cost["floats"]
    text = (
        f"One core makes {rate['packs']:.1f} packs a second for a loader with a device, "
        f"{rate['packs, floats']:.1f} without. Decoded and arranged as levels, {kind} take "
        f"{cost['levels'] / cost['processor']:.2f} x the CPU of the processor "
        f"({(cost['levels'] - cost['decode']) / apart:.2f} x without decoding) and "
        f"{bytes_of['levels'] / bytes_of['processor']:.3f} x its bytes; floats made here "
        f"{cost['floats'] / cost['processor']:.2f} x "
        f"({(cost['floats'] - cost['decode']) / apart:.2f} x). Building packs when they are asked "
        f"for costs {100 * overhead / cost['processor']:.1f} % of decoding and processing."
    )
    return f"## {contest.title}\n\n{contest.table(than='processor')}\n\n{text}"


if __name__ == "__main__":
    sections = (
        section(kind, sized(num, 4), sized(rounds, 1))
        for kind, num, rounds in (("images", 60, 7), ("videos", 4, 3))
    )
    save_report(__file__, "Building packs in the loader", sections)
