"""Hugging Face tokenizers: a `tokenizer.json`, or a model folder that has one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import orjson
from numpy.typing import NDArray

from shardmill.errors import ConfigError, need
from shardmill.tokens.text.engines import json_engines, without_specials
from shardmill.tokens.text.tokenizer import (
    Ragged,
    Special,
    TextTokenizer,
    choose_engine,
    narrow_offsets,
    ragged,
)

ROLE_TOKENS = {
    "bos": "bos_token",
    "eos": "eos_token",
    "pad": "pad_token",
    "unk": "unk_token",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HuggingFaceText:
    """The tokenizer of a `tokenizer.json` or of the folder that holds it.

    The ids are those of the library `tokenizers`. Tokens that the file calls special are never
    made from text; other added tokens (`<tool_call>`) are, as the library does it.
    """

    path: Path
    engine: Literal["fast", "reference"] = "fast"

    def load(self) -> TextTokenizer:
        """Return the live tokenizer; reads local files only."""
        file = self._file()
        if not file.is_file():
            raise ConfigError(
                f"{file} does not exist: a tokenizer is a local tokenizer.json or the folder "
                "that holds it; nothing is downloaded"
            )
        raw = file.read_bytes()
        reference = need("tokenizers", extra="text").Tokenizer.from_str(raw.decode())
        reference.no_truncation()
        reference.no_padding()
        # The library's own switch for "special tokens in text are text". (A tokenizer from which
        # they are taken out would not do: it numbers the remaining added tokens anew.)
        reference.encode_special_tokens = True
        tokenizer = orjson.loads(raw)
        specials = read_specials(tokenizer)

        def encode_batch(texts: Sequence[str]) -> Ragged:
            found = reference.encode_batch_fast(list(texts), add_special_tokens=False)
            return ragged(encoding.ids for encoding in found)

        def offsets(text: str) -> tuple[NDArray[Any], list[int]]:
            found = reference.encode(text, add_special_tokens=False)
            return narrow_offsets([start for start, _ in found.offsets], found.ids)

        engines = json_engines(without_specials(raw)) if self.engine == "fast" else []
        added = [token["content"] for token in tokenizer.get("added_tokens") or ()]
        name, encode = choose_engine(str(self.path), encode_batch, engines, added)
        config = read_config(file.parent)
        variables = {key: token_text(config.get(key)) for key in config if key.endswith("_token")}
        return TextTokenizer(
            name=str(self.path),
            vocab_size=1 + max(reference.get_vocab(with_added_tokens=True).values(), default=0),
            engine=name,
            encode_batch=encode,
            offsets=offsets,
            decode=lambda ids: reference.decode(list(ids), skip_special_tokens=False),
            specials=specials,
            roles=_roles(variables, reference),
            chat_template=read_chat_template(file.parent, config),
            variables={key: value for key, value in variables.items() if value is not None},
        )

    def files(self) -> list[Path]:
        """Return the files that decide the ids, so that a change of them is noticed."""
        names = ("tokenizer_config.json", "chat_template.jinja", "chat_template.json")
        file = self._file()
        return [file, *(path for name in names if (path := file.parent / name).is_file())]

    def _file(self) -> Path:
        return self.path / "tokenizer.json" if self.path.is_dir() else self.path


def read_specials(tokenizer: dict[str, Any]) -> dict[str, Special]:
    """Return the tokens that a tokenizer.json calls special."""
    return {
        token["content"]: Special(token["id"], bool(token.get("lstrip")), bool(token.get("rstrip")))
        for token in tokenizer.get("added_tokens") or ()
        if token.get("special")
    }


def read_config(folder: Path) -> dict[str, Any]:
    """Return tokenizer_config.json of a model folder, {} if there is none."""
    path = folder / "tokenizer_config.json"
    config = orjson.loads(path.read_bytes()) if path.is_file() else {}
    if not isinstance(config, dict):
        raise ConfigError(f"{path} must hold an object")
    return config


def read_chat_template(folder: Path, config: dict[str, Any]) -> str | None:
    """Return the chat template of a model folder: chat_template.jinja, .json, or the config's."""
    jinja, as_json = folder / "chat_template.jinja", folder / "chat_template.json"
    if jinja.is_file():
        return jinja.read_text("utf-8")
    if as_json.is_file():
        config = orjson.loads(as_json.read_bytes())
    found = config.get("chat_template")
    if isinstance(found, list):
        named = {item.get("name"): item.get("template") for item in found}
        found = named.get("default")
    return found if isinstance(found, str) else None


def token_text(token: object) -> str | None:
    """Return the text of a token of tokenizer_config.json: a text, or {"content": text}."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _roles(variables: dict[str, str | None], library: Any) -> dict[str, int]:
    found = {role: variables.get(key) for role, key in ROLE_TOKENS.items()}
    ids = {role: library.token_to_id(text) for role, text in found.items() if text is not None}
    return {role: number for role, number in ids.items() if number is not None}
