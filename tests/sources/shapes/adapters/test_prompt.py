from __future__ import annotations

from typing import Any

import pytest

from shardmill.errors import SampleError
from shardmill.sources.shapes.adapters.prompt import PromptShape

NAMES = [f"000000003-{n}" for n in range(12)]


def said(row: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [
        (p.turn, p.role, p.text if p.kind == "text" else p.media)
        for p in PromptShape().shape(row).segments
    ]


def test_uniform_frames_and_their_caption() -> None:
    row = {"prompt": "<image>" * 12, "txt": "A cat.", "image_name_list": NAMES, "info": {"x": 1}}
    assert said(row) == [*((0, "user", name) for name in NAMES), (1, "assistant", "A cat.")]
    assert PromptShape().shape(row).extra == {"info": {"x": 1}}


def test_key_frames_keep_their_times() -> None:
    row = {"prompt": "<Iimage>#0<Pimage>#41", "txt": "A cat.", "image_name_list": NAMES[:2]}
    assert said(row) == [
        (0, "user", NAMES[0]),
        (0, "user", "#0"),
        (0, "user", NAMES[1]),
        (0, "user", "#41"),
        (1, "assistant", "A cat."),
    ]


def test_lists_take_turns() -> None:
    row = {"prompt": ["<image>What?", "And?"], "txt": ["A cat.", "A dog."], "images": ["0.jpg"]}
    assert said(row) == [
        (0, "user", "0.jpg"),
        (0, "user", "What?"),
        (1, "assistant", "A cat."),
        (2, "user", "And?"),
        (3, "assistant", "A dog."),
    ]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"txt": "x"}, "missing field"),
        ({"prompt": "x"}, "missing field"),
        ({"prompt": ["x", "y"], "txt": ["z"]}, "missing field"),
        ({"prompt": 3, "txt": "x"}, "text is not text"),
        ({"prompt": "<image><image>", "txt": "x", "images": ["a"]}, "placeholders and media"),
    ],
)
def test_what_does_not_fit_is_a_reject(row: dict[str, Any], reason: str) -> None:
    with pytest.raises(SampleError, match=reason):
        PromptShape().shape(row)
