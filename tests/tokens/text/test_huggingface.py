"""The ids of a tokenizer.json are those of the library tokenizers."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from shardmill.errors import ConfigError
from shardmill.tokens.text.huggingface import HuggingFaceText
from shardmill.tokens.text.tokenizer import Special, TextTokenizer


def test_real_texts_have_the_ids_of_the_library_and_decode_to_themselves(
    qwen: TextTokenizer, qwen_dir: Path, real_texts: list[str]
) -> None:
    import unicodedata

    assert qwen.engine == "gigatoken"
    reference = Tokenizer.from_file(str(qwen_dir / "tokenizer.json"))
    reference.encode_special_tokens = True
    expected = reference.encode_batch(real_texts, add_special_tokens=False)
    for text, ids, encoding in zip(real_texts, qwen.encode_batch(real_texts), expected):
        assert ids.tolist() == encoding.ids
        # This tokenizer composes accents (NFC) before it encodes.
        assert qwen.decode(ids.tolist()) == unicodedata.normalize("NFC", text)


def test_control_tokens_in_text_are_text(qwen: TextTokenizer) -> None:
    controls = {special.id for special in qwen.specials.values()}
    for token in qwen.specials:
        ids = qwen.encode(f"a {token}{token} b").tolist()
        assert not controls & set(ids)
        assert qwen.decode(ids) == f"a {token}{token} b"


def test_other_added_tokens_keep_their_ids_with_every_engine(
    qwen: TextTokenizer, qwen_dir: Path
) -> None:
    slow = HuggingFaceText(path=qwen_dir, engine="reference").load()
    for tokenizer in (qwen, slow):
        ids = tokenizer.encode("<tool_call>x</tool_call><|im_end|>").tolist()
        assert (ids[0], ids[2]) == (151_657, 151_658)
        assert 151_645 not in ids


def test_what_the_model_folder_says_is_known(qwen: TextTokenizer, qwen_dir: Path) -> None:
    assert qwen.vocab_size == 151_665
    assert qwen.roles == {"eos": 151_645, "pad": 151_643}
    assert qwen.specials["<|im_start|>"] == Special(151_644)
    assert "<tool_call>" not in qwen.specials
    assert qwen.chat_template is not None and "<|im_start|>" in qwen.chat_template
    assert qwen.variables["eos_token"] == "<|im_end|>"
    assert HuggingFaceText(path=qwen_dir / "tokenizer.json").load().vocab_size == 151_665


def test_a_tokenizer_that_no_fast_engine_can_load_works(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    found = HuggingFaceText(path=tmp_path).load()
    assert found.engine == "reference"
    assert "slower" in caplog.text
    assert found.encode("b a c").tolist() == [1, 0, 2]
    assert found.chat_template is None


def test_a_missing_tokenizer_says_that_nothing_is_downloaded(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing is downloaded"):
        HuggingFaceText(path=Path("org/model")).load()
