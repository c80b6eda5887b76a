"""What messages say besides their text is kept as written, and bad forms are rejects."""

from __future__ import annotations

from typing import Any

import pytest

from shardmill.errors import SampleError
from shardmill.model.sample import (
    Document,
    Sample,
    change_texts,
    kept_fields,
    stored_fields,
    tools_of,
    turn_fields,
)

CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}


def sample(**extra: Any) -> Sample:
    return Sample(key="k", document=Document(()), extra=extra)


def test_only_what_is_said_is_kept() -> None:
    message = {"role": "tool", "content": "2", "name": "add", "tool_call_id": "1", "tool_calls": []}
    assert kept_fields(message) == {"name": "add", "tool_call_id": "1"}
    assert kept_fields({"role": "user", "name": None, "weight": 1}) == {}


def test_fields_are_found_by_the_number_of_the_turn() -> None:
    assert turn_fields(sample()) == {}
    stored = {"1": {"tool_calls": [CALL]}, "12": {"name": "add"}}
    assert turn_fields(sample(turn_fields=stored)) == {1: stored["1"], 12: stored["12"]}


def test_stored_calls_come_back_in_their_order() -> None:
    stored = stored_fields({"tool_calls": [CALL], "name": "add"})
    (found,) = turn_fields(sample(turn_fields={"0": stored})).values()
    assert found == {"tool_calls": [CALL], "name": "add"}
    assert list(found["tool_calls"][0]) == ["type", "function"]
    with pytest.raises(SampleError, match="not JSON"):
        stored_fields({"tool_calls": [{"name": b"bytes"}]})


@pytest.mark.parametrize(
    "stored", [3, ["a"], {"x": {}}, {"-1": {}}, {"1": 2}, {"1": {"tool_calls": "add"}}]
)
def test_other_forms_are_rejects(stored: Any) -> None:
    with pytest.raises(SampleError, match="bad t"):
        turn_fields(sample(turn_fields=stored))


def test_tools_are_a_list_or_its_json() -> None:
    assert tools_of(sample(), "tools") is None
    assert tools_of(sample(tools=""), "tools") is None
    assert tools_of(sample(tools=[CALL]), "tools") == [CALL]
    assert tools_of(sample(functions='[{"name": "add"}]'), "functions") == [{"name": "add"}]


@pytest.mark.parametrize("tools", [7, {"name": "add"}, ["add"], "not json", '"text"'])
def test_anything_else_is_no_tools(tools: Any) -> None:
    with pytest.raises(SampleError, match="bad tools"):
        tools_of(sample(tools=tools), "tools")


def test_every_text_is_changed_and_nesting_is_bounded() -> None:
    value = {"a": ["b", {"c": (1, None, True, "d")}]}
    assert change_texts(value, str.upper) == {"A": ["B", {"C": [1, None, True, "D"]}]}
    deep: Any = "x"
    for _ in range(100):
        deep = [deep]
    with pytest.raises(SampleError, match="nested too deep"):
        change_texts(deep, str.upper)
