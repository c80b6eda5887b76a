from __future__ import annotations

import pytest

from shardmill.errors import SampleError
from shardmill.sources.shapes.shape import first_of, is_missing, media_list, text_of, unused


def test_zero_and_false_are_something() -> None:
    assert not is_missing(0)
    assert not is_missing(False)
    assert all(map(is_missing, (None, "", [], {}, b"")))


def test_fields_are_looked_up_in_order() -> None:
    fields = {"a": "", "b": "x", "c": ["y", "z"]}
    assert first_of(fields, ("a", "b", "c")) == "b"
    assert media_list(fields, ("a", "c")) == (["y", "z"], {"c"})
    assert media_list(fields, ("a", "d")) == ([], {"a"})
    assert unused(fields, {"a", "c"}) == {"b": "x"}


def test_text_must_be_text() -> None:
    with pytest.raises(SampleError, match="field 'a' is a int"):
        text_of({"a": 5}, "a")
