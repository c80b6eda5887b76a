"""Guesses the shape of rows from the names of their fields; a spec stores the answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from shardmill.errors import ConfigError
from shardmill.model.codec import build
from shardmill.plugins import SHAPES
from shardmill.sources.shapes.pair import AUDIO_FIELDS, IMAGE_FIELDS, TEXT_FIELDS, VIDEO_FIELDS
from shardmill.sources.shapes.shape import Shape, first_of, is_missing
from shardmill.sources.shapes.text import TextShape

Test = Callable[[Mapping[str, Any]], bool]
MEDIA_FIELDS = (*IMAGE_FIELDS, *VIDEO_FIELDS, *AUDIO_FIELDS)


def guess_shape(rows: Iterable[Mapping[str, Any]]) -> Shape:
    """Return the first shape that fits most of these rows; none is a `ConfigError`."""
    seen = list(rows)
    for name, fits in TESTS:
        if seen and 2 * sum(map(fits, seen)) > len(seen):
            shape: Shape = build(SHAPES, {"kind": name})
            return shape
    fields = sorted({str(name) for row in seen for name in row})
    known = ", ".join(sorted(SHAPES))
    raise ConfigError(
        f"cannot tell the shape of these rows, whose fields are {', '.join(fields) or 'none'}: "
        f"say which of {known} it is"
    )


def _has_turns(field: str, tag: str) -> Test:
    def fits(row: Mapping[str, Any]) -> bool:
        turns = row.get(field)
        return isinstance(turns, list) and bool(turns) and tag in _keys(turns[0])

    return fits


def _keys(value: object) -> Iterable[str]:
    return value if isinstance(value, dict) else ()


def _is_text(row: Mapping[str, Any]) -> bool:
    return first_of(row, TextShape().text) is not None


def _is_pair(row: Mapping[str, Any]) -> bool:
    media = first_of(row, MEDIA_FIELDS)
    # Web text has a url too: a pair needs a medium that is not just the page's address.
    return media is not None and (media != "url" or first_of(row, TEXT_FIELDS[1:]) is not None)


def _holds(*names: str) -> Test:
    return lambda row: not any(is_missing(row.get(name)) for name in names)


def _has_prompt(row: Mapping[str, Any]) -> bool:
    return first_of(row, ("value", "prompt")) is not None


def _has_clips(row: Mapping[str, Any]) -> bool:
    clips = row.get("clips")
    return isinstance(clips, list) and bool(clips) and "clip_path" in _keys(clips[0])


# The first that fits wins, so the more particular ones come first.
TESTS: tuple[tuple[str, Test], ...] = (
    ("document", lambda row: isinstance(row.get("segments"), list)),
    ("llava", _has_turns("conversations", "from")),
    ("messages", _has_turns("messages", "role")),
    ("videochat2", _has_turns("QA", "a")),
    ("howto-interlink", _has_clips),
    ("prompt", _holds("prompt", "txt")),
    ("merlin", lambda row: isinstance(row.get("text_list"), str) and "image_info" in row),
    ("internvid", _holds("YoutubeID", "Start_timestamp", "Caption")),
    ("unicontrol", lambda row: _holds("source", "target")(row) and _has_prompt(row)),
    ("video", _holds("video_path", "value")),
    ("how2link", _holds("clip_path", "caption")),
    ("mmc4", lambda row: isinstance(row.get("text_list"), list) and "image_info" in row),
    ("liquid", lambda row: not is_missing(row.get("image_path")) and "text_prompt" in row),
    ("pair", _is_pair),
    ("text", _is_text),
)
