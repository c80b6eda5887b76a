"""Columns of JSON: what a JSON reader makes of them is what was put in."""

from __future__ import annotations

import json

import numpy as np
import orjson
from hypothesis import given
from hypothesis.strategies import characters, integers, lists, text

from shardmill.shards.weave import (
    Column,
    chosen,
    json_list,
    json_object,
    numbers,
    quoted,
    quoted_texts,
    texts,
    weave,
)

STRINGS = text(characters(exclude_categories=("Cs",)))


def parsed(columns: list[Column]) -> list[object]:
    woven = weave(columns)
    return [json.loads(bytes(woven[row])) for row in range(len(woven))]


@given(lists(lists(STRINGS, max_size=4), max_size=5))
def test_lists_of_strings(rows: list[list[str]]) -> None:
    strings = [string for row in rows for string in row]
    bounds = np.cumsum([0, *map(len, rows)])
    assert parsed(json_list([quoted(strings)], bounds)) == rows


@given(lists(integers(0, 1 << 50), max_size=6), STRINGS)
def test_objects_keep_the_order_of_their_fields(values: list[int], name: str) -> None:
    column = numbers(np.array(values, np.int64))
    fields = {
        "b": [column],
        "a": json_list([column], np.arange(len(values) + 1)),
        name: [quoted([name] * len(values))],
    }
    for value, found in zip(values, parsed(json_object(fields, len(values))), strict=True):
        wanted = {"b": value, "a": [value], name: name}
        assert (found, list(found)) == (wanted, list(wanted))  # type: ignore[call-overload]


@given(lists(text('a"\\\0u0,\n\té\x7f', max_size=9), max_size=6))
def test_strings_are_quoted_whatever_is_in_them(strings: list[str]) -> None:
    found = quoted_texts(texts([string.encode() for string in strings]))
    assert weave(found).contents() == [orjson.dumps(string) for string in strings]
    assert quoted(strings).contents() == weave(found).contents()


def test_some_of_a_few() -> None:
    assert parsed([chosen(("text", "image"), np.array([1, 0, 1], np.uint8))]) == [
        "image",
        "text",
        "image",
    ]
