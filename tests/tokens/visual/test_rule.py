from __future__ import annotations

import pytest

from shardmill.errors import SampleError
from shardmill.model.sample import MediaSize
from shardmill.tokens.visual.rule import Visual, check_runs, need_size, replace_placeholders

MARKS = {"image": "<i>", "video": "<v>"}


def test_media_of_each_kind_are_taken_in_order() -> None:
    visuals = {
        "image": [Visual("[first]", 5), Visual("[second]", 7)],
        "video": [Visual("<film><film>", 12, num_runs=2)],
    }
    text = replace_placeholders("a<i>b<v>c<i>", MARKS, visuals)
    assert text == "a[first]b<film><film>c[second]"
    assert [v.num_hidden for v in visuals["image"] + visuals["video"]] == [4, 6, 10]


def test_a_replacement_is_not_searched_again() -> None:
    visuals = {"image": [Visual("<v><i>", 2)]}
    assert replace_placeholders("<i>", MARKS, visuals) == "<v><i>"


@pytest.mark.parametrize(
    ("text", "num_images"), [("", 1), ("<i>", 0), ("<i><i>", 1), ("<i>", 2), ("<v>", 0)]
)
def test_too_many_and_too_few_placeholders_are_rejected(text: str, num_images: int) -> None:
    with pytest.raises(SampleError, match="placeholders and media do not match"):
        replace_placeholders(text, MARKS, {"image": [Visual("x", 2)] * num_images})


def test_a_kind_without_placeholder_is_rejected() -> None:
    with pytest.raises(SampleError, match="0 placeholders for 1 audios"):
        replace_placeholders("", MARKS, {"audio": [Visual("x", 2)]})


def test_unknown_sizes_and_endless_videos_are_rejected() -> None:
    assert need_size(MediaSize(width=3, height=2)) == (2, 3)
    with pytest.raises(SampleError, match="unknown media size"):
        need_size(MediaSize(width=3))
    with pytest.raises(SampleError, match="too many frames"):
        check_runs(1 << 20)
