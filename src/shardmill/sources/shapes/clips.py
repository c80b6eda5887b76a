"""Parts of a video as rows name them: a pair, or two fields, in seconds or as hh:mm:ss.mmm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import isfinite
from typing import Any

from shardmill.errors import SampleError
from shardmill.sources.shapes.shaped import Piece, is_missing


def seconds_of(value: Any) -> float:
    """Return a time in seconds: 19.8, "19.8", "00:19.8" and "00:00:19.8" are all the same."""
    try:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError
        seconds = 0.0
        for part in value.split(":") if isinstance(value, str) else [value]:
            seconds = 60 * seconds + float(part)
    except (ValueError, OverflowError) as error:
        raise SampleError("bad time", f"{value!r:.60} is neither seconds nor hh:mm:ss") from error
    if not isfinite(seconds) or seconds < 0:
        raise SampleError("bad time", f"{value!r:.60} is no time in a video")
    return seconds


def clip_of(start: Any, end: Any) -> tuple[float, float]:
    """Return a clip as (start, end) in seconds; one that does not end after its start is bad."""
    clip = seconds_of(start), seconds_of(end)
    if not clip[0] < clip[1]:
        raise SampleError("bad clip", f"it ends at {clip[1]:g} s and starts at {clip[0]:g} s")
    return clip


def clip_in(
    fields: Mapping[str, Any], pair: str, start: str, end: str
) -> tuple[float, float] | None:
    """Return the clip that a row names by a field with a pair or by two fields, or None."""
    if not is_missing(fields.get(pair)):
        value = fields[pair]
        if not isinstance(value, list | tuple) or len(value) != 2:
            raise SampleError("bad clip", f"{pair!r} holds {value!r:.60}, not [start, end]")
        return clip_of(*value)
    if is_missing(fields.get(start)) or is_missing(fields.get(end)):
        return None
    return clip_of(fields[start], fields[end])


def in_clip(pieces: list[Piece], clip: tuple[float, float] | None) -> list[Piece]:
    """Return the pieces with this clip meant of every video."""
    if clip is None:
        return pieces
    return [replace(p, time_s=clip) if p.kind == "video" else p for p in pieces]
