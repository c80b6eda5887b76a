"""Text tokenizers: a reference library decides the ids, a fast engine may stand in for it.

User text never becomes a control token: it is encoded by encoders that do not know them. Control
tokens come from templates only, by their name (`specials`). A fast engine is used after it gave
the ids of the reference on the probe texts; if it does not, a warning says so and the reference
encodes. No tokenizer is ever downloaded: a tokenizer is a local path, or the bundled one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import xxhash
from numpy.typing import NDArray

from shardmill.errors import ConfigError, SampleError
from shardmill.model.codec import digest
from shardmill.tokens.probe import probe_texts
from shardmill.tokens.ragged import Ragged

log = logging.getLogger(__name__)

EncodeBatch: TypeAlias = Callable[[Sequence[str]], Ragged]
_loaded: dict[str, TextTokenizer] = {}


@dataclass(frozen=True, slots=True)
class Special:
    """A control token: its id, and whether it swallows white space beside it."""

    id: int
    lstrip: bool = False
    rstrip: bool = False


@runtime_checkable
class TextSpec(Protocol):
    """A text tokenizer as configuration: a frozen dataclass."""

    def load(self) -> TextTokenizer:
        """Return the live tokenizer; reads local files only."""

    def files(self) -> list[Path]:
        """Return the files that decide the ids, so that a change of them is noticed."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TextTokenizer:
    """A live tokenizer.

    `offsets` returns the ids of a text by the reference, and for each id the first character that
    it covers. `roles` names the ids of "bos", "eos", "pad" and "unk" as far as the tokenizer has
    them. `variables` are what its chat template may use besides the messages.
    """

    name: str
    vocab_size: int
    engine: str
    encode_batch: EncodeBatch
    offsets: Callable[[str], tuple[NDArray[Any], list[int]]]
    decode: Callable[[Sequence[int]], str]
    specials: Mapping[str, Special] = field(default_factory=dict)
    roles: Mapping[str, int] = field(default_factory=dict)
    chat_template: str | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)

    def encode(self, text: str) -> NDArray[Any]:
        """Return the ids of one text, without control tokens."""
        return self.encode_batch([text])[0]


def load_once(spec: TextSpec) -> TextTokenizer:
    """Return the live tokenizer of a spec; a process loads it again only if its files changed."""
    key = digest([spec, files_checksum(spec.files())])
    if key not in _loaded:
        _loaded.clear()
        _loaded[key] = spec.load()
    return _loaded[key]


def files_checksum(paths: Iterable[Path]) -> str:
    """Return the checksum of what these files hold together."""
    state = xxhash.xxh3_64()
    for path in paths:
        try:
            state.update(path.read_bytes())
        except OSError as error:
            raise ConfigError(f"cannot read what decides the tokens: {error}") from error
    return state.hexdigest()


@dataclass(frozen=True, slots=True)
class Engine:
    """A fast library: its name and how to build its encoder, which may fail."""

    name: str
    build: Callable[[], EncodeBatch]


def choose_engine(
    name: str, reference: EncodeBatch, engines: Iterable[Engine], tokens: Iterable[str]
) -> tuple[str, EncodeBatch]:
    """Return the first engine whose ids are the reference's on every probe text, and its name.

    `tokens` are texts that either of them might take for a token of its own.
    """
    probes = probe_texts(tokens)
    expected = reference(probes)
    for engine in engines:
        tried = _try(engine, name, probes)
        if tried is None:
            continue
        encode, found = tried
        if found.same(expected):
            return engine.name, encode
        log.warning(
            "%s gives other ids than the reference for %s: it is not used, encoding will be slower",
            engine.name,
            name,
        )
    return "reference", reference


def check_text(text: str) -> str:
    """Return the text, or raise `SampleError` if it holds half of a surrogate pair."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            detail = f"character {error.start} is U+{ord(text[error.start]):04X}"
            raise SampleError("text is not valid Unicode", detail) from error
    return text


def narrow_offsets(starts: Sequence[int], ids: Sequence[int]) -> tuple[NDArray[Any], list[int]]:
    """Return ids and the character at which each begins, in the form of `offsets`."""
    return np.asarray(ids, np.uint32), list(starts)


def _try(engine: Engine, name: str, probes: Sequence[str]) -> tuple[EncodeBatch, Ragged] | None:
    """Return an engine's encoder and what it makes of the probes; None, loudly, if it fails.

    Another version of its library may lack an attribute that this one has.
    """
    try:
        encode = engine.build()
        return encode, encode(probes)
    except ModuleNotFoundError:
        log.warning("%s is not installed (shardmill[fast]): encoding will be slower", engine.name)
    except (ValueError, RuntimeError, TypeError, LookupError, AttributeError, OSError) as error:
        log.warning("%s cannot load %s (%s): encoding will be slower", engine.name, name, error)
    return None
