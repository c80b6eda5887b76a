"""Same: whether two data sets hold the same, in whatever formats, read side by side in order.

Only aspects that both formats have a place for are compared, and the verdict lists them, so that
"the same" never says more than was looked at. Memory is bounded by a record of each side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ConfigError, ShardmillError
from shardmill.formats.format import Aspect, Part, Reader, Record, with_codes

CONTENT: frozenset[Aspect] = frozenset({"tokens", "words", "codes", "text", "media"})
ORDER: tuple[Aspect, ...] = get_args(Aspect)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first place where two data sets differ: the record, counted from 0, and how."""

    number: int
    key: str
    aspect: str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What was compared, what only one side has a place for, and the first difference."""

    compared: tuple[Aspect, ...]
    only_first: tuple[Aspect, ...]
    only_second: tuple[Aspect, ...]
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

    If one of them joins rows to larger records than the other, their rows are compared.
    """
    holds_a, holds_b = (reader.holds() - ignoring for reader in (first, second))
    shared = holds_a & holds_b
    if "tokens" in shared:  # which are more than the words among them
        holds_a, holds_b, shared = (aspects - {"words"} for aspects in (holds_a, holds_b, shared))
    if not shared & CONTENT:
        raise ConfigError(
            f"there is nothing to compare: one holds {_listed(holds_a)}, the other "
            f"{_listed(holds_b)}"
        )
    aspects = tuple(aspect for aspect in ORDER if aspect in shared)
    num_records = num_tokens = 0
    difference = None
    for pair in zip_longest(*_records(first, second, shared)):
        difference = _difference(num_records, *pair, aspects)
        if difference is not None:
            break
        num_records += 1
        num_tokens += pair[0].num_tokens or pair[1].num_tokens
    return Comparison(
        compared=aspects,
        only_first=_sorted(holds_a - shared),
        only_second=_sorted(holds_b - shared),
        num_records=num_records,
        num_tokens=num_tokens,
        difference=difference,
    )


def _records(
    first: Reader, second: Reader, shared: frozenset[Aspect]
) -> tuple[Iterator[Record], Iterator[Record]]:
    """Return the records of both sides, cut into rows if they are grouped differently."""
    parts_a, parts_b = list(first.parts()), list(second.parts())
    count_a, count_b = (sum(part.num_records for part in parts) for parts in (parts_a, parts_b))
    # Packs on one side and rows on the other: both know their documents, so these are compared.
    if count_a != count_b and {"tokens", "documents"} <= shared:
        return _rows(first, parts_a), _rows(second, parts_b)
    return _whole(first, parts_a), _whole(second, parts_b)


def _whole(reader: Reader, parts: Sequence[Part]) -> Iterator[Record]:
    return (record for part in parts for record in reader.read(part.input))


def _rows(reader: Reader, parts: Sequence[Part]) -> Iterator[Record]:
    space = reader.token_space()
    for record in _whole(reader, parts):
        for row in record.rows:
            single = Record(key=row.key, rows=(row,), problem=record.problem)
            yield single if space is None else with_codes(single, space)


def _difference(
    number: int, a: Record | None, b: Record | None, aspects: Sequence[Aspect]
) -> Difference | None:
    if a is None or b is None:
        side, key = ("second", b.key) if b is not None else ("first", a.key if a else "")
        what = f"only the {side} has a record {number}"
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
    if len(keys_a) != len(keys_b):
        return "" if a.key == b.key else f"{a.key!r} and {b.key!r}"
    # Some formats only keep the key of a pack's first document.
    pairs = ((x, y) for x, y in zip(keys_a, keys_b) if x and y)
    return next((f"{x!r} and {y!r}" for x, y in pairs if x != y), "")


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
    "text": _of_text,
    "tokens": _of_values("token", Record.ids),
    "words": _of_values("id outside of media", Record.words),
    "documents": _of_documents,
    "loss": _of_values("loss mask of token", lambda record: record.loss_mask().view(np.uint8)),
    "modality": _of_values("modality of token", Record.modality),
    "codes": _of_codes,
    "media": _of_media,
}


def _sorted(aspects: frozenset[Aspect]) -> tuple[Aspect, ...]:
    return tuple(aspect for aspect in ORDER if aspect in aspects)


def _listed(aspects: frozenset[Aspect]) -> str:
    return ", ".join(_sorted(aspects)) or "nothing"
