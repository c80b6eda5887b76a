"""Ids are those of the library tokenizers, counts those of tokenizers in transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from hf_processors import make_tokenizer, transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from shardmill.errors import ConfigError, FormatError
from shardmill.tokens.text.huggingface import (
    HuggingFaceText,
    TextCounter,
    load_counter,
    tokenizer_files,
)
from shardmill.tokens.text.tokenizer import Special, TextTokenizer

TEXTS = st.lists(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
    | st.sampled_from(["<|im_start|>", " <|im_end|> ", "<s>", "\n\n\n", "a  b"]),
    max_size=6,
).map("".join)


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


@pytest.mark.parametrize("content", ["{", "{}", '"a"', "\xff"])
def test_a_broken_tokenizer_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content, "latin-1")
    with pytest.raises(FormatError, match=r"tokenizer\.json: is not (JSON|a tokenizer)"):
        HuggingFaceText(path=tmp_path).load()


def test_a_missing_tokenizer_says_that_nothing_is_downloaded(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing is downloaded"):
        HuggingFaceText(path=Path("org/model")).load()
    with pytest.raises(ConfigError, match="nothing is downloaded"):
        load_counter(tmp_path)


@pytest.fixture(scope="module", params=[False, True])
def pair(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, TextCounter]:
    """Return a tokenizer of transformers and the counter of its saved files."""
    tokenizer = make_tokenizer("<image>", bos=request.param)
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save_pretrained(folder)
    return tokenizer, load_counter(folder)


@settings(max_examples=100, deadline=None)
@given(texts=st.lists(TEXTS, max_size=5))
def test_counts_are_those_of_the_tokenizer_in_transformers(
    pair: tuple[Any, TextCounter], texts: list[str]
) -> None:
    tokenizer, counter = pair
    expected = [len(tokenizer(text)["input_ids"]) for text in texts]
    np.testing.assert_array_equal(counter.rendered_lengths(texts), expected)


@pytest.mark.parametrize("setting", [{}, {"legacy": True}, {"add_prefix_space": False}])
def test_llama_is_counted_as_transformers_loads_it(
    setting: dict[str, bool], tmp_path: Path
) -> None:
    """Whatever tokenizer.json says of spaces: here, as in old files, one before every text."""
    hf = transformers()
    from tokenizers import Tokenizer, models, normalizers, trainers

    engine = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    engine.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    special = ["<unk>", "<s>", "</s>", "<image>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=special, show_progress=False)
    engine.train_from_iterator(["a cat sits. two  cats", "the mat\n"] * 9, trainer)
    plain = orjson.loads(engine.to_str())
    plain["added_tokens"] = [t for t in plain["added_tokens"] if not t["content"].startswith("<0")]
    (tmp_path / "tokenizer.json").write_bytes(orjson.dumps(plain))
    config = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", **setting}
    (tmp_path / "tokenizer_config.json").write_bytes(orjson.dumps(config))
    tokenizer = hf.AutoTokenizer.from_pretrained(tmp_path)
    texts = ["a cat", " a cat", "a<image>cat <image> sits", "<s>two  cats", "", " ", "\n<image>"]
    expected = [len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts]
    counter = load_counter(tmp_path)
    np.testing.assert_array_equal(counter.lengths(texts), expected)


def test_the_reference_and_the_fast_engine_agree(tmp_path: Path) -> None:
    make_tokenizer("<image>").save_pretrained(tmp_path)
    fast, reference = load_counter(tmp_path), load_counter(tmp_path, "reference")
    assert reference.engine == "reference"
    texts = ["a cat<image><image>sits", "\n" * 7, ""]
    np.testing.assert_array_equal(fast.lengths(texts), reference.lengths(texts))


def test_what_the_tokenizer_adds_is_not_added_twice(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(bos=True)
    tokenizer.bos_token = "<s>"
    tokenizer.save_pretrained(tmp_path)
    counter = load_counter(tmp_path)
    assert counter.num_added == 1
    begun, bare = counter.rendered_lengths(["<s>a", "a"])
    assert begun == bare


def test_all_files_that_decide_the_counts_are_listed(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = "x"
    tokenizer.save_pretrained(tmp_path)
    names = {path.name for path in tokenizer_files(tmp_path)}
    assert names == {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
    assert load_counter(tmp_path / "tokenizer.json").chat_template == "x"
