"""Rows of tokens as text: decoded, split into runs by loss and modality, with media in place.

A run is {kind, in_loss, start, tokens, ...}: "text" and "control" runs carry the text of each token
and its id, runs of media their name and grid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from shardmill.errors import ConfigError, ShardmillError
from shardmill.model.codec import from_plain, places_of, to_plain
from shardmill.model.space import TokenSpace
from shardmill.model.tokenrow import TokenRow, mask_of
from shardmill.plugins import TEXT_TOKENIZERS
from shardmill.tokens.text.tokenizer import TextSpec, TextTokenizer, load_once

MAX_TOKENS = 16_384  # more elements make a browser slow
PIECE_CONTEXT = 3  # a character of UTF-8 has at most four bytes, so at most four tokens
REPLACEMENT = "\ufffd"

Decode = Callable[[list[int]], str]


class Decoder:
    """Turns rows of a folder into runs of text, by the tokenizer that its spec names.

    Only tokenizers of the plugin table are loaded, bundled or from where `check_url` allows: a
    folder from elsewhere cannot make the page import a class or read a file of its choice. Without
    a tokenizer the runs hold ids, and `problem` says why.
    """

    def __init__(self, spec: Mapping[str, Any], check_url: Callable[[str], None]) -> None:
        self.problem, self._check_url = "", check_url
        self._tokenizer: TextTokenizer | None = None
        self._names: dict[int, str] = {}
        try:
            self._load(spec)
        except (ShardmillError, OSError, ValueError) as error:
            self.problem = str(error)

    def decode(self, row: TokenRow) -> dict[str, Any]:
        """Return the runs of a row, of a very long one only the first tokens."""
        return {
            "runs": list(self.runs(shortened(row, MAX_TOKENS))),
            "cut": max(0, len(row.ids) - MAX_TOKENS),
            "undecoded": self.problem,
        }

    def runs(self, row: TokenRow) -> Iterator[dict[str, Any]]:
        """Yield the runs of a row; together they hold every token in order."""
        in_loss = mask_of(row.loss, len(row.ids))
        control = np.isin(row.ids, np.fromiter(self._names, np.int64, len(self._names)))
        position = 0
        for span in [*row.media, None]:
            end = len(row.ids) if span is None else span.position
            yield from self._text(row, in_loss, control, position, end)
            if span is not None:
                position = span.position + span.num_tokens
                yield {
                    "kind": span.kind,
                    "in_loss": bool(in_loss[span.position : position].any()),
                    "start": span.position,
                    "tokens": span.num_tokens,
                    "name": span.name,
                    "grid": list(span.grid),
                }

    def _text(self, row: TokenRow, in_loss: Any, control: Any, first: int, end: int) -> Any:
        if end <= first:
            return
        changes = (in_loss[first + 1 : end] != in_loss[first : end - 1]) | (
            control[first + 1 : end] != control[first : end - 1]
        )
        edges = [first, *(np.flatnonzero(changes) + first + 1).tolist(), end]
        for start, stop in pairwise(edges):
            ids = row.ids[start:stop].tolist()
            is_control = bool(control[start])
            yield {
                "kind": "control" if is_control else "text",
                "in_loss": bool(in_loss[start]),
                "start": start,
                "tokens": stop - start,
                "texts": [self._names[i] for i in ids] if is_control else self._pieces(ids),
                "ids": ids,
            }

    def _pieces(self, ids: list[int]) -> list[str]:
        if self._tokenizer is None:
            return [f"{number} " for number in ids]
        return pieces(self._tokenizer.decode, ids)

    def _load(self, spec: Mapping[str, Any]) -> None:
        tokenizer, space = spec.get("tokenizer"), spec.get("space")
        if not isinstance(tokenizer, dict) or not isinstance(space, dict):
            raise ConfigError("this folder does not say which tokenizer made it")
        if str(tokenizer.get("kind")).removeprefix("text/") not in TEXT_TOKENIZERS:
            raise ConfigError(f"the page does not load the tokenizer {tokenizer.get('kind')!r}")
        # Only decoding is wanted, so the fast engines and their self-test stay out.
        plain = {**tokenizer, "engine": "reference"}
        wanted = from_plain(plain, TextSpec, where="tokenizer")
        for place in places_of(to_plain(wanted)):
            self._check_url(place)
        names = from_plain(space, TokenSpace).names
        self._names = {number: f"<{name}>" for name, number in names.items()}
        loaded = load_once(wanted)
        self._tokenizer = loaded
        self._names |= {special.id: text for text, special in loaded.specials.items()}


def pieces(decode: Decode, ids: list[int]) -> list[str]:
    """Return the text that each token adds; tokens that split a character add it with the last.

    A token alone may lose its space, so each is decoded after the few before it: what is new in
    the text is its own.
    """
    texts: list[str] = []
    held = 0
    for i in range(len(ids)):
        start = max(0, i - PIECE_CONTEXT - held)
        before, after = decode(ids[start : i - held]), decode(ids[start : i + 1])
        if after.endswith(REPLACEMENT) and held < PIECE_CONTEXT and i + 1 < len(ids):
            held += 1
            texts.append("")
            continue
        held = 0
        texts.append(after[len(before) :] if after.startswith(before) else after)
    return texts


def shortened(row: TokenRow, num_tokens: int) -> TokenRow:
    """Return the beginning of a long row, with no medium cut in two."""
    if len(row.ids) <= num_tokens:
        return row
    media = tuple(span for span in row.media if span.end <= num_tokens)
    loss = row.loss[row.loss[:, 0] < num_tokens].copy()
    loss[:, 1] = np.minimum(loss[:, 1], num_tokens - loss[:, 0])
    return replace(row, ids=row.ids[:num_tokens], loss=loss, media=media)
