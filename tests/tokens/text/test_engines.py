"""Fast engines get a tokenizer that knows no control token."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import orjson

from shardmill.tokens.text.engines import json_engines, without_specials
from shardmill.tokens.text.huggingface import HuggingFaceText
from shardmill.tokens.text.sentencepiece import SentencePieceText
from shardmill.tokens.text.tokenizer import TextTokenizer, ragged


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
