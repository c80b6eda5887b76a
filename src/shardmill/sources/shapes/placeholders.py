"""`<image>` and `<video>` in a text: where they stand, and which medium each one means.

Media are taken in order and every one exactly once; too many or too few placeholders are a
`SampleError`, because a guess would train on the wrong picture.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from shardmill.errors import SampleError

PLACEHOLDER = re.compile(r"<(image|video)>", re.IGNORECASE)
MISMATCH = "placeholders and media do not match"


@dataclass(slots=True)
class MediaQueue:
    """The media of a row by kind, handed out in order; `finish` finds what was left over."""

    media: Mapping[str, list[Any]]
    taken: dict[str, int] = field(default_factory=dict)
    as_text: int = 0

    def take(self, kind: str) -> Any:
        """Return the next medium of this kind; none left is counted and found by `finish`."""
        number = self.taken.get(kind, 0)
        self.taken[kind] = number + 1
        found = self.media.get(kind, [])
        return found[number] if number < len(found) else None

    def finish(self) -> None:
        """Raise `SampleError` unless every placeholder had its medium and every medium was used."""
        for kind in sorted(self.media.keys() | self.taken.keys()):
            given, asked = len(self.media.get(kind, [])), self.taken.get(kind, 0)
            if given != asked:
                hint = (
                    f"; {self.as_text} more in assistant turns count as text: set assistant_media "
                    "if they mean media"
                    if self.as_text
                    else ""
                )
                raise SampleError(MISMATCH, f"{given} {kind}s, {asked} placeholders{hint}")


def split_placeholders(text: str) -> Iterator[tuple[Literal["text", "medium"], str]]:
    """Yield ("text", words) and ("medium", kind) in order.

    Line breaks next to a placeholder only set it apart and are left out, as is text that is
    nothing but white space: "<image>\\nWhat is it?" gives a picture and "What is it?".
    """
    pieces = PLACEHOLDER.split(text)
    for number, piece in enumerate(pieces):
        if number % 2:
            yield "medium", piece.lower()
            continue
        words = piece.lstrip("\r\n") if number else piece
        words = words.rstrip("\r\n") if number + 1 < len(pieces) else words
        if words.strip():
            yield "text", words


def count_placeholders(text: str) -> int:
    """Return how many placeholders a text holds."""
    return len(PLACEHOLDER.findall(text))
