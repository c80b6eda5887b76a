"""Models that give every image the same number of tokens: LLaVA and Gemma-3.

Gemma-3 can add crops of long images (pan and scan), each as large as the image itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, floor

from shardmill.model.sample import MediaSize
from shardmill.tokens.visual.rule import Visual, need_size, refuse


@dataclass(frozen=True, slots=True, kw_only=True)
class Llava:
    """LLaVA and LLaVA-1.5: 336 x 336 in patches of 14, so 576 tokens.

    `num_additional` tokens (the tower's class token) are added and, with the select strategy
    "default", one is taken away.
    """

    height: int = 336
    width: int = 336
    patch_size: int = 14
    num_additional: int = 1
    select: str = "default"
    token: str = "<image>"

    def placeholders(self) -> Mapping[str, str]:
        return {"image": self.token}

    def count(self, kind: str, size: MediaSize) -> Visual:
        if kind != "image":
            raise refuse("LLaVA", kind)
        rows, columns = self.height // self.patch_size, self.width // self.patch_size
        num_tokens = rows * columns + self.num_additional - (self.select == "default")
        return Visual(self.token, num_tokens, grid=(1, rows, columns))


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma3:
    """Gemma-3: 256 tokens an image between start, end and blank lines; crops only if asked."""

    num_tokens: int = 256
    start: str = "<start_of_image>"
    token: str = "<image_soft_token>"
    end: str = "<end_of_image>"
    pan_and_scan: bool = False
    min_crop_size: int = 256
    max_num_crops: int = 4
    min_crop_ratio: float = 1.2

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

    def _num_crops(self, height: int, width: int) -> int:
        short, long = min(height, width), max(height, width)
        if long / short < self.min_crop_ratio:
            return 0
        near = min(floor(long / self.min_crop_size), floor(long / short + 0.5))
        num_crops = min(max(2, near), self.max_num_crops)
        return num_crops if min(short, ceil(long / num_crops)) >= self.min_crop_size else 0
