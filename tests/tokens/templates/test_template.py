"""Control tokens are found by name, and plain text is learned whole between bos and eos."""

from __future__ import annotations

import pytest

from shardmill.errors import ConfigError, SampleError
from shardmill.model.rng import SampleRng
from shardmill.model.sample import Document, Sample, Segment
from shardmill.model.space import TokenSpace
from shardmill.tokens.templates.template import PlainText, Text, Token, control_ids
from shardmill.tokens.text.tokenizer import TextTokenizer

SPACE = TokenSpace(text_size=32_768)
RNG = SampleRng(0, 0, "k")


def sample(*texts: str) -> Sample:
    return Sample(key="k", document=Document(tuple(Segment(kind="text", text=t) for t in texts)))


def test_text_stands_between_its_ends(bundled: TextTokenizer) -> None:
    both = PlainText(bos=True).bind(bundled, SPACE)
    body = Text((("a\nb", True),))
    assert both(sample("a", "b"), RNG) == [Token(1, True), body, Token(2, True)]
    assert PlainText(eos=False).bind(bundled, SPACE)(sample("a", "b"), RNG) == [body]
    assert both(sample(""), RNG) == [Token(1, True), Text((("", True),)), Token(2, True)]


def test_an_image_in_plain_text_is_a_reject(bundled: TextTokenizer) -> None:
    image = Sample(key="k", document=Document((Segment(kind="image", media="jpg"),)))
    with pytest.raises(SampleError, match="media in plain text"):
        PlainText().bind(bundled, SPACE)(image, RNG)


def test_a_space_may_name_another_end(qwen: TextTokenizer) -> None:
    space = TokenSpace(text_size=151_665, specials={"eos": 151_643})
    render = PlainText().bind(qwen, space)
    assert render(sample("a"), RNG)[-1] == Token(151_643, True)
    with pytest.raises(ConfigError, match="no token 'bos'"):
        PlainText(bos=True).bind(qwen, space)


def test_the_space_comes_first(bundled: TextTokenizer) -> None:
    find = control_ids(bundled, TokenSpace(text_size=32_768, specials={"eos": 9}, added=("boi",)))
    assert [find(name) for name in ("boi", "eos", "bos", "[INST]")] == [32_768, 9, 1, 3]
    with pytest.raises(ConfigError, match="no token 'eoi'"):
        find("eoi")
