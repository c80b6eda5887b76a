"""Counts rendered text as a model's processor does: control tokens in it are control tokens.

A processor hands the whole rendered chat to its tokenizer, which finds the control tokens of the
template by their text (and those that stand in a user's text, too), and adds what its
post-processor adds unless the template began with it. The ids are never needed, only how many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import orjson
from numpy.typing import NDArray

from shardmill.errors import ConfigError
from shardmill.extras import need
from shardmill.tokens.engines import json_engines
from shardmill.tokens.ragged import Ragged, ragged
from shardmill.tokens.text import EncodeBatch, choose_engine
from shardmill.tokens.text_hf import read_chat_template, read_config, read_specials, token_text


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TextCounter:
    """A live tokenizer that only counts; `variables` are what the chat template may use."""

    name: str
    engine: str
    encode_batch: EncodeBatch
    num_added: int
    specials: tuple[str, ...]
    chat_template: str | None
    variables: Mapping[str, str]

    def lengths(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """Return the number of tokens of each text alone."""
        return self.encode_batch(texts).lengths

    def rendered_lengths(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """Return the number of tokens of rendered chats, with what the tokenizer adds."""
        lengths = self.lengths(texts)
        if self.num_added == 0:
            return lengths
        begun = self.variables.get("bos_token")
        added = [0 if begun and text.startswith(begun) else self.num_added for text in texts]
        return lengths + np.array(added, np.int64)


def load_counter(path: Path, engine: Literal["fast", "reference"] = "fast") -> TextCounter:
    """Return the counter of a tokenizer.json or of the model folder that holds it."""
    file = counter_files(path)[0]
    config = read_config(file.parent)
    raw = as_transformers_loads(orjson.loads(file.read_bytes()), config)
    library = need("tokenizers", extra="text")
    num_added = _num_added(library.Tokenizer.from_str(orjson.dumps(raw).decode()))
    raw.update(post_processor=None, truncation=None, padding=None)
    bare_json = orjson.dumps(raw).decode()
    reference = library.Tokenizer.from_str(bare_json)

    def encode_batch(texts: Sequence[str]) -> Ragged:
        found = reference.encode_batch_fast(list(texts), add_special_tokens=False)
        return ragged(encoding.ids for encoding in found)

    specials = tuple(read_specials(raw))
    engines = json_engines(bare_json) if engine == "fast" else []
    name, encode = choose_engine(str(path), encode_batch, engines, specials)
    tokens = {key: token_text(config[key]) for key in config if key.endswith("_token")}
    return TextCounter(
        name=str(path),
        engine=name,
        encode_batch=encode,
        num_added=num_added,
        specials=specials,
        chat_template=read_chat_template(file.parent, config),
        variables={key: token for key, token in tokens.items() if token is not None},
    )


def counter_files(path: Path) -> list[Path]:
    """Return the files that decide the counts, tokenizer.json first."""
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise ConfigError(
            f"{file} does not exist: a tokenizer is a local model folder or its tokenizer.json; "
            "nothing is downloaded"
        )
    beside = ("tokenizer_config.json", "chat_template.jinja", "chat_template.json")
    return [file, *(file.with_name(name) for name in beside if file.with_name(name).is_file())]


def as_transformers_loads(tokenizer: dict[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tokenizer.json as transformers 5 takes it.

    It builds Llama's tokenizers anew from vocabulary and merges: a space is put before the first
    text of a chat (`legacy`: before each text between control tokens), whatever the file says.
    """
    if config.get("tokenizer_class") not in ("LlamaTokenizer", "LlamaTokenizerFast"):
        return tokenizer
    scheme = "always" if config.get("legacy") else "first"
    if config.get("add_prefix_space") is False:
        scheme = "never"
    spaces = {
        "type": "Metaspace",
        "replacement": "\u2581",
        "prepend_scheme": scheme,
        "split": False,
    }
    return {**tokenizer, "normalizer": None, "pre_tokenizer": spaces}


def _num_added(full: Any) -> int:
    full.no_truncation()
    full.no_padding()
    return len(full.encode("a").ids) - len(full.encode("a", add_special_tokens=False).ids)
