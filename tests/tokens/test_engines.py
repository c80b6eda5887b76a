"""Fast engines get a tokenizer that knows no control token."""

from __future__ import annotations

from pathlib import Path

import orjson

from shardmill.tokens.engines import json_engines, without_specials
from shardmill.tokens.ragged import ragged


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
