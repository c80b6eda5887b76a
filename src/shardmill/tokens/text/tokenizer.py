"""Text tokenizers: a reference library decides the ids, a fast engine may stand in for it.

User text never becomes a control token: it is encoded by encoders that do not know them. Control
tokens come from templates only, by their name (`specials`). No tokenizer is ever downloaded: a
tokenizer is a local path, or the bundled one.

The fast engines are gigatoken (fastest once warm), then fastokens. One is used after it gave the
ids of the reference on the probe texts (many scripts, spaces, digits, emoji, control characters);
if it does not, a warning says so and the reference encodes. Both load a tokenizer.json from memory
and run on the calling thread: parallelism is the number of workers.

A batch of ids is `Ragged`: one flat array and its bounds, list i is ids[bounds[i] : bounds[i + 1]].
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib import import_module
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import orjson
import xxhash
from numpy.typing import NDArray

from shardmill.errors import ConfigError, SampleError, foreign
from shardmill.model.codec import digest

PROBES: tuple[str, ...] = (
    "",
    " ",
    "  two  spaces   and a tab\tand\r\nlines\n\n\nend ",
    "\n",
    " leading, trailing ",
    "Hello, world! It's 12:30; we've 1234567890 reasons (3.14159, 1e-10, 0xFF), don't we?",
    "def f(x: int) -> str:\n    return f'{x:>8}'  # comment\n\n\tif not x:\n\t\tpass\n",
    'https://example.org/a_b?c=d&e=%20#f <b>bold</b> {"key": [1, null]} `code` **md** ~~~',
    "CamelCase snake_case kebab-case SCREAMING_CASE x86_64 C++ C# .NET",
    "Ünïcödé: Straße, façade, naïve, Łódź, İstanbul, ǅ, ﬁ ligature, Ω µ µ",
    "e\u0301 and é, A\u030a and Å, \u1e9b\u0323, Hangul \u1112\u1161\u11ab and 한",
    "Привет, мир! Съешь ещё этих мягких французских булок.",
    "Γειά σου Κόσμε, ελληνικά",
    "שלום עולם وبعد مرحبا بالعالم ۱۲۳ فارسی",
    "नमस्ते दुनिया ಕನ್ನಡ தமிழ் ไทยภาษา ລາວ မြန်မာ ქართული Հայերեն አማርኛ",
    "你好，世界！这是一个测试。繁體中文、日本語のテスト（カタカナ）、한국어 문장입니다。",
    "𠮷野家 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈 ℝ²→ℝ ∀x∈X ½ ⅷ ①",
    "😀 👩‍👩‍👧‍👦 👍🏽 🇩🇪 ❤️ ✈︎ 🏳️‍🌈",
    "\u200bzero\u200dwidth\ufeff bom \u00a0nbsp\u3000wide\u2028line\u2029para\u0085nel",
    "\x00nul \x01\x07\x1b[31m\x7f \ufffd \ue000 \U000f0000 \U0010ffff",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" * 8,
    "1" * 70 + " " * 70 + "\n" * 40 + "=" * 70 + "ー" * 40,
)


@dataclass(frozen=True, slots=True, eq=False)
class Ragged:
    """What a text encoder returns for a batch."""

    ids: NDArray[Any]
    bounds: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, number: int) -> NDArray[Any]:
        return self.ids[self.bounds[number] : self.bounds[number + 1]]

    def __iter__(self) -> Iterator[NDArray[Any]]:
        bounds = self.bounds.tolist()
        return (self.ids[a:b] for a, b in pairwise(bounds))

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The length of each list."""
        return np.diff(self.bounds)

    def same(self, other: Ragged) -> bool:
        """Whether both hold the same lists."""
        return np.array_equal(self.bounds, other.bounds) and np.array_equal(self.ids, other.ids)


