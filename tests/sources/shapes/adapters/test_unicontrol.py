from __future__ import annotations

from typing import Any

import pytest

from shardmill.errors import SampleError
from shardmill.sources.shapes.adapters.unicontrol import UniControlShape


@pytest.mark.parametrize("name", ["value", "prompt"])
def test_condition_and_prompt_ask_for_the_target(name: str) -> None:
    row = {"source": "canny/1.jpg", "target": "images/1.jpg", name: "a cat", "task": "canny"}
    shaped = UniControlShape().shape(row)
    assert [(p.role, p.turn, p.media or p.text) for p in shaped.segments] == [
        ("user", 0, "canny/1.jpg"),
        ("user", 0, "a cat"),
        ("assistant", 1, "images/1.jpg"),
    ]
    assert shaped.extra == {"task": "canny"}


@pytest.mark.parametrize(
    "row", [{}, {"source": "a", "target": "b"}, {"source": "a", "value": "x"}, {"target": "b"}]
)
def test_a_pair_that_lacks_something_is_a_reject(row: dict[str, Any]) -> None:
    with pytest.raises(SampleError, match="missing field"):
        UniControlShape().shape(row)
