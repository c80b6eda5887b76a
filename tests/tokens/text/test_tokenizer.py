"""A fast engine is used if its ids are the reference's, and never otherwise."""

from __future__ import annotations

import logging
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmill.errors import ConfigError, SampleError
from shardmill.tokens.text.huggingface import HuggingFaceText
from shardmill.tokens.text.sentencepiece import SentencePieceText
from shardmill.tokens.text.tokenizer import (
    PROBES,
    Ragged,
    TextEngine,
    TextTokenizer,
    check_text,
    choose_engine,
    json_engines,
    load_once,
    ragged,
    without_specials,
)


def lengths(texts: Sequence[str]) -> Ragged:
    return ragged([len(text)] for text in texts)


def wrong_on_control(texts: Sequence[str]) -> Ragged:
    return ragged([len(text) + ("<ctl>" in text)] for text in texts)


def failing() -> None:
    raise ValueError("no such format")


def missing() -> None:
    raise ModuleNotFoundError("fast")


def changed() -> object:
    return object().layout  # type: ignore[attr-defined]


def changed_result(texts: Sequence[str]) -> Ragged:
    raise AttributeError("layout")


def test_the_first_engine_that_agrees_is_used() -> None:
    good = TextEngine("good", lambda: lengths)
    assert choose_engine("t", lengths, [good], ["<ctl>"])[0] == "good"


@pytest.mark.parametrize(
    "build", [lambda: wrong_on_control, failing, missing, changed, lambda: changed_result]
)
def test_an_engine_that_disagrees_or_fails_is_named_in_a_warning(
    build: object, caplog: pytest.LogCaptureFixture
) -> None:
    bad = TextEngine("bad", build)  # type: ignore[arg-type]
    with caplog.at_level(logging.WARNING):
        name, encode = choose_engine("t", lengths, [bad], ["<ctl>"])
    assert (name, encode) == ("reference", lengths)
    assert "bad" in caplog.text and "slower" in caplog.text


@dataclass(frozen=True)
class Counted:
    """A tokenizer that counts how often it is loaded."""

    path: Path
    loads: ClassVar[list[str]] = []

    def load(self) -> TextTokenizer:
        self.loads.append(self.path.read_text())
        return TextTokenizer(
            name=self.loads[-1],
            vocab_size=1,
            engine="reference",
            encode_batch=lengths,
            starts=lambda text: [0],
            decode=str,
        )

    def files(self) -> list[Path]:
        return [self.path]


def test_a_tokenizer_is_loaded_again_only_if_its_files_change(tmp_path: Path) -> None:
    spec = Counted(tmp_path / "a")
    spec.path.write_text("one")
    assert load_once(spec) is load_once(spec)
    spec.path.write_text("two")
    assert load_once(spec).name == "two"
    assert spec.loads == ["one", "two"]
    with pytest.raises(ConfigError, match="cannot read"):
        load_once(Counted(tmp_path / "none"))


def test_half_a_surrogate_pair_is_no_text() -> None:
    assert check_text("a\x00é😀") == "a\x00é😀"
    with pytest.raises(SampleError, match=r"character 1 is U\+D83D"):
        check_text("a\ud83d")


def test_the_probe_speaks_many_scripts() -> None:
    names = {unicodedata.name(c, "NONE").split()[0] for c in "".join(PROBES)}
    wanted = {"LATIN", "CYRILLIC", "GREEK", "HEBREW", "ARABIC", "DEVANAGARI", "THAI", "CJK"}
    assert wanted | {"HANGUL", "HIRAGANA", "KATAKANA", "GEORGIAN", "ETHIOPIC", "TAMIL"} <= names
    assert "" in PROBES and any("\x00" in text for text in PROBES)


@given(st.lists(st.lists(st.integers(0, 2**32 - 1), max_size=5), max_size=8))
def test_lists_come_back(lists: list[list[int]]) -> None:
    found = ragged(lists)
    assert len(found) == len(lists)
    assert [ids.tolist() for ids in found] == lists
    assert [found[i].tolist() for i in range(len(found))] == lists
    assert found.lengths.tolist() == [len(ids) for ids in lists]
    assert found.same(ragged(lists))
    assert found.same(ragged(found))
    assert not found.same(ragged([*lists, []]))


def test_control_tokens_and_post_processing_are_taken_out() -> None:
    tokens = [{"content": "<s>", "special": True}, {"content": "<tool>", "special": False}]
    plain = {"added_tokens": tokens, "post_processor": {"type": "x"}, "model": {}, "padding": 1}
    assert orjson.loads(without_specials(orjson.dumps(plain))) == {
        "added_tokens": [tokens[1]],
        "post_processor": None,
        "truncation": None,
        "padding": None,
        "model": {},
    }


def test_all_engines_agree_on_real_text(qwen_dir: Path, real_texts: list[str]) -> None:
    plain = without_specials((qwen_dir / "tokenizer.json").read_bytes())
    gigatoken, fastokens = (engine.build() for engine in json_engines(plain))
    assert gigatoken(real_texts).same(fastokens(real_texts))
    for encode in (gigatoken, fastokens):
        assert encode([]).same(ragged([]))
        assert encode(["", ""]).same(ragged([[], []]))


def test_engines_agree_with_their_references_on_any_mix_of_the_vocabulary(
    qwen: TextTokenizer, qwen_dir: Path, bundled: TextTokenizer
) -> None:
    # Random tokens one after the other: megabytes in every script that the vocabulary knows,
    # with word breaks where no text would have them.
    random = np.random.default_rng(0)
    slow_qwen = HuggingFaceText(path=qwen_dir, engine="reference").load()
    slow_bundled = SentencePieceText(path=Path("bundled"), engine="reference").load()
    for fast, slow in ((qwen, slow_qwen), (bundled, slow_bundled)):
        ids = random.integers(100, fast.vocab_size, (600, 400))
        texts = [fast.decode(row.tolist()) for row in ids]
        assert sum(len(text.encode()) for text in texts) > 1_000_000
        assert fast.engine == "gigatoken"
        assert fast.encode_batch(texts).same(slow.encode_batch(texts))