def ragged(lists: Iterable[Sequence[int] | NDArray[Any]]) -> Ragged:
    """Return lists of ids as one flat array."""
    lists = list(lists)
    bounds = np.zeros(len(lists) + 1, np.int64)
    np.cumsum([len(ids) for ids in lists], out=bounds[1:])
    return Ragged(np.fromiter(chain.from_iterable(lists), np.uint32, int(bounds[-1])), bounds)


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

    `starts` returns, for each id that the reference gives a text, the first character that it
    covers. `roles` names the ids of "bos", "eos", "pad" and "unk" as far as the tokenizer has
    them. `variables` are what its chat template may use besides the messages.
    """

    name: str
    vocab_size: int
    engine: str
    encode_batch: EncodeBatch
    starts: Callable[[str], list[int]]
    decode: Callable[[Sequence[int]], str]
    specials: Mapping[str, Special] = field(default_factory=dict)
    roles: Mapping[str, int] = field(default_factory=dict)
    chat_template: str | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)

    def encode(self, text: str) -> NDArray[Any]:
        """Return the ids of one text, without control tokens."""
        return self.encode_batch([text])[0]


def encode_texts(tokenizer: TextTokenizer, texts: Sequence[str]) -> Ragged:
    """Return the ids of texts; a `SampleError` says that the tokenizer cannot take one of them."""
    with tokenizing():
        return tokenizer.encode_batch(texts)


def tokenizing() -> AbstractContextManager[None]:
    """Turn what a tokenizer raises over a text into a `SampleError`."""
    return foreign("refused by the tokenizer", Exception)  # their C and Rust leave no trace


def load_once(spec: TextSpec) -> TextTokenizer:
    """Return the live tokenizer of a spec; a process loads it again only if its files changed."""
    key = digest([spec, files_checksum(spec.files())])
    if key not in _loaded:
        # Only the last one stays: a vocabulary of 250k entries takes a lot of memory.
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
class TextEngine:
    """A fast library: its name and how to build its encoder, which may fail."""

    name: str
    build: Callable[[], EncodeBatch]


def choose_engine(
    name: str, reference: EncodeBatch, engines: Iterable[TextEngine], tokens: Iterable[str]
) -> tuple[str, EncodeBatch]:
    """Return the first engine whose ids are the reference's on every probe text, and its name.

    `tokens` are texts that either of them might take for a token of its own.
    """
    # Joined into one text as well, so that scripts meet each other.
    marked = [f"a {token} b{token}{token}c\n{token}" for token in tokens]
    probes = [*PROBES, "".join(PROBES), *marked]
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


def _try(engine: TextEngine, name: str, probes: Sequence[str]) -> tuple[EncodeBatch, Ragged] | None:
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


def json_engines(plain_json: str) -> list[TextEngine]:
    """Return the engines that can read a tokenizer.json."""
    return [
        TextEngine("gigatoken", lambda: _gigatoken("from_json", plain_json)),
        TextEngine("fastokens", lambda: _fastokens(plain_json)),
    ]


def tiktoken_engines(path: Path, pattern: str) -> list[TextEngine]:
    """Return the engines that can read tiktoken ranks with a pattern that they know by name."""
    return [TextEngine("gigatoken", lambda: _gigatoken("from_tiktoken", str(path), pattern, {}))]


def sentencepiece_engines(path: Path, reference: EncodeBatch) -> list[TextEngine]:
    """Return the engines that can read a sentencepiece model."""
    return [TextEngine("gigatoken", lambda: _gigatoken_sentencepiece(path, reference))]


def without_specials(tokenizer_json: str | bytes) -> str:
    """Return a tokenizer.json whose text encoder knows no control token and adds none."""
    plain = orjson.loads(tokenizer_json)
    plain["added_tokens"] = [t for t in plain.get("added_tokens") or () if not t.get("special")]
    plain.update(post_processor=None, truncation=None, padding=None)
    return orjson.dumps(plain).decode()


def _gigatoken(make: str, *source: Any) -> EncodeBatch:
    tokenizer = getattr(import_module("gigatoken").Tokenizer, make)(*source)

    def encode_batch(texts: Sequence[str]) -> Ragged:
        layout = tokenizer.encode_batch(list(texts), parallel=False).layout
        bounds = np.asarray(layout.offsets.data, np.int64)
        # The content of an awkward array may begin before its first list and end after its last.
        return Ragged(np.asarray(layout.content.data)[bounds[0] : bounds[-1]], bounds - bounds[0])

    return encode_batch


def _fastokens(plain_json: str) -> EncodeBatch:
    tokenizer = import_module("fastokens").Tokenizer.from_json_str(plain_json)

    def encode_batch(texts: Sequence[str]) -> Ragged:
        ids, bounds = tokenizer.encode_batch_flat(list(texts))
        return Ragged(np.frombuffer(ids, np.uint32), np.frombuffer(bounds, np.uint64).astype("i8"))

    return encode_batch


def _gigatoken_sentencepiece(path: Path, reference: EncodeBatch) -> EncodeBatch:
    library = import_module("gigatoken")
    # By way of the tokenizer.json that it makes of the model, which can be rid of control pieces.
    plain_json = without_specials(library.Tokenizer.from_sentencepiece(path.read_bytes())._hf_json)
    encode = _gigatoken("from_json", plain_json)
    # User-defined pieces that stand in a text: sentencepiece goes on after them without a space,
    # which an added token cannot say. The reference encodes such texts.
    pieces = [token["content"] for token in orjson.loads(plain_json)["added_tokens"]]
    if not pieces:
        return encode
    pattern = re.compile("|".join(map(re.escape, pieces)))

    def encode_batch(texts: Sequence[str]) -> Ragged:
        found = encode(texts)
        odd = [number for number, text in enumerate(texts) if pattern.search(text)]
        if not odd:
            return found
        lists: list[Any] = list(found)
        for number, ids in zip(odd, reference([texts[number] for number in odd])):
            lists[number] = ids
        return ragged(lists)

    return encode_batch
