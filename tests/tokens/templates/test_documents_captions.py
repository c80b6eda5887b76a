"""Captions without roles: media and their marks ask, texts answer."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shardmill.errors import SampleError
from shardmill.model.rng import SampleRng
from shardmill.model.sample import Document, Sample, Segment
from shardmill.model.space import TokenSpace
from shardmill.tokens.templates.documents import Captions, Turns, with_roles
from shardmill.tokens.templates.template import Medium, Text, Token
from shardmill.tokens.text.tokenizer import TextTokenizer

SPACE = TokenSpace(text_size=32_768, added=("im_patch", "im_start", "im_end"))
RNG = SampleRng(0, 0, "k")


def frame(number: int) -> Segment:
    return Segment(kind="image", media=f"{number}.jpg", time_s=(number, number))


def mark(number: int) -> Segment:
    return Segment(kind="text", text=f"#{number}", time_s=(number, number))


def said(text: str, time_s: tuple[float, float] | None = None) -> Segment:
    return Segment(kind="text", text=text, time_s=time_s)


def voices(*segments: Segment, question: str = "") -> list[tuple[str | None, int, str]]:
    found = with_roles(Document(segments), question)
    return [(s.role, s.turn, s.text or s.media) for s in found]


def test_frames_ask_and_the_caption_answers() -> None:
    assert voices(frame(0), frame(1), said("A cat.")) == [
        ("user", 0, "0.jpg"),
        ("user", 0, "1.jpg"),
        ("assistant", 1, "A cat."),
    ]


def test_marks_belong_to_their_frames() -> None:
    assert voices(frame(0), mark(0), frame(1), mark(1), said("A cat.")) == [
        ("user", 0, "0.jpg"),
        ("user", 0, "#0"),
        ("user", 0, "1.jpg"),
        ("user", 0, "#1"),
        ("assistant", 1, "A cat."),
    ]


def test_a_text_of_a_stretch_of_time_is_no_mark() -> None:
    assert voices(frame(0), said("A cat.", (0.0, 4.0)))[-1] == ("assistant", 1, "A cat.")


def test_clips_take_turns_and_each_is_asked_for() -> None:
    made = voices(frame(0), said("One."), frame(1), said("Two."), said("Both."), question="What?")
    assert made == [
        ("user", 0, "0.jpg"),
        ("user", 0, "What?"),
        ("assistant", 1, "One."),
        ("user", 2, "1.jpg"),
        ("user", 2, "What?"),
        ("assistant", 3, "Two."),
        ("assistant", 3, "Both."),
    ]


def test_what_is_learned(bundled: TextTokenizer) -> None:
    sample = Sample(key="k", document=Document((frame(0), mark(0), said("A cat."))))
    pieces = Captions().bind(bundled, SPACE)(sample, RNG)
    assert [type(piece) for piece in pieces] == [Token, Medium, Text, Text, Token]
    assert pieces[2:] == [Text((("#0", False),)), Text((("A cat.", True),)), Token(2, True)]
    asked = Captions(questions=("What?",), turns=Turns(bos=False)).bind(bundled, SPACE)
    assert asked(sample, RNG)[1] == Text((("#0\nWhat?", False),))


def test_conversations_stay_as_they_are(
    bundled: TextTokenizer, chat_of: Callable[..., Sample]
) -> None:
    chat = chat_of(("user", "Why?"), ("assistant", "So."))
    expected = Turns().bind(bundled, SPACE)(chat, RNG)
    assert Captions(questions=("What?",)).bind(bundled, SPACE)(chat, RNG) == expected


def test_media_without_words_are_a_reject(bundled: TextTokenizer) -> None:
    sample = Sample(key="k", document=Document((frame(0),)))
    with pytest.raises(SampleError, match="missing caption"):
        Captions().bind(bundled, SPACE)(sample, RNG)
