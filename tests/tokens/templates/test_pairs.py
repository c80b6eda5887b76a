"""A pair is drawn, described, or by chance one of the two; the choice is the sample's own."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from shardmill.errors import ConfigError, SampleError
from shardmill.model.rng import SampleRng
from shardmill.model.sample import Document, Sample, Segment
from shardmill.model.space import TokenSpace
from shardmill.tokens.templates.pairs import CaptionPair, MixedPairs
from shardmill.tokens.templates.template import Medium, Piece, Text, Token, text
from shardmill.tokens.text.tokenizer import TextTokenizer

SPACE = TokenSpace(text_size=32_768, added=("boi", "eoi", "unconditional"), num_codes=8)
IMAGE, CAPTION = Segment(kind="image", media="jpg"), Segment(kind="text", text="a cat")
PAIR = Sample(key="k", document=Document((IMAGE, CAPTION)))
BOS, EOS = Token(1), Token(2, True)
TextToImage = partial(MixedPairs, t2i_ratio=1.0)
ImageToText = partial(MixedPairs, t2i_ratio=0.0)


def render(template: Any, tokenizer: TextTokenizer, key: str = "k", epoch: int = 0) -> list[Piece]:
    pieces: list[Piece] = template.bind(tokenizer, SPACE)(PAIR, SampleRng(0, epoch, key))
    return pieces


def test_text_to_image_learns_the_image_and_its_end(bundled: TextTokenizer) -> None:
    asked = TextToImage(instructions=("Draw it.",))
    expected = [BOS, Text((("a cat Draw it.", False),)), Medium(IMAGE, loss=True), EOS]
    assert render(asked, bundled) == expected
    assert render(TextToImage(instructions=()), bundled)[1] == Text((("a cat", False),))


def test_image_to_text_learns_the_caption_and_its_end(bundled: TextTokenizer) -> None:
    answer = Text((("Caption:", False), (" a cat", True)))
    assert render(ImageToText(prompts=("Caption:",)), bundled) == [
        BOS,
        Medium(IMAGE),
        answer,
        EOS,
    ]
    assert render(ImageToText(prompts=()), bundled)[2] == Text((("a cat", True),))
    apart = ImageToText(prompts=("Caption:",), joined=False)
    assert render(apart, bundled)[2:4] == [text("Caption:"), text("a cat", True)]


def test_instructions_come_from_a_file_with_one_a_line(
    bundled: TextTokenizer, tmp_path: Path
) -> None:
    pool = tmp_path / "pool.txt"
    pool.write_text(" Draw it. \n\nPaint it — now.\r\n", "utf-8")
    asked = {
        cast(Text, render(TextToImage(instructions=pool), bundled, key=str(n))[1]).parts[0][0]
        for n in range(40)
    }
    assert asked == {"a cat Draw it.", "a cat Paint it — now."}
    pool.write_text(" \n")
    with pytest.raises(ConfigError, match=r"pool.txt is empty"):
        TextToImage(instructions=pool).bind(bundled, SPACE)
    with pytest.raises(ConfigError, match=r"cannot read .*absent\.txt"):
        TextToImage(instructions=tmp_path / "absent.txt").bind(bundled, SPACE)
    with pytest.raises(ConfigError, match="instructions=FILE"):
        TextToImage(instructions=None).bind(bundled, SPACE)
    assert ImageToText(instructions=None).bind(bundled, SPACE)


def test_a_caption_pair_is_learned_whole(bundled: TextTokenizer) -> None:
    bos, caption, image, eos = render(CaptionPair(), bundled)
    assert (bos, eos) == (Token(1, True), EOS)
    assert caption == text("a cat", True)
    assert image == Medium(IMAGE, loss=True, loss_on_start=True)
    assert render(CaptionPair(first="image"), bundled)[1:3] == [image, caption]


def test_unconditional_takes_the_place_of_all_text(bundled: TextTokenizer) -> None:
    always = TextToImage(unconditional=1.0)
    assert render(always, bundled) == [BOS, Token(32_770), Medium(IMAGE, loss=True), EOS]
    share = sum(
        render(TextToImage(unconditional=0.1), bundled, key=str(n))[1] == Token(32_770)
        for n in range(1000)
    )
    assert 60 < share < 140


def is_drawn(pieces: list[Piece]) -> bool:
    return isinstance(pieces[-2], Medium)


@pytest.mark.parametrize("ratio", [0.0, 0.25, 1.0])
def test_the_ratio_is_kept_and_the_choice_belongs_to_key_and_epoch(
    bundled: TextTokenizer, ratio: float
) -> None:
    mixed = MixedPairs(t2i_ratio=ratio)
    drawn = [is_drawn(render(mixed, bundled, key=str(n))) for n in range(400)]
    assert abs(sum(drawn) - 400 * ratio) <= 40
    assert drawn == [is_drawn(render(mixed, bundled, key=str(n))) for n in range(400)]
    other = [is_drawn(render(mixed, bundled, key=str(n), epoch=1)) for n in range(400)]
    assert (other == drawn) == (ratio in (0.0, 1.0))


def test_a_text_only_row_is_plain_text(bundled: TextTokenizer) -> None:
    row = Sample(key="k", document=Document((CAPTION,)))
    pieces = MixedPairs().bind(bundled, SPACE)(row, SampleRng(0, 0, "k"))
    assert pieces == [Token(1, True), Text((("a cat", True),)), EOS]


def test_two_images_are_no_pair(bundled: TextTokenizer) -> None:
    row = Sample(key="k", document=Document((IMAGE, IMAGE, CAPTION)))
    with pytest.raises(SampleError, match="not a pair"):
        TextToImage().bind(bundled, SPACE)(row, SampleRng(0, 0, "k"))


def test_chances_lie_between_0_and_1() -> None:
    with pytest.raises(ConfigError):
        TextToImage(unconditional=1.5)
    with pytest.raises(ConfigError):
        MixedPairs(t2i_ratio=-0.1)
