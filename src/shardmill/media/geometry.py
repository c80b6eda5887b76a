"""To which size an image is brought: pure functions of its width and height.

`fit` is what the planner asks for the size and what the encoder follows, so that both always agree.
An image is resized to cover its target, never to less, and the middle is cut out:

    1024 x 768 to 512 x 512: resized to 682 x 512, cut at left 85, top 0
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, runtime_checkable

from shardmill.errors import ConfigError, Filtered, SampleError

MAX_ASPECT = 32.0
MAX_SIDE = 8192  # of what comes out


@dataclass(frozen=True, slots=True)
class ResizeCrop:
    """Resize to `resized`, then keep `width` x `height` from (`left`, `top`) on."""

    resized: tuple[int, int]
    left: int
    top: int
    width: int
    height: int


@runtime_checkable
class Geometry(Protocol):
    """A frozen dataclass that says how images are brought to size."""

    def fit(self, width: int, height: int) -> ResizeCrop:
        """Return the fit of an image; one that is not wanted is `Filtered`."""

    def sizes(self) -> tuple[tuple[int, int], ...]:
        """Return all (width, height) that can come out, or () if there are too many to list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Square:
    """The middle square, at `resolution` pixels a side."""

    resolution: int = 512
    max_aspect: float = 2.0

    def __post_init__(self) -> None:
        _check_side("resolution", self.resolution)
        _check_aspect(self.max_aspect)

    def fit(self, width: int, height: int) -> ResizeCrop:
        check_aspect(width, height, self.max_aspect)
        return cover(width, height, self.resolution, self.resolution)

    def sizes(self) -> tuple[tuple[int, int], ...]:
        return ((self.resolution, self.resolution),)


@dataclass(frozen=True, kw_only=True)
class Buckets:
    """The size of nearest shape from a table, by default all multiples of `step` within `pixels`.

    `table` overrides the sizes, as (width, height).
    """

    pixels: int = 512 * 512
    step: int = 64
    max_aspect: float = 2.0
    table: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        _check_side("step", self.step)
        _check_aspect(self.max_aspect)
        if self.pixels < self.step**2:
            raise ConfigError(f"pixels must hold one step of {self.step}, got {self.pixels}")
        for side in (side for size in self.table for side in size):
            _check_side("each side in the table", side)

    def fit(self, width: int, height: int) -> ResizeCrop:
        check_aspect(width, height, self.max_aspect)
        size = max(self._table, key=lambda size: likeness(size, (width, height)))
        return cover(width, height, *size)

    def sizes(self) -> tuple[tuple[int, int], ...]:
        return self._table

    @cached_property
    def _table(self) -> tuple[tuple[int, int], ...]:
        return self.table or bucket_table(self.pixels, self.step, self.max_aspect)


@dataclass(frozen=True, slots=True, kw_only=True)
class Native:
    """The image's own size, cut down to multiples of `factor`; larger ones shrink to fit."""

    factor: int = 16
    max_pixels: int = 1024 * 1024
    max_aspect: float = 2.0

    def __post_init__(self) -> None:
        _check_side("factor", self.factor)
        _check_aspect(self.max_aspect)
        if self.max_pixels < self.factor**2:
            raise ConfigError(f"max_pixels must hold one code, got {self.max_pixels}")

    def fit(self, width: int, height: int) -> ResizeCrop:
        check_aspect(width, height, self.max_aspect)
        resized = shrink(width, height, self.max_pixels)
        wide, tall = (side // self.factor * self.factor for side in resized)
        if not wide or not tall:
            raise SampleError("image too small", f"{width} x {height}, a code is {self.factor}")
        return _cut(resized, wide, tall)

    def sizes(self) -> tuple[tuple[int, int], ...]:
        return ()


def cover(width: int, height: int, wide: int, tall: int) -> ResizeCrop:
    """Return the fit that just covers `wide` x `tall`.

    In whole numbers, because a rounded ratio may fall one pixel short: 1000 x 333 to 64 tall is
    1000 * 64 // 333 = 192 wide.
    """
    if width * tall >= height * wide:
        return _cut((width * tall // height, tall), wide, tall)
    return _cut((wide, height * wide // width), wide, tall)


def shrink(width: int, height: int, max_pixels: int) -> tuple[int, int]:
    """Return the size of the same shape that has at most `max_pixels`."""
    if width * height <= max_pixels:
        return width, height
    ratio = (max_pixels / (width * height)) ** 0.5
    return max(1, int(width * ratio)), max(1, int(height * ratio))


def bucket_table(pixels: int, step: int, max_aspect: float) -> tuple[tuple[int, int], ...]:
    """Return, for each height, the widest size within `pixels` and the aspect; landscape last."""
    found = set()
    for tall in range(step, int((pixels * max_aspect) ** 0.5) + 1, step):
        wide = min(pixels // tall, int(tall * max_aspect)) // step * step
        if wide and max(wide, tall) <= max_aspect * min(wide, tall):
            found |= {(wide, tall), (tall, wide)}
    # Of sizes with one shape only the largest is of use: nothing would ever be nearer to it.
    largest = {wide / tall: (wide, tall) for wide, tall in sorted(found)}
    return tuple(largest[shape] for shape in sorted(largest))


def likeness(size: tuple[int, int], image: tuple[int, int]) -> float:
    """Return the share of one side that stays when `image` covers `size`; 1 is one shape."""
    across, down = size[0] / image[0], size[1] / image[1]
    return min(across, down) / max(across, down)


def check_aspect(width: int, height: int, max_aspect: float) -> None:
    """Leave out an image that is longer than `max_aspect` times its width, or the reverse."""
    if max(width, height) > max_aspect * min(width, height):
        raise Filtered(f"aspect ratio over {max_aspect:g}", f"{width} x {height}")


def _cut(resized: tuple[int, int], wide: int, tall: int) -> ResizeCrop:
    return ResizeCrop(resized, (resized[0] - wide) // 2, (resized[1] - tall) // 2, wide, tall)


def _check_side(name: str, value: int) -> None:
    if not 1 <= value <= MAX_SIDE:
        raise ConfigError(f"{name} must lie between 1 and {MAX_SIDE}, got {value}")


def _check_aspect(value: float) -> None:
    if not 1 <= value <= MAX_ASPECT:
        raise ConfigError(f"max_aspect must lie between 1 and {MAX_ASPECT:g}, got {value:g}")
