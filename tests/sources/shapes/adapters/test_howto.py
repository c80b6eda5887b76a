from __future__ import annotations

from typing import Any

import pytest

from shardmill.errors import SampleError
from shardmill.sources.shapes.adapters.howto import HowtoInterlinkShape


def test_clips_and_captions_alternate() -> None:
    row = {
        "video_id": "x",
        "clips": [
            {"clip_path": "/d/train/x/clip_0", "caption": "A box.", "clip": [0, 4.5]},
            {"clip_path": "/d/train/x/clip_1", "caption": "A saw."},
            {"clip_path": "/d/train/x/clip_2", "caption": "Dust.", "start": "00:08", "end": 9},
        ],
        "summary": "Woodwork.",
    }
    shaped = HowtoInterlinkShape().shape(row)
    assert [(p.kind, p.media or p.text, p.turn, p.time_s) for p in shaped.segments] == [
        ("video", "train/x/clip_0.mp4", 0, None),
        ("text", "A box.", 0, (0.0, 4.5)),
        ("video", "train/x/clip_1.mp4", 1, None),
        ("text", "A saw.", 1, None),
        ("video", "train/x/clip_2.mp4", 2, None),
        ("text", "Dust.", 2, (8.0, 9.0)),
        ("text", "Woodwork.", 3, None),
    ]
    assert shaped.extra == {"video_id": "x"}


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({}, "missing field"),
        ({"clips": []}, "missing field"),
        ({"clips": ["x"]}, "missing field"),
        ({"clips": [{"caption": "x"}]}, "missing field"),
        ({"clips": [{"clip_path": "x"}]}, "missing caption"),
        ({"clips": [{"clip_path": "x", "caption": "y", "clip": [3, 1]}]}, "bad clip"),
        ({"clips": [{"clip_path": "x", "caption": "y", "clip": [3]}]}, "bad clip"),
    ],
)
def test_clips_that_lack_something_make_the_row_a_reject(row: Any, reason: str) -> None:
    with pytest.raises(SampleError) as error:
        HowtoInterlinkShape().shape(row)
    assert error.value.reason == reason
