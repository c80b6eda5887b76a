"""Chats with short films and images as sample shards, and real Qwen processors for them."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Any

from hf_processors import chat_template, make_tokenizer, transformers
from make_media import pixels
from pixel_folder import MARKS, jpeg, sentence
from sample_folder import write_sample_folder

from shardmill.media.header import probe
from shardmill.model.sample import Document, MediaSize, Sample, Segment

FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")


def film_processor(family: str, **videos: Any) -> Any:
    """Return the processor of a family with small images, which chooses two frames a second."""
    hf = transformers()
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor

    start, end, image, film = MARKS
    template = chat_template(image=start + image + end, video=start + film + end)
    settings = {"do_sample_frames": True, "fps": 2, **videos}
    if family == "qwen3_vl":
        images = Qwen2VLImageProcessor(patch_size=16, min_pixels=32 * 32, max_pixels=32 * 32 * 8)
        size = {"shortest_edge": 32 * 32 * 4, "longest_edge": 32 * 32 * 60}
        films = hf.Qwen3VLVideoProcessor(size=size, **settings)
        return hf.Qwen3VLProcessor(images, make_tokenizer(*MARKS), films, template)
    images = Qwen2VLImageProcessor(min_pixels=28 * 28 * 2, max_pixels=28 * 28 * 8)
    films = hf.Qwen2VLVideoProcessor(min_pixels=28 * 28, max_pixels=28 * 28 * 6, **settings)
    name = {"qwen2_vl": "Qwen2VLProcessor", "qwen2_5_vl": "Qwen2_5_VLProcessor"}[family]
    return getattr(hf, name)(images, make_tokenizer(*MARKS), films, template)


@cache
def film(width: int, height: int, num_frames: int, rate: int) -> bytes:
    """Return a film in which every frame is another."""
    import io

    import av

    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=rate, options={"g": "12", "crf": "10"})
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for number in range(num_frames):
            frame = av.VideoFrame.from_ndarray(pixels(width, height, number), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return file.getvalue()


def film_chat(number: int, rng: random.Random) -> tuple[Sample, dict[str, MediaSize]]:
    """Return a question about films and images, and its answer."""
    kinds = rng.choice([["video"], ["image"], ["video", "image"], ["video", "video"], []])
    segments, media, sizes = [], {}, {}
    for place, kind in enumerate(kinds):
        name = f"{place}.{'mp4' if kind == 'video' else 'jpg'}"
        if kind == "video":
            shape = rng.choice([(64, 48), (48, 80), (120, 64)])
            media[name] = film(*shape, rng.choice([8, 9, 20, 31]), rng.choice([5, 10]))
        else:
            side = MediaSize(width=rng.randint(30, 90), height=rng.randint(30, 90))
            media[name] = jpeg(side, rng)
        sizes[name] = probe(kind, media[name]).size
        segments += [
            Segment(kind=kind, media=name, role="user"),
            Segment(kind="text", text=sentence(rng), role="user"),
        ]
    segments.append(Segment(kind="text", text=sentence(rng), role="user"))
    segments.append(Segment(kind="text", text=sentence(rng), role="assistant", turn=1))
    return Sample(key=f"film-{number:04d}", document=Document(tuple(segments)), media=media), sizes


def write_film_folder(folder: Path, count: int = 24) -> Path:
    """Write such chats as two sample shards."""
    rng = random.Random(3)
    rows = [film_chat(number, rng) for number in range(count)]
    return write_sample_folder(folder, [rows[: count // 2], rows[count // 2 :]])
