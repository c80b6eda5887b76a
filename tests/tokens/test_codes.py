"""Codes that a row carries already are found in whichever form they were stored."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

from shardmill.errors import SampleError
from shardmill.model.sample import Document, Sample, Segment
from shardmill.tokens.codes import FieldCodes

TEXT = Segment(kind="text", text="a cat")
IMAGE = Segment(kind="image", media="jpg")


def sample(value: Any, *segments: Segment, **media: bytes) -> Sample:
    return Sample(
        key="a", document=Document(segments or (TEXT,)), extra={"codes": value}, media=media
    )


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.mark.parametrize(
    "value",
    ["[0, 1, 2, 3]", [0, 1, 2, 3], [[0, 1], [2, 3]], {"jpg": [0, 1, 2, 3]}, '{"jpg": [0,1,2,3]}'],
)
def test_a_field_holds_codes(value: Any) -> None:
    found = FieldCodes(field="codes").codes(sample(value), "jpg")
    assert found.tolist() == [[0, 1], [2, 3]]


def test_a_member_holds_codes() -> None:
    stored = sample(None, IMAGE, npy=npy(np.array([[0, 1, 2], [3, 4, 5]], np.uint16)))
    found = FieldCodes(field="npy").codes(stored, "jpg")
    assert found.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_the_height_may_be_given() -> None:
    found = FieldCodes(field="codes", height=2).codes(sample([1, 2, 3, 4, 5, 6]), "jpg")
    assert found.tolist() == [[1, 2, 3], [4, 5, 6]]


def test_a_row_of_which_only_codes_are_left_gets_its_image_back() -> None:
    source = FieldCodes(field="codes")
    assert [s.kind for s in source.complete(sample("[1]")).document.segments] == ["image", "text"]
    for absent in ("no", "", None, []):
        assert source.complete(sample(absent)).document.segments == (TEXT,)
    assert source.complete(sample("[1]", IMAGE, TEXT)).document.segments == (IMAGE, TEXT)


@pytest.mark.parametrize(
    "value", ["no", None, "[", "[1, 2]", [1.5], [[1, 2], [3]], {"png": [1]}, "[]", [], ["a"], "{}"]
)
def test_what_is_no_image_of_codes_is_a_reject(value: Any) -> None:
    with pytest.raises(SampleError, match="image codes"):
        FieldCodes(field="codes").codes(sample(value), "jpg")


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", npy(np.array([object()]))])
def test_a_broken_or_pickled_member_is_a_reject(content: bytes) -> None:
    with pytest.raises(SampleError, match="bad image codes"):
        FieldCodes(field="npy").codes(sample(None, IMAGE, npy=content), "jpg")
