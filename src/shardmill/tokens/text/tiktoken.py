"""tiktoken ranks (Qwen, Llama-3, GPT): the ids are those of the library tiktoken."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from shardmill.errors import ConfigError, need
from shardmill.tokens.text.tokenizer import (
    Ragged,
    Special,
    TextTokenizer,
    choose_engine,
    ragged,
    tiktoken_engines,
)

# As published with the models. They differ in digits: GPT-4 and Llama-3 take up to three together,
# Qwen each alone.
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
PATTERNS = {
    "gpt2": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "cl100k": rf"{_SHORT}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}",
    "qwen2": rf"{_SHORT}|{_WORDS}|\p{{N}}|{_REST}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TiktokenText:
    """A file of lines "base64-of-bytes rank", with the pattern that splits text into words.

    `pattern` is one of "gpt2", "cl100k" (also Llama-3), "qwen2", or a regular expression.
    `specials` names the control tokens and their ids; `roles` says which of them is "bos", "eos".
    """

    path: Path
    pattern: str
    specials: Mapping[str, int] = field(default_factory=dict)
    roles: Mapping[str, str] = field(default_factory=dict)
    engine: Literal["fast", "reference"] = "fast"

    def load(self) -> TextTokenizer:
        """Return the live tokenizer; reads local files only."""
        ranks = read_ranks(self.path)
        encoding = self._encoding(ranks)

        def encode_batch(texts: Sequence[str]) -> Ragged:
            return ragged(encoding.encode_ordinary_batch(list(texts), num_threads=1))

        def starts(text: str) -> list[int]:
            return list(encoding.decode_with_offsets(encoding.encode_ordinary(text))[1])

        known = self.engine == "fast" and self.pattern in PATTERNS
        engines = tiktoken_engines(self.path, self.pattern) if known else []
        name, encode = choose_engine(str(self.path), encode_batch, engines, self.specials)
        unknown = sorted(set(self.roles.values()) - set(self.specials))
        if unknown:
            raise ConfigError(f"roles name {unknown[0]!r}, which is not among the specials")
        return TextTokenizer(
            name=str(self.path),
            vocab_size=1 + max(*ranks.values(), *self.specials.values(), 0),
            engine=name,
            encode_batch=encode,
            starts=starts,
            decode=lambda ids: encoding.decode([int(i) for i in ids]),
            specials={text: Special(number) for text, number in self.specials.items()},
            roles={role: self.specials[text] for role, text in self.roles.items()},
            variables={f"{role}_token": text for role, text in self.roles.items()},
        )

    def files(self) -> list[Path]:
        """Return the files that decide the ids, so that a change of them is noticed."""
        return [self.path]

    def _encoding(self, ranks: dict[bytes, int]) -> Any:
        library = need("tiktoken", extra="text")
        return library.Encoding(
            str(self.path),
            pat_str=PATTERNS.get(self.pattern, self.pattern),
            mergeable_ranks=ranks,
            special_tokens=dict(self.specials),
        )


def read_ranks(path: Path) -> dict[bytes, int]:
    """Return the ranks of a tiktoken file."""
    ranks: dict[bytes, int] = {}
    try:
        for line in path.read_bytes().splitlines():
            if line.strip():
                token, rank = line.split()
                ranks[base64.b64decode(token, validate=True)] = int(rank)
    except (OSError, ValueError, binascii.Error) as error:
        raise ConfigError(f"{path} is not a file of tiktoken ranks: {error}") from error
    if not ranks:
        raise ConfigError(f"{path} holds no ranks")
    return ranks
