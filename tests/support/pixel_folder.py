"""Chats with small images as sample shards, and a real Qwen processor for them."""

from __future__ import annotations

import io
import random
from pathlib import Path
from typing import Any

from hf_processors import chat_template, make_tokenizer, transformers
from sample_folder import write_sample_folder

from shardmill.model.plan import LengthTable, length_table
from shardmill.model.sample import Document, MediaSize, Sample, Segment

MARKS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
WORDS = ("a", "cat", "sits", "on", "two", "old", "chairs", "near", "the", "green", "water")


def make_processor() -> Any:
    """Return a Qwen2-VL processor with tiny images and a small tokenizer."""
    hf = transformers()
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor

    start, end, image, film = MARKS
    template = chat_template(image=start + image + end, video=start + film + end)
    images = Qwen2VLImageProcessor(min_pixels=28 * 28 * 2, max_pixels=28 * 28 * 8)
    videos = hf.Qwen2VLVideoProcessor()
    return hf.Qwen2VLProcessor(images, make_tokenizer(*MARKS), videos, template)


def make_chat(number: int, rng: random.Random) -> tuple[Sample, dict[str, MediaSize]]:
    """Return a chat of one question, with no, one or two images, and its answer."""
    images = rng.choice([0, 1, 1, 2])
    names = ["jpg"] if images == 1 else [f"{i}.jpg" for i in range(images)]
    sizes = {n: MediaSize(width=rng.randint(30, 90), height=rng.randint(30, 90)) for n in names}
    media = {name: jpeg(size, rng) for name, size in sizes.items()}
    question = Segment(kind="text", text=sentence(rng), role="user")
    answer = Segment(kind="text", text=sentence(rng), role="assistant", turn=1)
    shown = [Segment(kind="image", media=name, role="user") for name in names]
    document = Document((*shown, question, answer))
    return Sample(key=f"chat-{number:04d}", document=document, media=media), sizes


def sentence(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(2, 12)))


def jpeg(size: MediaSize, rng: random.Random) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    colour = tuple(rng.randrange(256) for _ in range(3))
    Image.new("RGB", (size.width, size.height), colour).save(file, "JPEG")
    return file.getvalue()


def write_pixel_folder(folder: Path, count: int = 40, per_shard: int = 16) -> Path:
    """Write chats as sample shards."""
    rng = random.Random(1)
    rows = [make_chat(number, rng) for number in range(count)]
    shards = [rows[start : start + per_shard] for start in range(0, count, per_shard)]
    return write_sample_folder(folder, shards)


def lengths_by(reader: Any) -> LengthTable:
    """Return the lengths that a reader finds, which a measurement must agree with."""
    rows = [reader.read(number).row for number in range(len(reader))]
    return length_table(
        [len(row.ids) for row in rows],
        num_visual=[row.num_visual for row in rows],
        num_fixed=[row.num_fixed for row in rows],
    )


def save_model(folder: Path, processor: Any) -> Path:
    """Save the processor and the config of a tiny random Qwen2-VL; returns the folder."""
    tokenizer = processor.tokenizer
    names = ("vision_start", "vision_end", "image", "video")
    special = dict(zip(names, tokenizer.convert_tokens_to_ids(list(MARKS))))
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]},
    }
    vision = {"depth": 1, "embed_dim": 32, "hidden_size": 32, "num_heads": 2, "mlp_ratio": 2}
    config = transformers().Qwen2VLConfig(
        text_config=text,
        vision_config=vision,
        **{f"{name}_token_id": number for name, number in special.items()},
    )
    config.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder
