"""Gemma-3: every image takes 256 tokens; pan and scan adds crops of long images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, floor
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from shardmill.model.sample import MediaSize
from shardmill.tokens.visual.rule import (
    ModelFolder,
    Resize,
    Visual,
    VisualRule,
    need_size,
    refuse,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma3(VisualRule):
    """256 tokens an image between start, end and blank lines.

    With `pan_and_scan`, which processors do only if asked, crops count as much as the image.
    `image_size` is the side of the square that an image is brought to.
    """

    processors: ClassVar[tuple[str, ...]] = ("Gemma3Processor",)

    num_tokens: int = 256
    start: str = "<start_of_image>"
    token: str = "<image_soft_token>"
    end: str = "<end_of_image>"
    pan_and_scan: bool = False
    min_crop_size: int = 256
    max_num_crops: int = 4
    min_crop_ratio: float = 1.2
    image_size: int = 896

    @classmethod
    def from_folder(cls, folder: ModelFolder) -> Gemma3:
        return cls(
            num_tokens=folder.processor.get("image_seq_length", 256),
            start=folder.token("boi_token", "<start_of_image>"),
            token=folder.token("image_token", "<image_soft_token>"),
            end=folder.token("eoi_token", "<end_of_image>"),
            image_size=(folder.image.get("size") or {}).get("height", 896),
        )

    def placeholders(self) -> Mapping[str, str]:
        return {"image": self.start}

    def count(self, kind: str, size: MediaSize) -> Visual:
        if kind != "image":
            raise refuse("Gemma-3", kind)
        image = f"\n\n{self.start}{self.token}{self.end}\n\n"
        num_crops = self._num_crops(*need_size(size)) if self.pan_and_scan else 0
        if not num_crops:
            return Visual(image, self.num_tokens)
        crops = " ".join([image] * num_crops)
        text = (
            f"Here is the original image {image} "
            f"and here are some crops to help you see better {crops}"
        )
        return Visual(text, self.num_tokens * (num_crops + 1), num_runs=num_crops + 1)

    def count_many(self, kind: str, sizes: NDArray[np.float64]) -> NDArray[np.int64]:
        if kind != "image" or self.pan_and_scan:
            return VisualRule.count_many(self, kind, sizes)
        return np.full(len(sizes), self.num_tokens, np.int64)

    def arrange(self, image: Any, resize: Resize) -> dict[str, Any] | None:
        if self.pan_and_scan:
            return None
        return {"pixel_values": resize(image, (self.image_size, self.image_size))[None]}

    def _num_crops(self, height: int, width: int) -> int:
        # As the processor cuts: along the longer side only, at least two crops, none if they would
        # be smaller than `min_crop_size`.
        short, long = min(height, width), max(height, width)
        if long / short < self.min_crop_ratio:
            return 0
        near = min(floor(long / self.min_crop_size), floor(long / short + 0.5))
        num_crops = min(max(2, near), self.max_num_crops)
        return num_crops if min(short, ceil(long / num_crops)) >= self.min_crop_size else 0
