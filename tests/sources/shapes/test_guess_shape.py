from __future__ import annotations

from typing import Any

import pytest

from shardmill.errors import ConfigError
from shardmill.sources.shapes.guess_shape import guess_shape

TURN = {"from": "human", "value": "x"}


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"segments": [], "extra": {}}, "DocumentShape"),
        ({"image": "a", "conversations": [TURN], "text": "x"}, "LlavaShape"),
        ({"messages": [{"role": "user", "content": "x"}], "images": []}, "MessagesShape"),
        ({"text_list": ["a"], "image_info": []}, "Mmc4Shape"),
        ({"image_path": "a", "text_prompt": "t"}, "LiquidShape"),
        ({"image_path": "a", "text": "t"}, "PairShape"),
        ({"url": "http://x/a.jpg", "caption": "t"}, "PairShape"),
        ({"video": "a.mp4", "text": "t"}, "PairShape"),
        ({"text": "t", "url": "http://page"}, "TextShape"),
        ({"content": "t"}, "TextShape"),
        ({"video_path": "a.mp4", "value": "t"}, "VideoShape"),
        ({"video_path": "a.mp4", "value": [TURN]}, "VideoShape"),
        ({"video": "a.mp4", "QA": [{"q": "x", "a": "y"}]}, "VideoChat2Shape"),
        ({"clips": [{"clip_path": "a", "caption": "t"}]}, "HowtoInterlinkShape"),
        ({"prompt": "<image>", "txt": "t", "images": ["a"]}, "PromptShape"),
        ({"clip_path": "a/b/c", "caption": "t"}, "How2LinkShape"),
        ({"image_info": [{"image_name": "a"}], "text_list": "<image>#1#x"}, "MerlinShape"),
        ({"YoutubeID": "a", "Start_timestamp": "0", "Caption": "t"}, "InternVidShape"),
        ({"source": "a.jpg", "target": "b.jpg", "prompt": "t"}, "UniControlShape"),
    ],
)
def test_the_fields_tell_the_shape(row: dict[str, Any], expected: str) -> None:
    assert type(guess_shape([row])).__name__ == expected


def test_most_rows_decide() -> None:
    rows = [{"image": "a", "caption": "t"}] * 3 + [{"x": 1}] * 2
    assert type(guess_shape(rows)).__name__ == "PairShape"


@pytest.mark.parametrize("rows", [[], [{"x": 1, "y": 2}]])
def test_no_shape_is_an_error_that_lists_what_was_seen(rows: list[dict[str, Any]]) -> None:
    with pytest.raises(ConfigError, match=r"fields are (x, y|none): say which of"):
        guess_shape(rows)
