"""The same throw gives the same face; other throws are spread evenly."""

from __future__ import annotations

from collections import Counter

from shardmill.model.rng import Dice


def test_a_throw_depends_on_each_of_its_parts() -> None:
    throws = [
        Dice(0, 0, "a").throw("x"),
        Dice(1, 0, "a").throw("x"),
        Dice(0, 1, "a").throw("x"),
        Dice(0, 0, "b").throw("x"),
        Dice(0, 0, "a").throw("y"),
    ]
    assert len(set(throws)) == len(throws)
    assert Dice(0, 0, "a").throw("x") == throws[0]


def test_throws_are_known_numbers() -> None:
    assert Dice(7, 2, "key").throw("instruction") == 0.5834156936659295


def test_faces_come_up_evenly() -> None:
    faces = Counter(Dice(0, 0, str(n)).choose("face", range(6)) for n in range(6000))
    assert set(faces) == set(range(6))
    assert all(800 < count < 1200 for count in faces.values())
