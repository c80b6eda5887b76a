"""How an image stands among text ids: delimiters around codes, or around placeholders.

    codes         boi  c c c c ...  eoi              codes of a VQ tokenizer, row by row
    patches       im_start  p p p p ...  im_end      a fixed number of placeholders
    marker        image  c c c c ...                 one marker, then the codes
    vision        <|vision_start|>  p p ...  <|vision_end|>   counted by the processor's rule

With `row_end` each row of codes ends with that token; with `grid` two tokens in front say height
and width, so that images of many sizes can be told apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ConfigError, SampleError
from shardmill.model.space import TokenSpace


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageLayout:
    """Delimiters and body of an image, by names of control tokens.

    `patch` names the placeholder (`video_patch` that of videos, if it is another); without it the
    body is codes. `num_patches` is their fixed number; without it a visual rule counts them. A
    grid token is `grid` + size // `grid_step`.
    """

    before: tuple[str, ...] = ("boi",)
    after: tuple[str, ...] = ("eoi",)
    patch: str | None = None
    video_patch: str | None = None
    num_patches: int | None = None
    row_end: str | None = None
    grid: str | None = None
    grid_step: int = 1

    def __post_init__(self) -> None:
        if self.patch is not None and (self.row_end or self.grid):
            raise ConfigError("row_end and grid need codes: leave patch out")
        if self.num_patches is not None and (self.patch is None or self.num_patches < 1):
            raise ConfigError("num_patches needs the name of the placeholder in patch")
        if self.grid_step < 1:
            raise ConfigError(f"grid_step must be at least 1, got {self.grid_step}")


LAYOUTS = {
    "codes": ImageLayout(),
    "patches": ImageLayout(
        before=("im_start",), after=("im_end",), patch="im_patch", num_patches=256
    ),
    "marker": ImageLayout(before=("image",), after=()),
    "vision": ImageLayout(
        before=("<|vision_start|>",),
        after=("<|vision_end|>",),
        patch="<|image_pad|>",
        video_patch="<|video_pad|>",
    ),
}


@dataclass(frozen=True, slots=True, eq=False)
class MediaBlock:
    """The ids of one medium: `before` delimiters, the body with its grid, `after` delimiters.

    Placeholders say nothing of what they stand for, so they can never be learned.
    """

    before: NDArray[Any]
    body: NDArray[Any]
    after: NDArray[Any]
    grid: tuple[int, int, int]
    can_be_learned: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class BoundLayout:
    """A layout whose names are looked up."""

    layout: ImageLayout
    space: TokenSpace
    find: Callable[[str], int]
    before: NDArray[Any]
    after: NDArray[Any]

    def of_codes(self, codes: NDArray[Any]) -> MediaBlock:
        """Return the block of an image's codes [height, width]."""
        height, width = codes.shape
        rows = self.space.code_ids(codes.reshape(-1)).reshape(height, width)
        if self.layout.row_end is not None:
            ends = np.full((height, 1), self.find(self.layout.row_end), rows.dtype)
            rows = np.concatenate([rows, ends], axis=1)
        before = self.before
        if self.layout.grid is not None:
            first, step = self.find(self.layout.grid), self.layout.grid_step
            sizes = [first + height // step, first + width // step]
            before = np.concatenate([before, np.array(sizes, before.dtype)])
        return MediaBlock(before, rows.reshape(-1), self.after, (1, height, width))

    def of_patches(self, kind: str, count: int, grid: tuple[int, int, int]) -> MediaBlock:
        """Return the block of `count` placeholders."""
        patch = (self.layout.video_patch if kind == "video" else None) or self.layout.patch
        assert patch is not None
        if count < 1:
            raise SampleError("empty image", f"it has {count} tokens")
        body = np.full(count, self.find(patch), self.before.dtype)
        return MediaBlock(self.before, body, self.after, grid, can_be_learned=False)


def bind_layout(layout: ImageLayout, space: TokenSpace, find: Callable[[str], int]) -> BoundLayout:
    """Look up the names of a layout; a name that the space lacks is a `ConfigError`."""
    if layout.patch is None and not space.num_codes:
        raise ConfigError(
            "there are images, and this layout writes their codes, but the space has none: "
            "give --space num_codes=8192 and --codes, or another --layout (patches, vision)"
        )
    # Looked up now, so that a missing name stops the run before its first sample.
    for name in (layout.patch, layout.row_end, layout.grid):
        if name is not None:
            find(name)
    before = np.array([find(name) for name in layout.before], space.dtype)
    after = np.array([find(name) for name in layout.after], space.dtype)
    return BoundLayout(layout, space, find, before, after)
