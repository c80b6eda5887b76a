"""Hugging Face tokenizers: a `tokenizer.json`, or a model folder that has one.

`HuggingFaceText` makes ids for training: control tokens come from templates, never from text.
`load_counter` counts as a model's processor does: it hands the whole rendered chat to its
tokenizer, which finds control tokens by their text (those that stand in a user's text, too), and
adds what its post-processor adds unless the template began with it. The ids are never needed, only
how many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import orjson
from numpy.typing import NDArray

from shardmill.errors import ConfigError, FormatError, need
from shardmill.storage.path import near_path
from shardmill.storage.text import parse_page, read_json
from shardmill.tokens.text.tokenizer import (
    EncodeBatch,
    Ragged,
    Special,
    TextTokenizer,
    choose_engine,
    json_engines,
    ragged,
    tokenizing,
    without_specials,
)

ROLES = ("bos", "eos", "pad", "unk")
BESIDE = ("tokenizer_config.json", "chat_template.jinja", "chat_template.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class HuggingFaceText:
    """The tokenizer of a `tokenizer.json` or of the folder that holds it.

    The ids are those of the library `tokenizers`. Tokens that the file calls special are never
    made from text; other added tokens (`<tool_call>`) are, as the library does it, except those in
    `control`: Liquid's took the place of unused words, which Gemma does not call special.
    """

    path: Path
    engine: Literal["fast", "reference"] = "fast"
    control: tuple[str, ...] = ("<boi>", "<eoi>", "<unconditional>")

    def load(self) -> TextTokenizer:
        """Return the live tokenizer; reads local files only."""
        folder = _Folder.read(self.path)
        reference = _build(folder.raw, self.path)
        if folder.mark(self.control):
            reference = _build(folder.raw, self.path)
        reference.no_truncation()
        reference.no_padding()
        # The library's own switch for "special tokens in text are text". (A tokenizer from which
        # they are taken out would not do: it numbers the remaining added tokens anew.)
        reference.encode_special_tokens = True

        def starts(text: str) -> list[int]:
            found = reference.encode(text, add_special_tokens=False)
            return [start for start, _ in found.offsets]

        engines = json_engines(without_specials(folder.raw)) if self.engine == "fast" else []
        added = [token["content"] for token in folder.tokenizer.get("added_tokens") or ()]
        name, encode = choose_engine(str(self.path), _encoder(reference), engines, added)
        roles = {
            role: reference.token_to_id(folder.variables[f"{role}_token"])
            for role in ROLES
            if f"{role}_token" in folder.variables
        }
        return TextTokenizer(
            name=str(self.path),
            vocab_size=1 + max(reference.get_vocab(with_added_tokens=True).values(), default=0),
            engine=name,
            encode_batch=encode,
            starts=starts,
            decode=lambda ids: reference.decode(list(ids), skip_special_tokens=False),
            specials=read_specials(folder.tokenizer),
            roles={role: number for role, number in roles.items() if number is not None},
            chat_template=folder.chat_template,
            variables=folder.variables,
        )

    def files(self) -> list[Path]:
        """Return the files that decide the ids, so that a change of them is noticed."""
        return tokenizer_files(self.path)


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
        """Return the number of tokens of each text; a `SampleError` if one of them is refused."""
        with tokenizing():
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
    folder = _Folder.read(path)
    raw = as_transformers_loads(folder.tokenizer, folder.config)
    full = _build(orjson.dumps(raw), path)
    full.no_truncation()
    full.no_padding()
    num_added = len(full.encode("a").ids) - len(full.encode("a", add_special_tokens=False).ids)
    raw = {**raw, "post_processor": None, "truncation": None, "padding": None}
    bare_json = orjson.dumps(raw).decode()
    specials = tuple(read_specials(raw))
    engines = json_engines(bare_json) if engine == "fast" else []
    reference = _encoder(_build(bare_json.encode(), path))
    name, encode = choose_engine(str(path), reference, engines, specials)
    return TextCounter(
        name=str(path),
        engine=name,
        encode_batch=encode,
        num_added=num_added,
        specials=specials,
        chat_template=folder.chat_template,
        variables=folder.variables,
    )


def _build(content: bytes, path: Path) -> Any:
    library = need("tokenizers", extra="text")
    try:
        return library.Tokenizer.from_str(content.decode())
    except Exception as error:  # the library raises nothing more special, and says line and column
        raise FormatError(f"is not a tokenizer: {error}", path=tokenizer_files(path)[0]) from error


def tokenizer_files(path: Path) -> list[Path]:
    """Return the files that decide ids and counts, tokenizer.json first."""
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        models = [one.name for one in path.glob("*.model")] if path.is_dir() else []
        near = "" if path.exists() else near_path(str(path))
        use = f"{near}: name a model folder or its tokenizer.json; nothing is downloaded"
        if models:
            use = f": name its {models[0]}, if that is a tokenizer of sentencepiece"
        raise ConfigError(f"--tokenizer {path}: {file} does not exist{use}")
    return [file, *(file.with_name(name) for name in BESIDE if file.with_name(name).is_file())]


@dataclass(slots=True)
class _Folder:
    """tokenizer.json as bytes and parsed, and what lies beside it."""

    raw: bytes
    tokenizer: dict[str, Any]
    config: dict[str, Any]
    variables: dict[str, str]
    chat_template: str | None

    @classmethod
    def read(cls, path: Path) -> _Folder:
        file = tokenizer_files(path)[0]
        config_path = file.with_name("tokenizer_config.json")
        config = read_json(config_path) if config_path.is_file() else {}
        if not isinstance(config, dict):
            raise ConfigError(f"{config_path} must hold an object")
        # A token of the config is a text, or {"content": text}.
        tokens = {key: config[key] for key in config if key.endswith("_token")}
        texts = {k: t.get("content") if isinstance(t, dict) else t for k, t in tokens.items()}
        raw = file.read_bytes()
        return cls(
            raw,
            parse_page(raw, file),
            config,
            {key: text for key, text in texts.items() if isinstance(text, str)},
            _chat_template(file.parent, config),
        )

    def mark(self, control: Sequence[str]) -> bool:
        """Call these added tokens special; return whether some were not."""
        added = self.tokenizer.get("added_tokens") or ()
        unmarked = [t for t in added if t["content"] in control and not t.get("special")]
        for token in unmarked:
            token["special"] = True
        if unmarked:
            self.raw = orjson.dumps(self.tokenizer)
        return bool(unmarked)


def _chat_template(folder: Path, config: dict[str, Any]) -> str | None:
    # Where transformers looks, in its order: a file of its own (new), one in JSON (processors of
    # 2024), the config; there may be several, of which "default" is for chats.
    jinja, as_json = folder / "chat_template.jinja", folder / "chat_template.json"
    if jinja.is_file():
        return jinja.read_text("utf-8")
    if as_json.is_file():
        config = read_json(as_json)
    found = config.get("chat_template")
    if isinstance(found, list):
        named = {item.get("name"): item.get("template") for item in found}
        found = named.get("default")
    return found if isinstance(found, str) else None


def read_specials(tokenizer: Mapping[str, Any]) -> dict[str, Special]:
    """Return the tokens that a tokenizer.json calls special."""
    return {
        token["content"]: Special(token["id"], bool(token.get("lstrip")), bool(token.get("rstrip")))
        for token in tokenizer.get("added_tokens") or ()
        if token.get("special")
    }


def as_transformers_loads(
    tokenizer: Mapping[str, Any], config: Mapping[str, Any]
) -> Mapping[str, Any]:
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


def _encoder(library_tokenizer: Any) -> EncodeBatch:
    def encode_batch(texts: Sequence[str]) -> Ragged:
        found = library_tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return ragged(encoding.ids for encoding in found)

    return encode_batch
