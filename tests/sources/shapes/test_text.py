from __future__ import annotations

import pytest

from shardmill.errors import SampleError
from shardmill.sources.shapes.text import TextShape


def test_text_is_the_first_field_that_holds_any() -> None:
    shaped = TextShape().shape({"text": "", "content": "words", "url": "page"})
    assert [p.text for p in shaped.pieces] == ["words"]
    assert shaped.extra == {"text": "", "url": "page"}


@pytest.mark.parametrize("row", [{}, {"text": None}, {"text": ""}, {"text": ["x"]}])
def test_a_row_without_text_is_a_reject(row: dict[str, object]) -> None:
    with pytest.raises(SampleError):
        TextShape().shape(row)
