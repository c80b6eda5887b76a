"""A key or a name is taken once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis.strategies import lists, text

from shardmill.errors import SampleError
from shardmill.shards.tar.names import TakenNames


@given(lists(text("ab9é", min_size=1, max_size=2)))
def test_keys_are_taken_once(keys: list[str]) -> None:
    names, taken = TakenNames("a.tar"), set[str]()
    for key in keys:
        if key not in taken:
            names.take(key, [f"{key}.txt"])
        else:
            with pytest.raises(SampleError, match=f"{key!r} is in a.tar already"):
                names.take(key, [f"{key}.txt"])
        taken.add(key)


def test_a_name_may_belong_to_one_sample() -> None:
    names = TakenNames("a.tar")
    names.take("a", ["a.json", "a-0.jpg"])
    with pytest.raises(SampleError, match=r"'a-0\.jpg' is in a\.tar already"):
        names.take("a-0", ["a-0.jpg"])
