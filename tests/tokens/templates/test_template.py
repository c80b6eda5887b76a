"""Control tokens are found by name: the space's, the tokenizer's roles, or their very text."""

from __future__ import annotations

import pytest

from shardmill.errors import ConfigError
from shardmill.model.space import TokenSpace
from shardmill.tokens.templates.template import control_ids
from shardmill.tokens.text.tokenizer import TextTokenizer


def test_the_space_comes_first(bundled: TextTokenizer) -> None:
    find = control_ids(bundled, TokenSpace(text_size=32_768, specials={"eos": 9}, added=("boi",)))
    assert [find(name) for name in ("boi", "eos", "bos", "[INST]")] == [32_768, 9, 1, 3]
    with pytest.raises(ConfigError, match="no token 'eoi'"):
        find("eoi")
