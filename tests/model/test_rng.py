"""The same keys give the same numbers; other keys give numbers that are spread evenly."""

from __future__ import annotations

from collections import Counter

import numpy as np

from shardmill.model.rng import SampleRng, mix, mix_array


def test_a_number_depends_on_each_of_its_keys() -> None:
    numbers = [
        SampleRng(0, 0, "a").uniform("x"),
        SampleRng(1, 0, "a").uniform("x"),
        SampleRng(0, 1, "a").uniform("x"),
        SampleRng(0, 0, "b").uniform("x"),
        SampleRng(0, 0, "a").uniform("y"),
    ]
    assert len(set(numbers)) == len(numbers)
    assert SampleRng(0, 0, "a").uniform("x") == numbers[0]


def test_numbers_never_change() -> None:
    assert SampleRng(7, 2, "key").uniform("instruction") == 0.5834156936659295


def test_options_come_up_evenly() -> None:
    options = Counter(SampleRng(0, 0, str(n)).choose("option", range(6)) for n in range(6000))
    assert set(options) == set(range(6))
    assert all(800 < count < 1200 for count in options.values())


def test_mixed_numbers_never_change() -> None:
    assert mix(1, 2, 3) == 0xD0734750FDE362B3


def test_array_and_number_are_mixed_alike() -> None:
    numbers = np.array([0, 1, 2**63], np.uint64)
    assert mix_array(numbers, 5).tolist() == [mix(5, int(n)) for n in numbers]
