"""sentencepiece models (Llama-2, Mistral): the ids are those of the library sentencepiece."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from shardmill.errors import ConfigError, need
from shardmill.storage.text import mistaken_for
from shardmill.tokens.text.tokenizer import (
    Ragged,
    Special,
    TextTokenizer,
    choose_engine,
    ragged,
    sentencepiece_engines,
)

HEAD_BYTES = 256
BUNDLED = Path(__file__).with_name("bundled")


@dataclass(frozen=True, slots=True, kw_only=True)
class SentencePieceText:
    """The tokenizer of a sentencepiece `.model`; "bundled" is the one that comes with shardmill.

    Control pieces (`<s>`, `[INST]`) are never made from text; sentencepiece itself sees to that.
    """

    path: Literal["bundled"] | Path
    engine: Literal["fast", "reference"] = "fast"

    def __post_init__(self) -> None:
        if str(self.path) == "bundled":  # is a name, and no place that begins where one works
            object.__setattr__(self, "path", "bundled")

    def load(self) -> TextTokenizer:
        """Return the live tokenizer; reads local files only."""
        path = self._file()
        if not path.is_file():
            raise ConfigError(f"{path} does not exist: name a sentencepiece .model, or 'bundled'")
        model = _open(path)

        def encode_batch(texts: Sequence[str]) -> Ragged:
            return ragged(model.encode(list(texts), num_threads=1) if texts else [])

        def starts(text: str) -> list[int]:
            found = model.encode(text, return_type="offset_mapping")
            return [start for start, _ in found["offsets"]]

        size = model.vocab_size()
        specials = {model.id_to_piece(i): Special(i) for i in range(size) if model.is_control(i)}
        engines = sentencepiece_engines(path, encode_batch) if self.engine == "fast" else []
        # Any piece may be user-defined, which the library does not tell; so each is probed.
        pieces = [model.id_to_piece(i).replace("\u2581", " ") for i in range(size)]
        name, encode = choose_engine(str(path), encode_batch, engines, pieces)
        found = {role: getattr(model, f"{role}_id")() for role in ("bos", "eos", "pad", "unk")}
        # A role that the model lacks has the id -1.
        roles = {role: number for role, number in found.items() if number >= 0}
        template = path.with_suffix(".jinja")
        return TextTokenizer(
            name=str(self.path),
            vocab_size=size,
            engine=name,
            encode_batch=encode,
            starts=starts,
            decode=lambda ids: _decode(model, specials, ids),
            specials=specials,
            roles=roles,
            chat_template=template.read_text("utf-8") if template.is_file() else None,
            variables={f"{role}_token": model.id_to_piece(n) for role, n in roles.items()},
        )

    def files(self) -> list[Path]:
        """Return the files that decide the ids, so that a change of them is noticed."""
        path = self._file()
        template = path.with_suffix(".jinja")
        return [path, template] if template.is_file() else [path]

    def _file(self) -> Path:
        return BUNDLED / "mistral-v3.model" if self.path == "bundled" else Path(self.path)


def _open(path: Path) -> Any:
    library = need("sentencepiece", extra="text")
    try:
        return library.SentencePieceProcessor(model_file=str(path))
    except (RuntimeError, OSError) as error:
        with path.open("rb") as file:
            mistake = mistaken_for(file.read(HEAD_BYTES))
        problem = f"it is {mistake}" if mistake else str(error)
        raise ConfigError(f"{path} is not a sentencepiece model: {problem}") from error


def _decode(model: Any, specials: dict[str, Special], ids: Sequence[int]) -> str:
    # sentencepiece leaves control pieces out; whoever decodes wants to see them.
    control = {special.id: text for text, special in specials.items()}
    parts: list[str] = []
    run: list[int] = []
    for number in [int(i) for i in ids]:
        if number in control:
            parts += [model.decode(run), control[number]]
            run = []
        else:
            run.append(number)
    return "".join([*parts, model.decode(run)])
