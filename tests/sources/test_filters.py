from __future__ import annotations

import pytest

from shardmill.errors import ConfigError, Filtered
from shardmill.model.codec import build, digest, from_plain, to_plain
from shardmill.model.sample import Document, MediaSize, Sample, Segment
from shardmill.plugins import FILTERS
from shardmill.sources.filters import (
    AspectRatio,
    Filter,
    HasMedia,
    ImageSize,
    TextLength,
    WithoutWords,
)


def verdict(filter: Filter, text: str = "", **sizes: tuple[int, int]) -> str:
    segments = [Segment(kind="image", media=name) for name in sizes]
    if text:
        segments.append(Segment(kind="text", text=text))
    sample = Sample(key="k", document=Document(tuple(segments)))
    known = {name: MediaSize(width=w, height=h) for name, (w, h) in sizes.items()}
    try:
        filter.check(sample, known)
    except Filtered as error:
        return error.reason
    return "kept"


def test_text_length() -> None:
    filter = TextLength(min_chars=2, max_chars=4)
    assert [verdict(filter, "x" * n) for n in (1, 2, 4, 5)] == [
        "text too short",
        "kept",
        "kept",
        "text too long",
    ]
    assert verdict(TextLength(max_chars=0), "") == "kept"
    assert verdict(TextLength(max_chars=0), "x") == "text too long"


def test_unwanted_words_are_whole_words_in_any_case() -> None:
    filter = WithoutWords(words=("spam", "c++", "zwei Worte"))
    for text in ("Spam!", "no SPAM", "I like C++.", "hier zwei worte da"):
        assert verdict(filter, text) == "unwanted word"
    for text in ("spammer", "c+", "antispam", ""):
        assert verdict(filter, text) == "kept"


def test_image_size() -> None:
    filter = ImageSize(min_side=10, max_pixels=200)
    assert verdict(filter, jpg=(10, 20)) == "kept"
    assert verdict(filter, jpg=(9, 20)) == "image too small"
    assert verdict(filter, jpg=(10, 21)) == "image too large"
    assert verdict(filter, **{"0.jpg": (10, 10), "1.jpg": (9, 9)}) == "image too small"
    assert verdict(filter, wav=(0, 0)) == "kept"


def test_aspect_ratio() -> None:
    assert verdict(AspectRatio(max_ratio=2), jpg=(10, 20)) == "kept"
    assert verdict(AspectRatio(max_ratio=2), jpg=(10, 21)) == "aspect ratio"
    assert verdict(AspectRatio(max_ratio=2), jpg=(21, 10)) == "aspect ratio"


def test_required_kinds() -> None:
    assert verdict(HasMedia(), jpg=(1, 1)) == "kept"
    assert verdict(HasMedia(), "text") == "no image"
    assert verdict(HasMedia(kinds=("image", "text")), jpg=(1, 1)) == "no text"


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match="at least one word"):
        WithoutWords(words=())
    with pytest.raises(ConfigError, match="at least 1"):
        AspectRatio(max_ratio=0.5)
    with pytest.raises(ConfigError, match="kinds must be among"):
        HasMedia(kinds=("smell",))


def test_filters_are_built_by_name() -> None:
    filter = build(FILTERS, {"kind": "words", "words": ["a", "b"]})
    assert filter == WithoutWords(words=("a", "b"))
    assert digest(from_plain(to_plain(filter))) == digest(filter)
    for name in FILTERS:
        if name not in ("words", "duplicates"):
            assert isinstance(build(FILTERS, {"kind": name}), Filter)


def test_duplicates_say_which_command_finds_them() -> None:
    with pytest.raises(ConfigError, match="shardmill filter IN OUT --drop-duplicates"):
        build(FILTERS, {"kind": "duplicates"})
