"""A row of tokens as a person reads it: runs of text, each marked as learned, control or media."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Literal, TypeAlias

import numpy as np

from shardmill.errors import ConfigError
from shardmill.model.codec import from_plain, places_of, to_plain
from shardmill.model.manifest import Manifest
from shardmill.model.space import TokenSpace
from shardmill.model.tokenrow import MediaSpan, TokenRow, mask_of
from shardmill.tokens.text.tokenizer import Special, TextSpec, TextTokenizer, load_once

Kind: TypeAlias = Literal["text", "control", "media"]


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring tokens of one kind that are all learned or all not."""

    text: str
    kind: Kind
    learned: bool


class Numbers:
    """Stands in for a tokenizer that is not known: a token is shown by its number."""

    specials: Mapping[str, Special] = MappingProxyType({})

    def decode(self, ids: Sequence[int]) -> str:
        """[5, 17] -> "5 17 "."""
        return "".join(f"{token} " for token in ids)


def open_readable(manifest: Manifest) -> Callable[[TokenRow], list[Run]]:
    """Return what makes runs of the rows of a finished folder, by the tokenizer of its spec.

    Tokens that were adopted without a tokenizer are shown by their numbers.
    """
    stage = manifest.stage
    if not isinstance(stage, dict) or "tokenizer" not in stage:
        raise ConfigError("this folder does not say which tokenizer made it")
    reader = stage.get("reader")
    stored = reader.get("space") if isinstance(reader, dict) else stage.get("space")
    space = from_plain(stored, TokenSpace, where="space")
    if stage["tokenizer"] is None:
        return lambda row: readable_runs(row, Numbers(), space)
    spec = from_plain(stage["tokenizer"], TextSpec, where="tokenizer")
    if any("://" in place for place in places_of(to_plain(spec))):  # data may not say whom to ask
        raise ConfigError("this folder names a tokenizer that is no local file")
    tokenizer = load_once(spec)
    return lambda row: readable_runs(row, tokenizer, space)


def readable_runs(
    row: TokenRow, tokenizer: TextTokenizer | Numbers, space: TokenSpace
) -> list[Run]:
    """Return the runs of a row in order; all of them together hold every token."""
    names = {number: f"<{name}>" for name, number in space.names.items()}
    names |= {special.id: text for text, special in tokenizer.specials.items()}
    learned = mask_of(row.loss, len(row.ids))
    control = np.isin(row.ids, np.fromiter(names, np.int64, len(names)))
    runs: list[Run] = []
    position = 0
    for span in [*row.media, None]:
        end = len(row.ids) if span is None else span.position
        for start, stop in _sections(control[position:end], position):
            if control[start]:
                token = names[int(row.ids[start])]
                runs.append(Run(token, "control", bool(learned[start])))
            else:
                runs += _text_runs(row, learned, start, stop, tokenizer)
        if span is not None:
            position = span.position + span.num_tokens
            is_learned = bool(learned[span.position : position].any())
            runs.append(Run(_describe(span), "media", is_learned))
    return runs


def _sections(
    control: np.ndarray[tuple[int], np.dtype[np.bool_]], first: int
) -> Iterator[tuple[int, int]]:
    """Yield each control token by itself, and each run of others."""
    edges = np.flatnonzero(control[1:] | control[:-1]) + 1
    bounds = [0, *edges.tolist(), len(control)]
    return ((first + start, first + stop) for start, stop in pairwise(bounds) if stop > start)


def _text_runs(
    row: TokenRow,
    learned: np.ndarray[tuple[int], np.dtype[np.bool_]],
    start: int,
    stop: int,
    tokenizer: TextTokenizer | Numbers,
) -> Iterator[Run]:
    edges = np.flatnonzero(np.diff(learned[start:stop])) + start + 1
    shown = ""
    for begin, end in pairwise([start, *edges.tolist(), stop]):
        # Decoded from the start of the section, so that spaces at the edges stay.
        text = tokenizer.decode(row.ids[start:end].tolist())
        yield Run(text[len(shown) :], "text", bool(learned[begin]))
        shown = text


def _describe(span: MediaSpan) -> str:
    name = f"{span.kind} {span.name}".rstrip()
    grid = " x ".join(str(size) for size in span.grid if size)
    return f"[{name}: {f'{grid}, ' if grid else ''}{span.num_tokens} tokens]"
