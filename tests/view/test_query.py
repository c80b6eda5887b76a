from __future__ import annotations

import pytest

from shardmill.errors import ConfigError
from shardmill.view.query import Budget, Query


def test_numbers_and_texts_are_taken_with_their_defaults() -> None:
    query = Query({"n": "12", "id": "a/b"})
    assert query.number("n") == 12
    assert query.number("at", 3) == 3
    assert query.number("n", most=5) == 5
    assert query.text("id") == "a/b"
    assert query.text("q", "") == ""


@pytest.mark.parametrize("value", ["", "-1", "1.5", "0x10", "१२", "9" * 17, "1e3", "nan"])
def test_what_is_no_number_is_refused(value: str) -> None:
    with pytest.raises(ConfigError):
        Query({"n": value}).number("n")


def test_what_is_missing_or_endless_is_refused() -> None:
    with pytest.raises(ConfigError):
        Query({}).text("id")
    with pytest.raises(ConfigError):
        Query({"id": "x" * 3000}).text("id")


def test_a_budget_ends() -> None:
    assert Budget(0.0).is_spent
    assert not Budget(3600.0).is_spent
