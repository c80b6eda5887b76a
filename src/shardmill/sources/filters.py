"""Which samples to leave out, by what they say and how large their media are.

A filter is a frozen dataclass with `check(sample, sizes)`, which raises `Filtered` with a reason
that can be counted. The user's own is given as 'package.module:Class'.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, runtime_checkable

from shardmill.errors import ConfigError, Filtered
from shardmill.model.sample import SEGMENT_KINDS, MediaSize, Sample


@runtime_checkable
class Filter(Protocol):
    """A frozen dataclass that raises `Filtered` for what should be left out."""

    def check(self, sample: Sample, sizes: Mapping[str, MediaSize]) -> None:
        """Return if the sample may stay; `sizes` has the size of each medium by its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextLength:
    """Keeps samples whose text has `min_chars` to `max_chars` characters in all."""

    min_chars: int = 0
    max_chars: int | None = None

    def check(self, sample: Sample, sizes: Mapping[str, MediaSize]) -> None:
        count = sum(len(segment.text) for segment in sample.document.segments)
        if count < self.min_chars:
            raise Filtered("text too short", f"{count} characters, fewer than {self.min_chars}")
        if self.max_chars is not None and count > self.max_chars:
            raise Filtered("text too long", f"{count} characters, more than {self.max_chars}")


@dataclass(frozen=True, slots=True, kw_only=True)
class WithoutWords:
    """Leaves out samples whose text has one of these words, as whole words in any case."""

    words: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.words or not all(word.strip() for word in self.words):
            raise ConfigError("words needs at least one word, and none may be empty")

    def check(self, sample: Sample, sizes: Mapping[str, MediaSize]) -> None:
        found = _any_word(self.words).search(sample.document.text)
        if found is not None:
            raise Filtered("unwanted word", found[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSize:
    """Keeps samples whose images and videos have `min_side` to `max_pixels` pixels."""

    min_side: int = 0
    max_pixels: int | None = None

    def check(self, sample: Sample, sizes: Mapping[str, MediaSize]) -> None:
        for name, size in _visible(sizes):
            what = f"{name}: {size.width} x {size.height}"
            if min(size.width, size.height) < self.min_side:
                raise Filtered("image too small", f"{what}, the smallest side is {self.min_side}")
            if self.max_pixels is not None and size.width * size.height > self.max_pixels:
                raise Filtered("image too large", f"{what}, the limit is {self.max_pixels}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AspectRatio:
    """Keeps samples in which the long side of an image is at most `max_ratio` times the short."""

    max_ratio: float = 2.0

    def __post_init__(self) -> None:
        if self.max_ratio < 1:
            raise ConfigError(f"max_ratio must be at least 1, got {self.max_ratio}")

    def check(self, sample: Sample, sizes: Mapping[str, MediaSize]) -> None:
        for name, size in _visible(sizes):
            if max(size.width, size.height) > self.max_ratio * min(size.width, size.height):
                detail = f"{name}: {size.width} x {size.height}, more than {self.max_ratio:g} to 1"
                raise Filtered("aspect ratio", detail)


@dataclass(frozen=True, slots=True, kw_only=True)
class HasMedia:
    """Keeps samples that have a medium of each of these kinds; "text" may be asked for too."""

    kinds: tuple[str, ...] = ("image",)

    def __post_init__(self) -> None:
        for kind in self.kinds:
            if kind not in SEGMENT_KINDS:
                known = ", ".join(SEGMENT_KINDS)
                raise ConfigError(f"kinds must be among {known}, got {kind!r}")

    def check(self, sample: Sample, sizes: Mapping[str, MediaSize]) -> None:
        present = {segment.kind for segment in sample.document.segments}
        for kind in self.kinds:
            if kind not in present:
                raise Filtered(f"no {kind}", f"it has {', '.join(sorted(present)) or 'nothing'}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplicates:
    """Cannot be a filter: which of two equal samples stays is a question to the whole data set."""

    def __post_init__(self) -> None:
        raise ConfigError(
            "duplicates are found over the whole data set, not sample by sample: run "
            "`shardmill filter IN OUT --drop-duplicates` after ingest"
        )

    def check(self, sample: Sample, sizes: Mapping[str, MediaSize]) -> None:
        """Never called."""


def _visible(sizes: Mapping[str, MediaSize]) -> Iterator[tuple[str, MediaSize]]:
    return ((name, size) for name, size in sizes.items() if size.width)


@lru_cache(maxsize=64)
def _any_word(words: tuple[str, ...]) -> re.Pattern[str]:
    # \b does not work next to a word that begins or ends with a sign ("c++"), so look around.
    choices = "|".join(re.escape(word.strip()) for word in words)
    return re.compile(rf"(?<!\w)(?:{choices})(?!\w)", re.IGNORECASE)
