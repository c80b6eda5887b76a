"""Same: whether two data sets hold the same, in whatever formats, read side by side in order.

All that both have a place for is compared, and the verdict lists it, and what is not compared with
the reason, so that "the same" never says more than was looked at. Memory is bounded by a record of
each side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ConfigError, ShardmillError
from shardmill.formats.format import ASPECTS, OF_ROWS, Aspect, Reader, Record, with_codes

CONTENT: frozenset[Aspect] = frozenset({"tokens", "words", "codes", "text", "media"})
ORDER: tuple[Aspect, ...] = tuple(ASPECTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first place where two data sets differ: the record, counted from 0, and how."""

    number: int
    key: str
    aspect: str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What was compared, what was not and why, and the first difference."""

    compared: tuple[Aspect, ...]
    not_compared: Mapping[Aspect, str]
    num_records: int
    num_tokens: int
    difference: Difference | None

    @property
    def same(self) -> bool:
        """Whether no difference was found."""
        return self.difference is None


def compare(
    first: Reader, second: Reader, *, ignoring: frozenset[Aspect] = frozenset()
) -> Comparison:
    """Compare two data sets record by record up to the first difference.

    If not both have packs, or packs are ignored, the rows in them are compared.
    """
    holds = first.holds(), second.holds()
    if all("tokens" in held for held in holds):
        holds = holds[0] - {"words"}, holds[1] - {"words"}  # which are among the tokens
    shared = holds[0] & holds[1] - ignoring
    by_row = {"tokens", "documents"} <= shared and "packs" not in shared
    not_compared = _not_compared(*holds, ignoring, by_row)
    aspects = tuple(aspect for aspect in ORDER if aspect in shared - not_compared.keys())
    if not CONTENT & {*aspects}:
        one, other = (_listed(held - ignoring) for held in holds)
        raise ConfigError(f"there is nothing to compare: one holds {one}, the other {other}")
    num_records = num_tokens = 0
    difference = None
    records = _rows if by_row else _whole
    for pair in zip_longest(records(first), records(second)):
        difference = _difference(num_records, *pair, aspects)
        if difference is not None:
            break
        num_records += 1
        num_tokens += pair[0].num_tokens or pair[1].num_tokens
    return Comparison(
        compared=aspects,
        not_compared=not_compared,
        num_records=num_records,
        num_tokens=num_tokens,
        difference=difference,
    )


def _not_compared(
    first: frozenset[Aspect], second: frozenset[Aspect], ignoring: frozenset[Aspect], by_row: bool
) -> dict[Aspect, str]:
    """Return what is not compared of all that either side has, and why."""
    why: dict[Aspect, str] = {}
    for aspect in (a for a in ORDER if a in first | second):
        if aspect in ignoring:
            why[aspect] = "ignored, as you said"
        elif aspect not in first or aspect not in second:
            why[aspect] = f"only the {'first' if aspect in first else 'second'} has a place for it"
        elif aspect == "origin":
            why[aspect] = "it says where a sample came from, not what it is"
        elif by_row and aspect not in OF_ROWS | {"codes", "words"}:
            why[aspect] = "records are taken apart into rows"
    # A key is the better name; whoever ignores it does not want to hear of numbers.
    if "idx" not in why and "idx" in first & second and {"keys"} & (first & second | ignoring):
        why["idx"] = "keys stand for it"
    return why


def _whole(reader: Reader) -> Iterator[Record]:
    return (record for part in reader.parts() for record in reader.read(part.input))


def _rows(reader: Reader) -> Iterator[Record]:
    space = reader.token_space()
    for record in _whole(reader):
        if record.problem is not None:
            yield record
        for row in record.rows:
            single = Record(key=row.key, rows=(row,))
            yield single if space is None else with_codes(single, space)


def _difference(
    number: int, a: Record | None, b: Record | None, aspects: Sequence[Aspect]
) -> Difference | None:
    if a is None or b is None:
        side, key = ("second", b.key) if b is not None else ("first", a.key if a else "")
        what = f"only the {side} has a record {number}"
        if "packs" in aspects:
            what += "; --ignore packs compares the rows in them"
        return Difference(number=number, key=key, aspect="records", what=what)
    for record in (a, b):
        if record.problem is not None:
            raise ShardmillError(
                f"record {number}, {record.key!r}, cannot be read: {record.problem}"
            )
    for aspect in aspects:
        what = FINDERS[aspect](a, b)
        if what:
            return Difference(number=number, key=a.key or b.key, aspect=aspect, what=what)
    return None


def _of_keys(a: Record, b: Record) -> str:
    keys_a, keys_b = ([row.key for row in record.rows] or [record.key] for record in (a, b))
    if len(keys_a) != len(keys_b):  # which the borders of documents tell, if both have them
        keys_a, keys_b = keys_a[:1], keys_b[:1]
    return next((f"{x!r} and {y!r}" for x, y in zip(keys_a, keys_b) if x != y), "")


def _of_idx(a: Record, b: Record) -> str:
    return "" if a.idx == b.idx else f"{a.idx} and {b.idx}"


def _of_segments(a: Record, b: Record) -> str:
    if len(a.segments) != len(b.segments):
        return f"{len(a.segments)} and {len(b.segments)} segments"
    pairs = enumerate(zip(a.segments, b.segments))
    return next((f"segment {n} is {x} and {y}"[:200] for n, (x, y) in pairs if x != y), "")


def _of_extra(a: Record, b: Record) -> str:
    names = sorted({*a.extra, *b.extra})
    return next((f"the field {n!r}" for n in names if a.extra.get(n) != b.extra.get(n)), "")


def _of_spans(a: Record, b: Record) -> str:
    for document, (x, y) in enumerate(zip(a.rows, b.rows)):
        if len(x.media) != len(y.media):
            return f"document {document} has {len(x.media)} and {len(y.media)} media"
        for span, other in zip(x.media, y.media):
            if span != other:
                return f"document {document}: {span} and {other}"
    return ""


def _of_documents(a: Record, b: Record) -> str:
    lengths_a, lengths_b = ([len(row.ids) for row in record.rows] for record in (a, b))
    return "" if lengths_a == lengths_b else f"lengths {lengths_a[:9]} and {lengths_b[:9]}"


def _of_values(
    name: str, values: Callable[[Record], NDArray[Any]]
) -> Callable[[Record, Record], str]:
    def find(a: Record, b: Record) -> str:
        return first_difference(name, values(a), values(b))

    return find


def first_difference(name: str, a: NDArray[Any], b: NDArray[Any]) -> str:
    """Return where two lists of numbers differ, '' if they do not."""
    length = min(len(a), len(b))
    places = np.flatnonzero(a[:length] != b[:length])
    if len(places):
        place = int(places[0])
        return f"{name} {place} is {int(a[place])} and {int(b[place])}"
    if len(a) == len(b):
        return ""
    one, _, rest = name.partition(" ")
    return f"{len(a)} and {len(b)} {one}s {rest}".rstrip() + ", equal as far as they go"


def _of_codes(a: Record, b: Record) -> str:
    if len(a.codes) != len(b.codes):
        return f"{len(a.codes)} and {len(b.codes)} images"
    for number, pair in enumerate(zip(a.codes, b.codes)):
        what = first_difference("code", *pair)
        if what:
            return f"image {number}: {what}"
    return ""


def _of_text(a: Record, b: Record) -> str:
    if a.text == b.text:
        return ""
    length = min(len(a.text), len(b.text))
    place = next((i for i in range(length) if a.text[i] != b.text[i]), length)
    shown = [record.text[place : place + 20] for record in (a, b)]
    return f"from character {place} on: {shown[0]!r} and {shown[1]!r}"


def _of_media(a: Record, b: Record) -> str:
    if len(a.media) != len(b.media):
        return f"{len(a.media)} and {len(b.media)} media"
    pairs = enumerate(zip(a.media, b.media))
    return next((f"the bytes of medium {n}" for n, (x, y) in pairs if x != y), "")


FINDERS: dict[Aspect, Callable[[Record, Record], str]] = {
    "keys": _of_keys,
    "idx": _of_idx,
    "text": _of_text,
    "segments": _of_segments,
    "extra": _of_extra,
    "tokens": _of_values("token", Record.ids),
    "words": _of_values("id outside of media", Record.words),
    "documents": _of_documents,
    "packs": lambda a, b: "",  # a record is a pack, so that what is above compares them
    "loss": _of_values("loss mask of token", lambda record: record.loss_mask().view(np.uint8)),
    "modality": _of_values("modality of token", Record.modality),
    "spans": _of_spans,
    "codes": _of_codes,
    "media": _of_media,
}


def _listed(aspects: frozenset[Aspect]) -> str:
    return ", ".join(aspect for aspect in ORDER if aspect in aspects) or "nothing"
