"""Lengths of raw rows: by the rule of the processor that is given, and NeMo's own on request."""

from __future__ import annotations

import random
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hf_processors import (
    chat_template,
    gemma3_processor,
    internvl_processor,
    make_tokenizer,
    transformers,
)

from shardmill.neat_packing import neat_pack_dataset_vlm
from shardmill.tokens.visual.gemma3 import Gemma3
from shardmill.tokens.visual.internvl import InternVL
from shardmill.tokens.visual.llava import Llava
from shardmill.tokens.visual.qwen import (
    Qwen2VL,
    Qwen3Images,
    Qwen3Videos,
    Qwen3VL,
    QwenImages,
    QwenVideos,
)
from shardmill.tokens.visual.rule import VisualRule, rule_of_processor
from shardmill.train.nemo.lengths import estimate, read_rows, rule_of, scan_plainly

MARKS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
QWEN = Qwen2VL(images=QwenImages(max_pixels=1003520), videos=QwenVideos(fps=2.0))
TEXT = {"type": "text", "text": "x" * 300}
IMAGE, VIDEO = {"type": "image"}, {"type": "video"}


def chat(*content: Any, **extra: Any) -> dict[str, Any]:
    return {"conversation": [{"role": "user", "content": list(content)}], **extra}


def lengths(*rows: Any, rule: VisualRule | None = QWEN) -> list[tuple[int, int]]:
    return list(zip(*(column.tolist() for column in estimate(read_rows(rows), rule))))


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (chat(TEXT, IMAGE), (600, 500)),
        (chat(TEXT, IMAGE, mm_inputs_meta={"images_meta": [[224, 336]]}), (196, 96)),
        (chat(IMAGE, VIDEO, mm_inputs_meta={"images_meta": [[224, 336]]}), (596, 596)),
        (chat(IMAGE, IMAGE, mm_inputs_meta={"images_meta": [[224, 336], None]}), (596, 596)),
        (chat(IMAGE, TEXT, mm_inputs_meta={"images_meta": [{"n_tokens": 77}]}), (177, 77)),
        # Media inside the text are not shown, but their sizes are listed.
        (chat(TEXT, mm_inputs_meta={"images_meta": [[224, 336]]}), (196, 96)),
        (chat(IMAGE, _text_tokens=77), (577, 500)),
        ({"conversation": [{"role": "user", "content": "plain string"}]}, (4, 0)),
        ({"conversation": [{"role": "user", "content": "图像说明文字"}]}, (6, 0)),
        ({"conversation": [{"role": "user", "content": None}]}, (0, 0)),
        ({"conversation": None, "mm_inputs_meta": [1]}, (0, 0)),
        ({}, (0, 0)),
    ],
)
def test_rows(row: dict[str, Any], expected: tuple[int, int]) -> None:
    assert lengths(row) == [expected]


@pytest.mark.parametrize("entry", [None, [], [0, 0], [5, 5000], ["a", 3], [1e30, 5], {"n": 3}, -1])
def test_medium_of_unknown_size_counts_500(entry: Any) -> None:
    assert lengths(chat(IMAGE, mm_inputs_meta={"images_meta": [entry]})) == [(500, 500)]


def odd(rng: random.Random) -> Any:
    number: Any = rng.choice([0, -1, 7, 2.5, 300, 1e18, 10**40, float("nan"), True, None, "5", []])
    return rng.choice(
        [number, [number] * rng.randint(0, 6), (number, 5), {"n_tokens": number}, "über", "\ud800x"]
    )


def odd_row(rng: random.Random) -> dict[str, Any]:
    kinds = ("text", "image", "video", "audio", None, 3)
    items = [
        rng.choice([odd(rng), {"type": rng.choice(kinds), "text": odd(rng)}]) for _ in range(4)
    ]
    turns = [rng.choice([odd(rng), {"content": odd(rng)}, {"content": items}]) for _ in range(3)]
    meta = {f"{kind}s_meta": [odd(rng) for _ in range(3)] for kind in ("image", "video")}
    return {
        "conversation": rng.choice([turns, tuple(turns), odd(rng)]),
        "_text_tokens": odd(rng),
        "mm_inputs_meta": rng.choice([meta, odd(rng)]),
    }


