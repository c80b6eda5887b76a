from __future__ import annotations

from typing import Any

import pytest

from shardmill.errors import SampleError
from shardmill.sources.shapes.adapters.videochat2 import VideoChat2Shape

QA = [{"i": "Answer.", "q": "What?", "a": "A cat."}]


@pytest.mark.parametrize(
    ("media", "expected"),
    [
        ({"video": "a.mp4"}, [("video", "a.mp4", None)]),
        ({"video": "a.mp4", "start": 2, "end": 5}, [("video", "a.mp4", (2.0, 5.0))]),
        ({"image": "a.jpg"}, [("image", "a.jpg", None)]),
        ({"images": ["a.jpg", "b.jpg"]}, [("image", "a.jpg", None), ("image", "b.jpg", None)]),
    ],
)
def test_media_come_before_the_first_question(media: dict[str, Any], expected: Any) -> None:
    shaped = VideoChat2Shape().shape({**media, "QA": QA, "id": 7})
    *shown, question, answer = shaped.segments
    assert [(p.kind, p.media, p.time_s) for p in shown] == expected
    assert (question.text, question.role) == ("Answer. What?", "user")
    assert (answer.text, answer.role) == ("A cat.", "assistant")
    assert shaped.extra["id"] == 7


def test_frames_of_a_converted_row_take_their_placeholders_in_order() -> None:
    frames = [f"f/frame_{n}.jpg" for n in range(16)]
    turns = [
        {"from": "human", "value": "<image>" * 16 + "What is shown?"},
        {"from": "gpt", "value": "A clock."},
    ]
    shaped = VideoChat2Shape().shape({"images": frames, "conversations": turns})
    assert [segment.media for segment in shaped.segments[:16]] == frames


def test_without_questions_it_is_a_reject() -> None:
    with pytest.raises(SampleError, match="missing field"):
        VideoChat2Shape().shape({"video": "a.mp4"})
