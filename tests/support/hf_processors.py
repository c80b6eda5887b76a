"""Real Hugging Face processors, built offline: no weights, a small tokenizer, our own templates."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

from shardmill.model.sample import MediaSize
from shardmill.tokens.visual.rule import VisualRule, replace_placeholders

CHATML = """{% for message in messages %}<|im_start|>{{ message.role }}
{% for item in message.content %}
{%- if item.type == 'text' %}{{ item.text }}
{%- else %}{{ marks[item.type] }}{% endif %}
{%- endfor %}<|im_end|>
{% endfor %}"""
WORDS = (
    "a",
    "cat",
    "sits.",
    "\n",
    "\n\n",
    "  ",
    "two!",
    "über",
    "图片",
    "🙂",
    "12.5",
    "<1>",
    "x = y\n",
)

LIBRARIES: list[Any] = []  # operators live as long as their library does


def chat_template(**marks: str) -> str:
    """Return a chat template that marks media of each kind as told."""
    return "{% set marks = " + repr(marks) + " %}" + CHATML


@cache
def transformers() -> Any:
    """Return transformers, after defining what the CPU build of torchvision lacks to load."""
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    if torch.version.cuda is None:
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        LIBRARIES.append(library)
    return pytest.importorskip("transformers")


def make_tokenizer(*special: str, bos: bool = False, **named: str) -> Any:
    """Return a byte-level BPE tokenizer that merges words, spaces and newlines.

    `named` are special tokens that processors find by name, such as boi_token. With `bos` it is
    as Llama's: a space before every piece of text, and <s> before everything.
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

    engine = Tokenizer(models.BPE())
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<s>", "<|im_start|>", "<|im_end|>", *special, *named.values()],
    )
    engine.train_from_iterator(_corpus(), trainer)
    if bos:
        engine.normalizer = normalizers.Prepend(" ")
        engine.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 0)])
    return transformers().PreTrainedTokenizerFast(
        tokenizer_object=engine, eos_token="<|im_end|>", extra_special_tokens=dict(named)
    )


def _corpus() -> list[str]:
    rng = random.Random(0)
    corpus = [" ".join(rng.choices(WORDS, k=20)) for _ in range(200)]
    return corpus + ["\n" * n for n in range(1, 9)] * 20 + ["Frame1: <3.5 seconds>"] * 5


def llava_processor(mark: str = "<image>\n") -> Any:
    """Return LLaVA's processor for images of 42 x 42, each at a mark."""
    loaded = transformers()
    return loaded.LlavaProcessor(
        loaded.CLIPImageProcessor(
            size={"shortest_edge": 42}, crop_size={"height": 42, "width": 42}
        ),
        make_tokenizer("<image>", bos=True),
        patch_size=14,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=chat_template(image=mark),
    )


def gemma3_processor(mark: str = "<start_of_image>") -> Any:
    """Return Gemma 3's processor for images of 28 x 28 and four tokens, each at a mark."""
    loaded = transformers()
    tokenizer = make_tokenizer(
        boi_token="<start_of_image>", image_token="<image_soft_token>", eoi_token="<end_of_image>"
    )
    return loaded.Gemma3Processor(
        loaded.Gemma3ImageProcessor(size={"height": 28, "width": 28}),
        tokenizer,
        chat_template=chat_template(image=mark),
        image_seq_length=4,
    )


def internvl_processor(**video: Any) -> Any:
    """Return InternVL's processor for tiles of 28 x 28 and four tokens; `video` sets its videos."""
    loaded = transformers()
    tokenizer = make_tokenizer(
        start_image_token="<img>",
        end_image_token="</img>",
        context_image_token="<IMG_CONTEXT>",
        video_token="<video>",
    )
    size = {"height": 28, "width": 28}
    return loaded.InternVLProcessor(
        loaded.GotOcr2ImageProcessor(size=size, max_patches=6),
        tokenizer,
        loaded.InternVLVideoProcessor(size=size, **video),
        image_seq_length=4,
        chat_template=chat_template(image="<IMG_CONTEXT>\n", video="<video>\n"),
    )


@dataclass(frozen=True)
class Chat:
    """A random conversation: messages for a template, and the sizes of its media by kind."""

    messages: list[dict[str, Any]]
    sizes: dict[str, list[MediaSize]]


def random_chat(
    rng: random.Random,
    make_size: dict[str, Callable[[random.Random], MediaSize]],
    words: Sequence[str] = WORDS,
) -> Chat:
    """Return a chat of one to three turns with zero to three media, text before and after."""
    sizes: dict[str, list[MediaSize]] = {}
    messages = []
    for turn in range(rng.randint(1, 3)):
        content = []
        for _ in range(rng.randint(1, 4)):
            kind = rng.choice(["text", *make_size])
            if kind == "text" or sum(map(len, sizes.values())) == 3:
                text = " ".join(rng.choices(words, k=rng.randint(0, 8)))
                content.append({"type": "text", "text": text})
            else:
                sizes.setdefault(kind, []).append(make_size[kind](rng))
                content.append({"type": kind})
        messages.append({"role": ("user", "assistant")[turn % 2], "content": content})
    return Chat(messages, sizes)


def our_length(rule: VisualRule, chat: Chat, rendered: str, tokenizer: Any) -> int:
    """Return the number of tokens by the rule: text with replacements, and the hidden tokens."""
    visuals = {kind: [rule.count(kind, size) for size in chat.sizes[kind]] for kind in chat.sizes}
    text = replace_placeholders(rendered, rule.placeholders(), visuals)
    hidden = sum(visual.num_hidden for items in visuals.values() for visual in items)
    return len(tokenizer(text)["input_ids"]) + hidden


def their_length(
    processor: Any, chat: Chat, rendered: str, settings: dict[str, dict[str, Any]]
) -> int:
    """Return the number of tokens that the processor makes of real images and videos."""
    import torch
    from PIL import Image
    from transformers.video_utils import VideoMetadata

    media: dict[str, Any] = {}
    if "image" in chat.sizes:
        media["images"] = [Image.new("RGB", (s.width, s.height)) for s in chat.sizes["image"]]
        media |= settings["image"]
    if "video" in chat.sizes:
        sizes = chat.sizes["video"]
        media["videos"] = [
            torch.zeros((s.num_frames, 3, s.height, s.width), dtype=torch.uint8) for s in sizes
        ]
        media["video_metadata"] = [
            VideoMetadata(total_num_frames=s.num_frames, fps=s.fps) for s in sizes
        ]
        media |= settings["video"]
    # As `apply_chat_template` does: what a template has begun with is not added again.
    begun = processor.tokenizer.bos_token
    if begun and rendered.startswith(begun):
        media["add_special_tokens"] = False
    return len(processor(text=[rendered], return_tensors="pt", **media)["input_ids"][0])


def compare(
    rule: VisualRule,
    processor: Any,
    *,
    num_chats: int = 150,
    seed: int = 0,
    settings: dict[str, Any] | None = None,
    image_settings: dict[str, Any] | None = None,
    **make_size: Callable[[random.Random], MediaSize],
) -> None:
    """Check that rule and processor agree on every one of many random chats."""
    rng = random.Random(seed)
    given = {"image": image_settings or {}, "video": settings or {}}
    for _ in range(num_chats):
        chat = random_chat(rng, make_size)
        rendered = processor.apply_chat_template(chat.messages, tokenize=False)
        ours = our_length(rule, chat, rendered, processor.tokenizer)
        assert ours == their_length(processor, chat, rendered, given), chat
