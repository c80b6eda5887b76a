from __future__ import annotations

from shardmill.sources.part import media_kind


def test_the_last_suffix_counts() -> None:
    assert media_kind("a.b.JPG") == "image"
    assert media_kind("0.mp4") == "video"
    assert media_kind("wav") == "audio"
    assert media_kind("a.jpg.txt") is None
    assert media_kind("README") is None
