"""Keys come back as they were, whatever stands at their ends."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shardmill.shards.arrays import Arrays
from shardmill.shards.columns import KeyList, NumberedKeys, open_keys, pack_keys, split_key

KEYS = st.lists(
    st.from_regex(r"[ab/é٣-]{0,3}[0-9]{0,25}", fullmatch=True), unique=True, max_size=12
)


@given(KEYS)
def test_keys_come_back_and_are_found(keys: list[str]) -> None:
    column = open_keys(Arrays(Path("x"), "f", {}, pack_keys(keys)), len(keys))
    assert list(column) == keys
    assert [column.find(key) for key in keys] == list(range(len(keys)))
    assert column.find("absent") is None
    assert column.find("absent-7") is None


def test_a_number_keeps_its_zeros() -> None:
    assert split_key("a-007") == ("a-", 3, 7)
    assert split_key("a") == ("a", 0, 0)
    assert split_key("7" * 20) == ("77", 18, int("7" * 18))


@given(
    prefix=st.sampled_from(["train-", "", "a1"]),
    width=st.integers(0, 20),
    numbers=st.lists(st.integers(-3, 2**63 - 1) | st.integers(0, 99), max_size=5),
)
def test_numbers_are_stored_like_the_keys_they_make(
    prefix: str, width: int, numbers: list[int]
) -> None:
    keys = NumberedKeys(prefix, width, np.array(numbers, np.int64))
    texts = [f"{prefix}{number:0{width}d}" for number in numbers]
    assert list(keys) == texts
    grown, wanted = KeyList(), KeyList()
    for part in (["b-7"], keys, ["train-5"]):
        grown.extend(part)
    wanted.extend(["b-7", *texts, "train-5"])
    assert len(grown) == len(texts) + 2
    for name, column in wanted.arrays().items():
        assert np.array_equal(grown.arrays()[name], column)
