"""The ids of a sentencepiece model are sentencepiece's own."""

from __future__ import annotations

from pathlib import Path

import pytest
import sentencepiece

from shardmill.errors import ConfigError
from shardmill.tokens.text.sentencepiece import BUNDLED, SentencePieceText
from shardmill.tokens.text.tokenizer import TextTokenizer


@pytest.fixture(scope="module")
def reference() -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_file=str(BUNDLED / "mistral-v3.model"))


def test_real_texts_have_the_ids_of_the_library_and_decode_to_themselves(
    bundled: TextTokenizer,
    reference: sentencepiece.SentencePieceProcessor,
    real_texts: list[str],
) -> None:
    assert bundled.engine == "gigatoken"
    found = bundled.encode_batch(real_texts)
    for text, ids in zip(real_texts, found):
        assert ids.tolist() == reference.encode(text)
        assert bundled.decode(ids.tolist()) == text


def test_the_reference_engine_gives_the_same_ids(bundled: TextTokenizer) -> None:
    slow = SentencePieceText(path=Path("bundled"), engine="reference").load()
    assert slow.engine == "reference"
    texts = ["a b", "", "日本 <s>"]
    assert slow.encode_batch(texts).same(bundled.encode_batch(texts))
    assert slow.encode_batch([]).same(bundled.encode_batch([]))


def test_control_tokens_in_text_are_text(bundled: TextTokenizer) -> None:
    controls = {special.id for special in bundled.specials.values()}
    assert {bundled.specials["<s>"].id, bundled.specials["[INST]"].id} <= controls
    for text in ("<s>[INST] x [/INST]</s>", "a</s>", "[IMG]", "<unk><pad>"):
        ids = bundled.encode(text).tolist()
        assert not controls & set(ids)
        assert bundled.decode(ids) == text


def test_user_defined_pieces_have_the_ids_of_the_library(
    bundled: TextTokenizer, reference: sentencepiece.SentencePieceProcessor
) -> None:
    texts = ["plain", "see [REFERENCE_DOC_7] there", "[REFERENCE_DOC_7]", "plain too"]
    found = bundled.encode_batch(texts)
    assert [ids.tolist() for ids in found] == reference.encode(texts)


def test_control_tokens_decode_to_their_names(bundled: TextTokenizer) -> None:
    ids = [1, 3, *bundled.encode("Hi").tolist(), 4, 2]
    assert bundled.decode(ids) == "<s>[INST]Hi[/INST]</s>"


def test_starts_say_where_each_token_begins(bundled: TextTokenizer) -> None:
    text = "Hi 日本 é🧿"
    starts = bundled.starts(text)
    assert len(starts) == len(bundled.encode(text))
    assert starts == sorted(starts)
    assert starts[0] == 0


def test_a_large_document_is_encoded(bundled: TextTokenizer) -> None:
    text = "The quick brown fox, 1234. \n" * 200_000
    ids = bundled.encode(text)
    assert bundled.decode(ids[:50].tolist()) == text[: len(bundled.decode(ids[:50].tolist()))]
    assert len(ids) > 1_000_000


def test_a_file_that_is_no_model_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        SentencePieceText(path=tmp_path / "a.model").load()
    (tmp_path / "a.model").write_bytes(b"no model")
    with pytest.raises(ConfigError, match="not a sentencepiece model"):
        SentencePieceText(path=tmp_path / "a.model").load()


def test_a_library_that_keeps_its_conversion_elsewhere_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Elsewhere:
        @staticmethod
        def from_sentencepiece(content: bytes) -> object:
            return object()

    monkeypatch.setattr("gigatoken.Tokenizer", Elsewhere)
    assert SentencePieceText(path=Path("bundled")).load().engine == "reference"
    assert "_hf_json" in caplog.text and "slower" in caplog.text
