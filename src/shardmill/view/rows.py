"""Rows of tokens as the page shows them: painted by loss and modality, media in place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from shardmill.errors import ConfigError, ShardmillError
from shardmill.model.codec import from_plain
from shardmill.model.sample import Origin
from shardmill.model.space import TokenSpace
from shardmill.model.tokenrow import MediaSpan, TokenRow, mask_of
from shardmill.plugins import TEXT_TOKENIZERS
from shardmill.shards.tokens.dataset import TokenSet
from shardmill.tokens.text.tokenizer import TextSpec, TextTokenizer, load_once
from shardmill.view.access import Fence
from shardmill.view.folder import Folder
from shardmill.view.items import NotHere
from shardmill.view.query import Budget

MAX_TOKENS = 16_384
PIECE_CONTEXT = 3
REPLACEMENT = "\ufffd"
BUNDLED = "bundled"

Decode = Callable[[list[int]], str]


def list_rows(folder: Folder, at: int, count: int) -> list[dict[str, Any]]:
    """Return a line for each of some rows."""
    with folder.lock:
        rows = folder.tokens()
        return [_line(rows, number) for number in range(at, min(at + count, len(rows)))]


def filter_rows(
    folder: Folder, at: int, count: int, *, source: str, wanted: str, budget: Budget
) -> dict[str, Any]:
    """Return rows from `at` on, of one source, with `wanted` in their key."""
    with folder.lock:
        rows = folder.tokens()
        total, number, found = len(rows), at, list[dict[str, Any]]()
        while number < total and len(found) < count and not budget.is_spent:
            shard, inside = rows.locate(number)
            opened = rows.shard(shard)
            if source and source not in opened.spans.meta["sources"]:
                number += len(opened) - inside
                continue
            line = _line(rows, number)
            if wanted in line["key"] and source in ("", line["source"]):
                found.append(line)
            number += 1
    return {"rows": found, "next": None if number >= total else number, "searched": number}


def show_row(folder: Folder, number: int, decoder: Decoder) -> dict[str, Any]:
    """Return a row in full: runs of tokens with their texts, spans of loss, media and origin."""
    with folder.lock:
        rows = folder.tokens()
        if not 0 <= number < len(rows):
            raise NotHere(f"there are rows 0..{len(rows) - 1}, not {number}")
        row = rows[number]
        shard, inside = rows.locate(number)
        return {
            "number": number,
            "total": len(rows),
            "shard": rows.entries[shard].name,
            "row_in_shard": inside,
            **describe_row(row),
            "runs": list(decoder.runs(shortened(row, MAX_TOKENS))),
            "cut": max(0, len(row.ids) - MAX_TOKENS),
            "undecoded": decoder.problem,
        }


def describe_row(row: TokenRow) -> dict[str, Any]:
    """Return what a row is, without its tokens."""
    return {
        "key": row.key,
        "tokens": len(row.ids),
        "visual": row.num_visual,
        "learned": row.num_loss,
        "loss": row.loss.tolist(),
        "media": [describe_span(span) for span in row.media],
        "origin": describe_origin(row.origin),
        "continues": row.continues,
    }


def describe_span(span: MediaSpan) -> dict[str, Any]:
    """Return where a medium lies among the tokens."""
    return {
        "name": span.name,
        "kind": span.kind,
        "position": span.position,
        "tokens": span.num_tokens,
        "grid": list(span.grid),
        "before": span.before,
        "after": span.after,
    }


def describe_origin(origin: Origin | None) -> dict[str, Any] | None:
    """Return where a document came from."""
    if origin is None:
        return None
    return {"source": origin.source, "path": origin.path, "row": origin.row}


def shortened(row: TokenRow, num_tokens: int) -> TokenRow:
    """Return the beginning of a long row, with no medium cut in two."""
    if len(row.ids) <= num_tokens:
        return row
    media = tuple(span for span in row.media if span.end <= num_tokens)
    loss = row.loss[row.loss[:, 0] < num_tokens].copy()
    loss[:, 1] = np.minimum(loss[:, 1], num_tokens - loss[:, 0])
    return replace(row, ids=row.ids[:num_tokens], loss=loss, media=media)


class Decoder:
    """Turns rows of a folder into runs of text, by the tokenizer that its spec names.

    Only tokenizers of the plugin table are loaded, from inside of the fence or bundled: a folder
    from elsewhere cannot make the page import a class or read a file of its choice. Without a
    tokenizer the runs hold ids.
    """

    def __init__(self, spec: Mapping[str, Any], fence: Fence) -> None:
        self.problem, self._fence = "", fence
        self._tokenizer: TextTokenizer | None = None
        self._names: dict[int, str] = {}
        try:
            self._load(spec)
        except (ShardmillError, OSError, ValueError) as error:
            self.problem = str(error)

    def runs(self, row: TokenRow) -> Iterator[dict[str, Any]]:
        """Yield runs {kind, learned, start, tokens, texts} that hold every token in order."""
        learned = mask_of(row.loss, len(row.ids))
        control = np.isin(row.ids, np.fromiter(self._names, np.int64, len(self._names)))
        position = 0
        for span in [*row.media, None]:
            end = len(row.ids) if span is None else span.position
            yield from self._text(row, learned, control, position, end)
            if span is not None:
                position = span.position + span.num_tokens
                yield {
                    "kind": span.kind,
                    "learned": bool(learned[span.position : position].any()),
                    "start": span.position,
                    "tokens": span.num_tokens,
                    "name": span.name,
                    "grid": list(span.grid),
                }

    def _text(self, row: TokenRow, learned: Any, control: Any, first: int, end: int) -> Any:
        if end <= first:
            return
        changes = (learned[first + 1 : end] != learned[first : end - 1]) | (
            control[first + 1 : end] != control[first : end - 1]
        )
        edges = [first, *(np.flatnonzero(changes) + first + 1).tolist(), end]
        for start, stop in pairwise(edges):
            ids = row.ids[start:stop].tolist()
            is_control = bool(control[start])
            yield {
                "kind": "control" if is_control else "text",
                "learned": bool(learned[start]),
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
        if tokenizer.get("kind") not in TEXT_TOKENIZERS.values():
            raise ConfigError(f"the page does not load the tokenizer {tokenizer.get('kind')!r}")
        if tokenizer.get("path") != BUNDLED:
            self._fence.check_url(str(tokenizer.get("path")))
        names = from_plain({**space, "kind": "shardmill.model.space:TokenSpace"}, TokenSpace).names
        self._names = {number: f"<{name}>" for name, number in names.items()}
        # Only decoding is wanted: no fast engine need prove itself.
        plain = {**tokenizer, "engine": "reference"}
        loaded = load_once(from_plain(plain, TextSpec, where="tokenizer"))
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


def open_decoder(folder: Folder, tokens: Folder | None) -> Decoder:
    """Return the decoder of a folder; packs are decoded by the tokenizer of their tokens."""
    spec = folder.spec if "tokenizer" in folder.spec or tokens is None else tokens.spec
    return Decoder(spec, folder.fence)


def _line(rows: TokenSet, number: int) -> dict[str, Any]:
    place, inside = rows.locate(number)
    shard = rows.shard(place)
    origin = shard.origin(inside)
    return {
        "number": number,
        "key": shard.keys[inside],
        "tokens": int(shard.lengths[inside]),
        "visual": int(shard.num_visual[inside]),
        "learned": int(shard.loss(inside)[:, 1].sum()),
        "source": origin.source if origin else "",
        "media": [describe_span(span) for span in shard.media(inside)],
    }
