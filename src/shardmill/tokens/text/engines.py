"""Fast text engines: gigatoken first (fastest once warm), then fastokens.

Both load a Hugging Face tokenizer.json from memory. They get one without control tokens, so that
they cannot make any. They run on the calling thread: parallelism is the number of workers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from shardmill.tokens.text.tokenizer import EncodeBatch, Ragged, TextEngine, joined


def json_engines(plain_json: str) -> list[TextEngine]:
    """Return the engines that can read a tokenizer.json."""
    return [
        TextEngine("gigatoken", lambda: _gigatoken_json(plain_json)),
        TextEngine("fastokens", lambda: _fastokens_json(plain_json)),
    ]


def sentencepiece_engines(path: Path, reference: EncodeBatch) -> list[TextEngine]:
    """Return the engines that can read a sentencepiece model."""
    return [TextEngine("gigatoken", lambda: _gigatoken_sentencepiece(path, reference))]


def tiktoken_engines(path: Path, pattern: str) -> list[TextEngine]:
    """Return the engines that can read tiktoken ranks with a pattern that they know by name."""
    return [TextEngine("gigatoken", lambda: _gigatoken_tiktoken(path, pattern))]


def without_specials(tokenizer_json: bytes) -> str:
    """Return a tokenizer.json whose text encoder knows no control token and adds none."""
    plain = orjson.loads(tokenizer_json)
    plain["added_tokens"] = [t for t in plain.get("added_tokens") or () if not t.get("special")]
    plain.update(post_processor=None, truncation=None, padding=None)
    return orjson.dumps(plain).decode()


def _gigatoken_json(plain_json: str) -> EncodeBatch:
    return _gigatoken(import_module("gigatoken").Tokenizer.from_json(plain_json))


def _gigatoken_sentencepiece(path: Path, reference: EncodeBatch) -> EncodeBatch:
    library = import_module("gigatoken")
    converted = library.Tokenizer.from_sentencepiece(path.read_bytes())._hf_json
    plain_json = without_specials(_as_bytes(converted))
    encode = _gigatoken(library.Tokenizer.from_json(plain_json))
    # User-defined pieces that stand in a text: sentencepiece goes on after them without a space,
    # which an added token cannot say.
    pieces = [token["content"] for token in orjson.loads(plain_json)["added_tokens"]]
    return _unless(pieces, encode, reference) if pieces else encode


def _unless(pieces: list[str], encode: EncodeBatch, reference: EncodeBatch) -> EncodeBatch:
    """Return the encoder that leaves texts with one of these pieces to the reference."""
    pattern = re.compile("|".join(map(re.escape, pieces)))

    def encode_batch(texts: Sequence[str]) -> Ragged:
        found = encode(texts)
        odd = [number for number, text in enumerate(texts) if pattern.search(text)]
        if not odd:
            return found
        lists = list(found)
        for number, ids in zip(odd, reference([texts[number] for number in odd])):
            lists[number] = ids
        return joined(lists)

    return encode_batch


def _gigatoken_tiktoken(path: Path, pattern: str) -> EncodeBatch:
    return _gigatoken(import_module("gigatoken").Tokenizer.from_tiktoken(str(path), pattern, {}))


def _gigatoken(tokenizer: Any) -> EncodeBatch:
    def encode_batch(texts: Sequence[str]) -> Ragged:
        layout = tokenizer.encode_batch(list(texts), parallel=False).layout
        bounds = np.asarray(layout.offsets.data, np.int64)
        return Ragged(np.asarray(layout.content.data)[bounds[0] : bounds[-1]], bounds - bounds[0])

    return encode_batch


def _fastokens_json(plain_json: str) -> EncodeBatch:
    tokenizer = import_module("fastokens").Tokenizer.from_json_str(plain_json)

    def encode_batch(texts: Sequence[str]) -> Ragged:
        ids, bounds = tokenizer.encode_batch_flat(list(texts))
        return Ragged(np.frombuffer(ids, np.uint32), np.frombuffer(bounds, np.uint64).astype("i8"))

    return encode_batch


def _as_bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text
