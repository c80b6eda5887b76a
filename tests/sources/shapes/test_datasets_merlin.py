from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardmill.errors import SampleError
from shardmill.media.header import probe
from shardmill.media.image import decode_image
from shardmill.sources.shapes.datasets import MerlinShape, black_frame

TEXT = (
    "<image><image>#0.0-4.5# A man opens a box. <image>#4.5-9# He takes a saw. "
    "<image>#12# Done. Summary: Woodwork for all."
)


IMAGES = ["a.jpg", "Black background: 64, 48", "s3://b/data//c.jpg", "d.jpg"]


ROW = {"image_info": [{"image_name": name} for name in IMAGES], "text_list": TEXT, "id": 3}


def said(row: dict[str, Any], **options: Any) -> list[tuple[Any, ...]]:
    shaped = MerlinShape(**options).shape(row)
    return [
        (p.turn, p.role, p.text if p.kind == "text" else p.media, p.time_s) for p in shaped.segments
    ]


def test_frames_marks_answers_and_the_summary() -> None:
    assert said(ROW) == [
        (0, "user", "a.jpg", (0.0, 4.5)),
        (0, "user", black_frame(64, 48), (0.0, 4.5)),
        (0, "user", "#0.0-4.5#", (0.0, 4.5)),
        (1, "assistant", " A man opens a box. ", (0.0, 4.5)),
        (2, "user", "s3://b/data/c.jpg", (4.5, 9.0)),
        (2, "user", "#4.5-9#", (4.5, 9.0)),
        (3, "assistant", " He takes a saw. ", (4.5, 9.0)),
        (4, "user", "d.jpg", (12.0, 12.0)),
        (4, "user", "#12#", (12.0, 12.0)),
        (5, "assistant", " Done. ", (12.0, 12.0)),
        (6, "user", "Summary this video.", None),
        (7, "assistant", " Woodwork for all.", None),
    ]
    assert MerlinShape().shape(ROW).extra == {"id": 3}


def test_marks_on_another_scale_are_text_only() -> None:
    assert {time for *_, time in said(ROW, marks_are_seconds=False)} == {None}


def test_a_text_without_summary_asks_for_none() -> None:
    row = {"image_info": ["a.jpg"], "text_list": ["Watch. <image>#1# A cat."]}
    assert said(row) == [
        (0, "user", "Watch. ", (1.0, 1.0)),
        (0, "user", "a.jpg", (1.0, 1.0)),
        (0, "user", "#1#", (1.0, 1.0)),
        (1, "assistant", " A cat.", (1.0, 1.0)),
    ]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({}, "missing field"),
        ({"image_info": ["a"]}, "missing field"),
        ({"image_info": [3], "text_list": "<image>#1# x"}, "missing field"),
        ({"image_info": ["a", "b"], "text_list": "<image>#1# x"}, "placeholders and media"),
        (
            {"image_info": ["a", "b"], "text_list": "<image>#1# x <image> y"},
            "placeholders and media",
        ),
        ({"image_info": ["a"], "text_list": "<image>#1# x <image> y"}, "placeholders and media"),
        ({"image_info": ["a"], "text_list": "no mark <image> at all"}, "placeholders and media"),
        ({"image_info": ["a"], "text_list": "<image>#5-3# x"}, "bad clip"),
        ({"image_info": ["a"], "text_list": "<image>#5#  "}, "missing caption"),
        (
            {"image_info": ["Black background: 99999, 99999"], "text_list": "<image>#5# x"},
            "bad size of a black frame",
        ),
    ],
)
def test_rows_that_do_not_fit_are_rejects(row: dict[str, Any], reason: str) -> None:
    with pytest.raises(SampleError, match=reason):
        MerlinShape().shape(row)


@given(st.integers(1, 900), st.integers(1, 900))
@settings(max_examples=30)
def test_it_is_black_and_of_its_size(width: int, height: int) -> None:
    content = black_frame(width, height)
    found = probe("image", content)
    assert (found.ext, found.size.width, found.size.height) == ("png", width, height)
    pixels = decode_image(content)
    assert pixels.shape == (height, width, 3) and not pixels.any()


@pytest.mark.parametrize("size", [(0, 5), (5, 0), (1 << 20, 1 << 20)])
def test_absurd_sizes_are_rejects(size: tuple[int, int]) -> None:
    with pytest.raises(SampleError, match="bad size of a black frame"):
        black_frame(*size)
