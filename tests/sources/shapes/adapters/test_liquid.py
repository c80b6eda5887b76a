from __future__ import annotations

from typing import Any

import pytest

from shardmill.errors import SampleError
from shardmill.sources.shapes.adapters.liquid import LiquidShape


def segments(shape: LiquidShape, row: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(s.kind, s.text or s.media) for s in shape.shape(row).segments]


def test_liquid_takes_text_or_text_prompt() -> None:
    for name in ("text", "text_prompt"):
        row = {"image_path": "a.jpg", name: "t", "data_type": "image_text"}
        assert segments(LiquidShape(), row) == [("image", "a.jpg"), ("text", "t")]
    assert segments(LiquidShape(), {"data_type": "text_pretrain", "text": "t"}) == [("text", "t")]


@pytest.mark.parametrize(
    "row", [{"image_path": "a"}, {"text": "t"}, {"text": "t", "image_path": ""}]
)
def test_liquid_rejects_what_it_cannot_pair(row: dict[str, Any]) -> None:
    with pytest.raises(SampleError, match="missing field"):
        LiquidShape().shape(row)
