from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from hf_processors import make_tokenizer, transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from shardmill.errors import ConfigError
from shardmill.tokens.count import TextCounter, counter_files, load_counter

TEXTS = st.lists(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
    | st.sampled_from(["<|im_start|>", " <|im_end|> ", "<s>", "\n\n\n", "a  b"]),
    max_size=6,
).map("".join)


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


def test_a_missing_tokenizer_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing is downloaded"):
        load_counter(tmp_path)


def test_all_files_that_decide_the_counts_are_listed(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = "x"
    tokenizer.save_pretrained(tmp_path)
    names = {path.name for path in counter_files(tmp_path)}
    assert names == {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
    assert load_counter(tmp_path / "tokenizer.json").chat_template == "x"
