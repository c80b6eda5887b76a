"""Columns of JSON text, to be woven: quoted strings, numbers, lists and objects of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from shardmill.io.weave import Column, constant, texts, weave

ESCAPED = np.isin(np.arange(256), [*range(32), ord('"'), ord("\\")])


def quoted(strings: Sequence[str]) -> Column:
    """Return strings as JSON, with their quotes."""
    return weave(quoted_texts(texts([string.encode() for string in strings])))


def quoted_texts(rows: Column) -> list[Column]:
    """Return texts in UTF-8, whose bytes lie one after the other, as JSON.

    Only those with a sign to be escaped are copied.
    """
    quote = constant(b'"', len(rows))
    places = np.flatnonzero(ESCAPED[rows.data])
    if not len(places):
        return [quote, rows, quote]
    changed = np.unique(np.searchsorted(rows.starts, places, side="right") - 1)
    escaped = texts([orjson.dumps(bytes(rows[row]).decode())[1:-1] for row in changed.tolist()])
    starts, lengths = rows.starts.copy(), rows.lengths.copy()
    starts[changed], lengths[changed] = len(rows.data) + escaped.starts, escaped.lengths
    return [quote, Column(np.concatenate([rows.data, escaped.data]), starts, lengths), quote]


def chosen(strings: Sequence[str], numbers: NDArray[Any]) -> Column:
    """Return some of a few strings as JSON, by their numbers."""
    return quoted(strings).taken(numbers.astype(np.int64))


def json_object(fields: Mapping[str, Sequence[Column]], num_rows: int) -> list[Column]:
    """Return an object whose fields are JSON already, in this order."""
    columns, opening = [], b"{"
    for name, content in fields.items():
        columns += [constant(opening + orjson.dumps(name) + b":", num_rows), *content]
        opening = b","
    return [*columns, constant(b"}", num_rows)]


def json_list(items: Sequence[Column], bounds: NDArray[np.int64]) -> list[Column]:
    """Return lists of which the i-th has the items bounds[i] to bounds[i + 1]."""
    num_rows = len(bounds) - 1
    inside = list(items) if bool((np.diff(bounds) == 1).all()) else [_joined(items, bounds)]
    return [constant(b"[", num_rows), *inside, constant(b"]", num_rows)]


def _joined(items: Sequence[Column], bounds: NDArray[np.int64]) -> Column:
    """Return a column of the items of each row, with commas between them."""
    each = weave([*items, constant(b",", int(bounds[-1]))])
    places = np.append(each.starts, len(each.data))[bounds]
    # The comma after a row's last item is left out.
    return Column(each.data, places[:-1], np.maximum(np.diff(places) - 1, 0))
