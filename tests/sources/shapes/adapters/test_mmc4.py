from __future__ import annotations

from typing import Any

import pytest

from shardmill.errors import SampleError
from shardmill.sources.shapes.adapters.mmc4 import Mmc4Shape


def info(name: str, at: Any) -> dict[str, Any]:
    return {"image_name": name, "raw_url": f"http://x/{name}", "matched_text_index": at}


def test_an_image_stands_before_its_sentence_and_shares_its_turn() -> None:
    infos = [info("b", 1), info("a", 0), info("c", 1)]
    shaped = Mmc4Shape().shape({"text_list": ["one", "two"], "image_info": infos, "url": "page"})
    assert [(p.turn, p.text or p.media) for p in shaped.segments] == [
        (0, "a"),
        (0, "one"),
        (1, "b"),
        (1, "c"),
        (1, "two"),
    ]
    assert shaped.extra == {"url": "page", "image_info": infos}
    assert all(p.role is None for p in shaped.segments)


def test_a_page_without_images_is_text() -> None:
    assert len(Mmc4Shape().shape({"text_list": ["one"], "image_info": None}).segments) == 1


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"text_list": "one"}, "missing field"),
        ({"text_list": [1]}, "missing field"),
        ({"text_list": []}, "empty document"),
        ({"text_list": ["one"], "image_info": {}, "x": 1}, None),
        ({"text_list": ["one"], "image_info": "x"}, "missing field"),
        ({"text_list": ["one"], "image_info": [info("a", 1)]}, "image without sentence"),
        ({"text_list": ["one"], "image_info": [info("a", None)]}, "image without sentence"),
        ({"text_list": ["one"], "image_info": ["a"]}, "image without sentence"),
        ({"text_list": ["one"], "image_info": [{"matched_text_index": 0}]}, "missing field"),
    ],
)
def test_what_cannot_be_placed_is_a_reject(row: dict[str, Any], reason: str | None) -> None:
    if reason is None:
        assert Mmc4Shape().shape(row).segments
        return
    with pytest.raises(SampleError) as error:
        Mmc4Shape().shape(row)
    assert error.value.reason == reason
