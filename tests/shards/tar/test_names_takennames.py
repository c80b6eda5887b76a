"""A key or a name is taken once, whether it comes alone or with many."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis.strategies import booleans, lists, text, tuples

from shardmill.errors import SampleError
from shardmill.shards.tar.names import TakenNames
from shardmill.shards.weave import texts

STEPS = lists(tuples(booleans(), lists(text("ab9é", min_size=1, max_size=2), max_size=4)))


@given(STEPS)
def test_keys_are_taken_once(steps: list[tuple[bool, list[str]]]) -> None:
    names, taken = TakenNames("a.tar"), set[str]()
    for together, keys in steps:
        for some in [keys] if together else [[key] for key in keys]:
            is_free = len(set(some)) == len(some) and taken.isdisjoint(some)
            if together:
                assert names.take_all(texts([key.encode() for key in some])) == is_free
            elif is_free:
                names.take(some[0], [f"{some[0]}.txt"])
            else:
                with pytest.raises(SampleError, match=f"{some[0]!r} is in a.tar already"):
                    names.take(some[0], [f"{some[0]}.txt"])
            taken.update(some if is_free else ())


def test_a_name_may_belong_to_one_sample() -> None:
    names = TakenNames("a.tar")
    names.take("a", ["a.json", "a-0.jpg"])
    with pytest.raises(SampleError, match=r"'a-0\.jpg' is in a\.tar already"):
        names.take("a-0", ["a-0.jpg"])
