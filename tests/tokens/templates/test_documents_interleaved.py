"""A page keeps its order; images may change sides with their sentence, as rng say."""

from __future__ import annotations

import pytest

from shardmill.errors import ConfigError
from shardmill.model.rng import SampleRng
from shardmill.model.sample import Document, Sample, Segment
from shardmill.model.space import TokenSpace
from shardmill.tokens.templates.documents import Interleaved
from shardmill.tokens.templates.template import Medium, Piece, Text
from shardmill.tokens.text.tokenizer import TextTokenizer

SPACE = TokenSpace(text_size=32_768, added=("boi", "eoi"), num_codes=8)
ONE, TWO = Segment(kind="image", media="0.jpg"), Segment(kind="image", media="1.jpg")


def said(text: str) -> Segment:
    return Segment(kind="text", text=text)


PAGE = Sample(key="k", document=Document((said("a"), said("b"), ONE, said("c"), TWO)))


def render(template: Interleaved, tokenizer: TextTokenizer, key: str = "k") -> list[Piece]:
    return template.bind(tokenizer, SPACE)(PAGE, SampleRng(0, 0, key))[1:-1]


def test_every_segment_stays_in_its_place(bundled: TextTokenizer) -> None:
    assert render(Interleaved(), bundled) == [
        Text((("a\nb", True),)),
        Medium(ONE, loss=True, loss_on_start=True),
        Text((("c", True),)),
        Medium(TWO, loss=True, loss_on_start=True),
    ]


def test_an_image_moves_behind_its_sentence(bundled: TextTokenizer) -> None:
    behind = render(Interleaved(image_first=0.0, separator=" "), bundled)
    assert [type(piece) for piece in behind] == [Text, Medium, Medium]
    assert behind[0] == Text((("a b c", True),))
    first = [
        isinstance(render(Interleaved(image_first=0.8), bundled, str(n))[1], Medium)
        and render(Interleaved(image_first=0.8), bundled, str(n))[0] == Text((("a\nb", True),))
        for n in range(300)
    ]
    assert 0.7 < sum(first) / 300 < 0.9


def test_what_is_learned_can_be_chosen(bundled: TextTokenizer) -> None:
    only_text = render(Interleaved(learn="text"), bundled)
    assert (only_text[0], only_text[1]) == (Text((("a\nb", True),)), Medium(ONE))
    only_media = render(Interleaved(learn="media"), bundled)
    assert only_media[0] == Text((("a\nb", False),))


def test_a_chance_lies_between_0_and_1() -> None:
    with pytest.raises(ConfigError):
        Interleaved(image_first=2.0)