def test_rows_are_read_alike_with_and_without_compiled_code() -> None:
    rng = random.Random(3)
    rows = [odd_row(rng) for _ in range(500)]
    compiled = pytest.importorskip("shardmill.train.nemo._rows").scan(rows)
    assert [bytes(part) for part in compiled] == list(scan_plainly(rows))


def test_rows_of_a_data_set_of_its_own_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    from collections import UserDict

    row = chat(TEXT, IMAGE)
    assert lengths(UserDict(row)) == lengths(row)
    with pytest.raises(TypeError):
        read_rows([5])
    monkeypatch.setitem(sys.modules, "shardmill.train.nemo._rows", None)
    assert lengths(UserDict(row)) == lengths(row) == [(600, 500)]


RULES = (
    Qwen2VL(),
    QWEN,
    Qwen2VL(videos=QwenVideos(fps=1.3, min_frames=3, max_frames=17, max_pixels=200_000)),
    Qwen2VL(videos=QwenVideos(num_frames=6)),
    Qwen3VL(),
    Qwen3VL(
        images=Qwen3Images(min_pixels=40_000, max_pixels=90_000),
        videos=Qwen3Videos(fps=3.3, max_frames=33),
    ),
    InternVL(num_frames=5),
    InternVL(min_tiles=2, max_tiles=6),
    InternVL(crop_to_tiles=False),
    Gemma3(),
    Gemma3(pan_and_scan=True),
    Llava(),
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_many_media_count_as_each_alone(rule: VisualRule) -> None:
    rng = np.random.default_rng(0)
    sides = np.exp(rng.uniform(0, 9, (2, 400))).astype(int)
    sides[:, :50] = rng.integers(0, 3, (2, 50))
    frames = np.exp(rng.uniform(-1, 7, 400)).astype(int)
    rates = rng.choice([0, 1, 12.5, 23.976, 59.94], 400)
    sizes = {"image": np.stack(sides, axis=1), "video": np.stack([*sides, frames, rates], axis=1)}
    for kind in rule.placeholders():
        given = sizes[kind].astype(np.float64)
        np.testing.assert_array_equal(
            rule.count_many(kind, given), VisualRule.count_many(rule, kind, given)
        )


def test_lengths_follow_the_processor_that_is_given() -> None:
    """One tile of 28 is 4 tokens for this InternVL, six and a thumbnail are 28; Gemma takes 4."""
    row = chat(IMAGE, mm_inputs_meta={"images_meta": [[56, 84]]})
    for processor, tokens in ((internvl_processor(), 28), (gemma3_processor(), 4)):
        assert lengths(row, rule=rule_of(processor)) == [(tokens, tokens)]
        packed = neat_pack_dataset_vlm(
            [None] * 6, 2 * tokens, ds_raw=[row] * 6, processor=processor
        )
        # Each loses a place by the shift, so that two always fit.
        assert {len(pack) for pack in packed.bins} == {2}


def test_a_known_processor_is_counted_by_its_own_rule() -> None:
    start, end, image, video = MARKS
    library = transformers()
    processor = library.Qwen2VLProcessor(
        library.Qwen2VLImageProcessor(max_pixels=28 * 28 * 8),
        make_tokenizer(*MARKS),
        library.Qwen2VLVideoProcessor(),
        chat_template(image=start + image + end, video=start + video + end),
    )
    rule = rule_of(processor)
    assert rule == rule_of_processor(processor)
    assert lengths(chat(IMAGE, mm_inputs_meta={"images_meta": [[900, 900]]}), rule=rule)[0][1] <= 8


def test_processors_of_unknown_families() -> None:
    library = transformers()
    alike = SimpleNamespace(
        image_processor=library.Qwen2VLImageProcessor(),
        video_processor=library.Qwen3VLVideoProcessor(),
    )
    rule = rule_of(alike)
    assert isinstance(rule, Qwen3VL)
    assert (rule.images.patch_size, rule.images.max_pixels) == (14, 1003520)
    assert (rule.videos.fps, rule.videos.patch_size) == (2, 16)
    assert rule_of(object()) is None
    assert rule_of(SimpleNamespace(image_processor=library.CLIPImageProcessor())) is None
