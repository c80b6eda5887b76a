"""Merlin: frames and what happens in them, in one text that marks each group by its time.

    <image><image>#0.0-4.5# A man opens a box. <image>#4.5-9.0# He takes a saw. Summary: ...

Each group asks with its frames and its mark, the text after it answers; a last question asks for
the summary. The mark stays text, as the model reads it, and is the time of frames and answer too.
"Black background: 640, 360" among the images is a black frame of that size, which no file holds.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from shardmill.errors import SampleError
from shardmill.sources.shapes.shape import (
    MISMATCH,
    RowDocument,
    RowSegment,
    count_placeholders,
    is_missing,
    unused,
)
from shardmill.sources.shapes.video import seconds_of

SIGNATURE = b"\x89PNG\r\n\x1a\n"
MAX_PIXELS = 1 << 27
MAX_BLOCK = 0xFFFF  # of deflate, stored
GROUP = re.compile(r"((?:<image>\s*)+)(#(\d+(?:\.\d+)?)(?:-(\d+(?:\.\d+)?))?#)")
BLACK = re.compile(r"\s*Black background\s*:\s*(\d{1,6})\s*,\s*(\d{1,6})\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class MerlinShape:
    """`image_info` with `image_name`, and `text_list`; `question` asks for the summary.

    Marks are seconds; with `marks_are_seconds` false (marks on another scale) they are text only.
    """

    question: str = "Summary this video."
    summary: str = "Summary:"
    marks_are_seconds: bool = True

    def shape(self, fields: Mapping[str, Any]) -> RowDocument:
        """Return the conversation of a marked text and its frames."""
        images = [_image(info) for info in _list(fields, "image_info")]
        text = "".join(map(str, _list(fields, "text_list")))
        segments = tuple(self._segments(text, images))
        return RowDocument(segments=segments, extra=unused(fields, {"image_info", "text_list"}))

    def _segments(self, text: str, images: list[Any]) -> Iterator[RowSegment]:
        said, _, summary = text.partition(self.summary)
        lead, *groups = GROUP.split(said)
        num_shown = sum(map(count_placeholders, groups[::5]))
        if not groups or count_placeholders(text) != num_shown or num_shown != len(images):
            detail = f"{count_placeholders(text)} <image>, {num_shown} of them before a #time# mark"
            raise SampleError(MISMATCH, f"{detail}, {len(images)} images")
        frames = iter(images)
        for turn, at in enumerate(range(0, len(groups), 5)):
            shown, mark, start, end, answer = groups[at : at + 5]
            time_s = self._time(start, end)
            for _ in range(count_placeholders(shown)):
                yield _user("image", 2 * turn, media=next(frames), time_s=time_s)
            asked = f"{lead.strip()} {mark}" if turn == 0 and lead.strip() else mark
            yield _user("text", 2 * turn, text=asked, time_s=time_s)
            yield _answer(answer.strip(), 2 * turn + 1, time_s)
        if summary.strip():
            last = 2 * (len(groups) // 5)
            yield _user("text", last, text=self.question)
            yield _answer(summary.strip(), last + 1, None)

    def _time(self, start: str, end: str | None) -> tuple[float, float] | None:
        if not self.marks_are_seconds:
            return None
        first, last = seconds_of(start), seconds_of(start if end is None else end)
        if last < first:
            raise SampleError("bad clip", f"#{start}-{end}# ends before it starts")
        return first, last


def _image(info: Any) -> Any:
    name = info.get("image_name") if isinstance(info, Mapping) else info
    if not isinstance(name, str) or not name:
        raise SampleError("missing field", f"an image has no image_name: {info!r:.100}")
    black = BLACK.fullmatch(name)
    if black is not None:
        return black_frame(int(black[1]), int(black[2]))
    return name.replace("data//", "data/")


def _list(fields: Mapping[str, Any], name: str) -> list[Any]:
    value = fields.get(name)
    if is_missing(value):
        raise SampleError("missing field", f"{name} holds nothing")
    return value if isinstance(value, list) else [value]


def _user(kind: Any, turn: int, **more: Any) -> RowSegment:
    return RowSegment(kind=kind, role="user", turn=turn, **more)


def _answer(text: str, turn: int, time_s: tuple[float, float] | None) -> RowSegment:
    if not text:
        raise SampleError("missing caption", f"nothing is said in turn {turn}")
    return RowSegment(kind="text", text=text, role="assistant", turn=turn, time_s=time_s)


def black_frame(width: int, height: int) -> bytes:
    """Return a black PNG of one bit a pixel, the same bytes on every machine.

    The pixels are stored, not compressed: compressors differ from version to version, and 640 x
    360 pixels are 29 kB as they are. A size that no image has is a `SampleError`.
    """
    if width < 1 or height < 1 or width * height > MAX_PIXELS:
        raise SampleError("bad size of a black frame", f"{width} x {height} pixels")
    one_bit_grey = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    rows = bytes((1 + (width + 7) // 8) * height)
    return b"".join(
        [
            SIGNATURE,
            _chunk(b"IHDR", one_bit_grey),
            _chunk(b"IDAT", _stored(rows)),
            _chunk(b"IEND", b""),
        ]
    )


def _chunk(kind: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)


def _stored(data: bytes) -> bytes:
    """Return a zlib stream of blocks that are stored as they are."""
    parts = [b"\x78\x01"]
    for start in range(0, len(data), MAX_BLOCK):
        block = data[start : start + MAX_BLOCK]
        is_last = start + MAX_BLOCK >= len(data)
        parts += [struct.pack("<BHH", is_last, len(block), len(block) ^ MAX_BLOCK), block]
    return b"".join([*parts, struct.pack(">I", zlib.adler32(data))])
