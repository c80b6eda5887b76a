"""To which size an image is brought, and by which filter: pure functions of its width and height.

`fit` is what the planner asks for the size and what the encoder follows, so that both always agree.
An image is resized to cover its target, never to less, and the middle is cut out:

    1024 x 768 to 512 x 512: resized to 682 x 512, cut at left 85, top 0
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from shardmill.errors import ConfigError, Filtered, SampleError

MAX_SIDE = 8192  # of what comes out

Resample: TypeAlias = Literal["lanczos", "bicubic", "bilinear", "box"]


@dataclass(frozen=True, slots=True)
class ResizeCrop:
    """Halve, resize to `resized`, then keep `width` x `height` from (`left`, `top`) on.

    `halvings` times both sides are first divided by two, rounded down, each time by a box filter.
    """

    resized: tuple[int, int]
    left: int
    top: int
    width: int
    height: int
    resample: Resample = "lanczos"
    halvings: int = 0


@runtime_checkable
class Geometry(Protocol):
    """A frozen dataclass that says how images are brought to size."""

    def fit(self, width: int, height: int) -> ResizeCrop:
        """Return the fit of an image; one that is not wanted is `Filtered`."""

    def sizes(self) -> tuple[tuple[int, int], ...]:
        """Return all (width, height) that can come out, or () if there are too many to list."""


@dataclass(frozen=True, kw_only=True)
class Resized:
    """What all share: the filter, and how long an image may be; None sets no limit."""

    resample: Resample = "lanczos"
    max_aspect: float | None = 2.0

    def __post_init__(self) -> None:
        if self.max_aspect is not None and not self.max_aspect >= 1:
            raise ConfigError(f"max_aspect must be at least 1, got {self.max_aspect:g}")

    def check_aspect(self, width: int, height: int) -> None:
        """Leave out an image that is longer than `max_aspect` times its width, or the reverse."""
        most = self.max_aspect
        if most is not None and max(width, height) > most * min(width, height):
            raise Filtered(f"aspect ratio over {most:g}", f"{width} x {height}")


@dataclass(frozen=True, kw_only=True)
class Square(Resized):
    """The middle square, at `resolution` pixels a side.

    The longer side is rounded "down" or to "nearest". `crop` rounds where the square begins
    ("down", or "nearest" with ties to even), or is "none": both sides become the resolution.
    With `halve`, sides of at least twice the resolution are first halved by a box filter.
    """

    resolution: int = 512
    rounding: Literal["down", "nearest"] = "down"
    crop: Literal["down", "nearest", "none"] = "down"
    halve: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_side("resolution", self.resolution)

    def fit(self, width: int, height: int) -> ResizeCrop:
        self.check_aspect(width, height)
        side, halvings = self.resolution, 0
        while self.halve and min(width, height) >= 2 * side:
            width, height, halvings = width // 2, height // 2, halvings + 1
        fit = cover(width, height, side, side)
        if self.crop == "none":
            fit = replace(fit, resized=(side, side), left=0, top=0)
        else:
            if self.rounding == "nearest":
                # In floating point, as ADM does it: how ties are rounded depends on it.
                scale = side / min(width, height)
                fit = replace(fit, resized=(round(width * scale), round(height * scale)))
            over = [(long - side) / 2 for long in fit.resized]
            left, top = (round(x) if self.crop == "nearest" else int(x) for x in over)
            fit = replace(fit, left=left, top=top)
        return replace(fit, resample=self.resample, halvings=halvings)

    def sizes(self) -> tuple[tuple[int, int], ...]:
        return ((self.resolution, self.resolution),)


@dataclass(frozen=True, kw_only=True)
class Buckets(Resized):
    """The size of nearest shape from a table, by default all multiples of `step` within `pixels`.

    `table` overrides the sizes, as (width, height).
    """

    pixels: int = 512 * 512
    step: int = 64
    table: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_side("step", self.step)
        if self.pixels < self.step**2:
            raise ConfigError(f"pixels must hold one step of {self.step}, got {self.pixels}")
        if self.max_aspect is None and not self.table:
            raise ConfigError("sizes up to any aspect do not end: set max_aspect, or give a table")
        for side in (side for size in self._table for side in size):
            _check_side("each side in the table", side)

    def fit(self, width: int, height: int) -> ResizeCrop:
        self.check_aspect(width, height)
        size = max(self._table, key=lambda size: likeness(size, (width, height)))
        return replace(cover(width, height, *size), resample=self.resample)

    def sizes(self) -> tuple[tuple[int, int], ...]:
        return self._table

    @cached_property
    def _table(self) -> tuple[tuple[int, int], ...]:
        return self.table or bucket_table(self.pixels, self.step, self.max_aspect or 1)


@dataclass(frozen=True, kw_only=True)
class Native(Resized):
    """The image's own size, cut down to multiples of `factor`; larger ones shrink to fit."""

    factor: int = 16
    max_pixels: int = 1024 * 1024

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_side("factor", self.factor)
        if self.max_pixels < self.factor**2:
            raise ConfigError(f"max_pixels must hold one code, got {self.max_pixels}")

    def fit(self, width: int, height: int) -> ResizeCrop:
        self.check_aspect(width, height)
        resized = shrink(width, height, self.max_pixels)
        wide, tall = (side // self.factor * self.factor for side in resized)
        if not wide or not tall:
            raise SampleError("image too small", f"{width} x {height}, a code is {self.factor}")
        return replace(_cut(resized, wide, tall), resample=self.resample)

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


def _cut(resized: tuple[int, int], wide: int, tall: int) -> ResizeCrop:
    return ResizeCrop(resized, (resized[0] - wide) // 2, (resized[1] - tall) // 2, wide, tall)


def _check_side(name: str, value: int) -> None:
    if not 1 <= value <= MAX_SIDE:
        raise ConfigError(f"{name} must lie between 1 and {MAX_SIDE}, got {value}")
