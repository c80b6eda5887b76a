from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hf_processors import make_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from shardmill.errors import ConfigError
from shardmill.tokens.processed import TextCounter, counter_files, load_counter

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
