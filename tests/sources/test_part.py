from __future__ import annotations

import pytest

from shardmill.model.codec import load_class
from shardmill.plugins import SOURCES
from shardmill.sources.part import Source, media_kind


@pytest.mark.parametrize("kind", sorted(SOURCES))
def test_every_source_of_the_table_keeps_the_contract(kind: str) -> None:
    assert issubclass(load_class(SOURCES[kind]), Source)


def test_the_last_suffix_counts() -> None:
    assert media_kind("a.b.JPG") == "image"
    assert media_kind("0.mp4") == "video"
    assert media_kind("wav") == "audio"
    assert media_kind("a.jpg.txt") is None
    assert media_kind("README") is None
