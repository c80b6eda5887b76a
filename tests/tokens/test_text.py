"""A fast engine is used if its ids are the reference's, and never otherwise."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest

from shardmill.errors import SampleError
from shardmill.tokens.ragged import Ragged, ragged
from shardmill.tokens.text import Engine, check_text, choose_engine


def lengths(texts: Sequence[str]) -> Ragged:
    return ragged([len(text)] for text in texts)


def wrong_on_control(texts: Sequence[str]) -> Ragged:
    return ragged([len(text) + ("<ctl>" in text)] for text in texts)


def failing() -> None:
    raise ValueError("no such format")


def missing() -> None:
    raise ModuleNotFoundError("fast")


def test_the_first_engine_that_agrees_is_used() -> None:
    good = Engine("good", lambda: lengths)
    assert choose_engine("t", lengths, [good], ["<ctl>"])[0] == "good"


@pytest.mark.parametrize("build", [lambda: wrong_on_control, failing, missing])
def test_an_engine_that_disagrees_or_fails_is_named_in_a_warning(
    build: object, caplog: pytest.LogCaptureFixture
) -> None:
    bad = Engine("bad", build)  # type: ignore[arg-type]
    with caplog.at_level(logging.WARNING):
        name, encode = choose_engine("t", lengths, [bad], ["<ctl>"])
    assert (name, encode) == ("reference", lengths)
    assert "bad" in caplog.text and "slower" in caplog.text


def test_half_a_surrogate_pair_is_no_text() -> None:
    assert check_text("a\x00é😀") == "a\x00é😀"
    with pytest.raises(SampleError, match=r"character 1 is U\+D83D"):
        check_text("a\ud83d")
