"""What is said of media in lists: questions with answers, or turns, as one conversation.

    [{"i": "Look.", "q": "What?", "a": "A cat."}]    instruction and question ask, "a" answers
    [{"from": "human", "value": "What?"}, {"from": "gpt", "value": "A cat."}]

Rows whose questions hold no placeholder mean their media before the first question.
"""

from __future__ import annotations

from typing import Any

from shardmill.errors import SampleError
from shardmill.sources.shapes.llava import LlavaShape
from shardmill.sources.shapes.placeholders import count_placeholders
from shardmill.sources.shapes.shaped import Piece

ANSWER = "a"


def talk_pieces(value: Any, images: list[Any], videos: list[Any]) -> list[Piece]:
    """Return the pieces of a conversation about media."""
    turns = _turns(value)
    asked = [turn for turn in turns if turn.get("from") not in ("gpt", "assistant")]
    texts = [turn["value"] for turn in asked if isinstance(turn.get("value"), str)]
    if asked and not any(map(count_placeholders, texts)):
        shown = "<image>" * len(images) + "<video>" * len(videos)
        asked[0]["value"] = f"{shown}{asked[0].get('value') or ''}"
    row = {"conversations": turns, "images": images, "videos": videos}
    return list(LlavaShape().shape(row).pieces)


def _turns(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not value or not all(isinstance(t, dict) for t in value):
        raise SampleError("empty conversation", f"{value!r:.100} is no list of turns")
    if ANSWER not in value[0]:
        return [dict(turn) for turn in value]
    return [turn for number, qa in enumerate(value) for turn in _question(qa, number)]


def _question(qa: dict[str, Any], number: int) -> list[dict[str, Any]]:
    answer = qa.get(ANSWER)
    asked = [text for name, text in qa.items() if name != ANSWER and text]
    if not isinstance(answer, str) or not all(isinstance(text, str) for text in asked):
        raise SampleError("missing field", f"question {number} has no text or answer: {qa!r:.100}")
    return [{"from": "human", "value": " ".join(asked)}, {"from": "gpt", "value": answer}]
