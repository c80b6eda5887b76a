"""Conversations without role markers: answers and their ends are learned."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shardmill.errors import SampleError
from shardmill.model.rng import SampleRng
from shardmill.model.sample import Document, Sample, Segment
from shardmill.model.space import TokenSpace
from shardmill.tokens.templates.documents import Turns
from shardmill.tokens.templates.template import Medium, Text, Token
from shardmill.tokens.text.tokenizer import TextTokenizer

SPACE = TokenSpace(text_size=32_768, added=("im_patch", "im_start", "im_end"))
RNG = SampleRng(0, 0, "k")


def test_answers_end_with_eos_and_are_learned(
    bundled: TextTokenizer, chat_of: Callable[..., Sample]
) -> None:
    render = Turns().bind(bundled, SPACE)
    turns = chat_of(("user", "Why?"), ("assistant", "So."), ("user", "Ah"), ("assistant", ""))
    assert render(turns, RNG) == [
        Token(1),
        Text((("Why?", False),)),
        Text((("So.", True),)),
        Token(2, True),
        Text((("Ah", False),)),
        Text((("", True),)),
        Token(2, True),
    ]


def test_images_stand_where_they_were_said(bundled: TextTokenizer) -> None:
    image = Segment(kind="image", media="0.jpg", role="user")
    words = Segment(kind="text", text="#0 what?", role="user")
    sample = Sample(key="k", document=Document((image, words, image)))
    assert Turns(bos=False).bind(bundled, SPACE)(sample, RNG) == [
        Medium(image),
        Text((("#0 what?", False),)),
        Medium(image),
    ]


@pytest.mark.parametrize(
    ("segments", "reason"),
    [
        ((), "empty conversation"),
        ((Segment(kind="text", text="a"),), r"not a conversation.*--template"),
        ((Segment(kind="text", text="a", role="wizard"),), "unknown role"),
    ],
)
def test_what_is_no_conversation_is_a_reject(
    bundled: TextTokenizer, segments: tuple[Segment, ...], reason: str
) -> None:
    sample = Sample(key="k", document=Document(segments))
    with pytest.raises(SampleError, match=reason):
        Turns().bind(bundled, SPACE)(sample, RNG)


def test_tool_calls_need_a_chat_template(
    bundled: TextTokenizer, chat_of: Callable[..., Sample]
) -> None:
    calls = {"1": {"tool_calls": [{"name": "f"}]}}
    sample = chat_of(("user", "q"), ("assistant", ""), turn_fields=calls)
    with pytest.raises(SampleError, match="tool calls"):
        Turns().bind(bundled, SPACE)(sample, RNG)
