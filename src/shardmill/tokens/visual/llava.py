"""LLaVA and LLaVA-1.5: every image is resized to one size and takes equally many tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from shardmill.model.sample import MediaSize
from shardmill.tokens.visual.rule import ModelFolder, Resize, Visual, VisualRule, refuse


@dataclass(frozen=True, slots=True, kw_only=True)
class Llava(VisualRule):
    """336 x 336 in patches of 14, so 576 tokens.

    `num_additional` tokens (the tower's class token) are added and, with the select strategy
    "default", one is taken away. With `shortest_edge`, an image is resized to that and its middle
    is cut out, else it is squeezed to the size.
    """

    processors: ClassVar[tuple[str, ...]] = ("LlavaProcessor",)

    height: int = 336
    width: int = 336
    patch_size: int = 14
    num_additional: int = 1
    select: str = "default"
    token: str = "<image>"
    shortest_edge: int | None = 336

    @classmethod
    def from_folder(cls, folder: ModelFolder) -> Llava:
        image = folder.image
        cropped = image.get("do_center_crop", "crop_size" in image)
        size = image["crop_size"] if cropped else image["size"]
        tall, wide = (size, size) if isinstance(size, int) else (size["height"], size["width"])
        return cls(
            height=tall,
            width=wide,
            patch_size=folder.need("patch_size"),
            num_additional=folder.processor.get("num_additional_image_tokens", 0),
            select=folder.processor.get("vision_feature_select_strategy") or "full",
            shortest_edge=_shortest_edge(image.get("size")) if cropped else None,
            token=folder.token("image_token", folder.processor.get("image_token", "<image>")),
        )

    def placeholders(self) -> Mapping[str, str]:
        return {"image": self.token}

    def count(self, kind: str, size: MediaSize) -> Visual:
        if kind != "image":
            raise refuse("LLaVA", kind)
        rows, columns = self.height // self.patch_size, self.width // self.patch_size
        # "default" leaves out the first feature of the tower, which is its class token.
        num_tokens = rows * columns + self.num_additional - (self.select == "default")
        return Visual(self.token, num_tokens, grid=(1, rows, columns))

    def count_many(self, kind: str, sizes: NDArray[np.float64]) -> NDArray[np.int64]:
        return np.full(len(sizes), self.count(kind, MediaSize()).num_visual, np.int64)

    def arrange(self, image: Any, resize: Resize) -> dict[str, Any] | None:
        tall, wide = self.height, self.width
        if self.shortest_edge is not None:
            height, width = image.shape[:2]
            short, edge = min(height, width), self.shortest_edge
            # The shorter side as it is: 336 x 500 / 500 may be 335.99.
            tall, wide = (edge if n == short else int(edge * n / short) for n in (height, width))
        if tall < self.height or wide < self.width:  # padded by the processor
            return None
        top, left = (tall - self.height) // 2, (wide - self.width) // 2
        middle = resize(image, (tall, wide))[top : top + self.height, left : left + self.width]
        return {"pixel_values": middle[None]}


def _shortest_edge(size: Any) -> int | None:
    # Older files give it as a bare number.
    return size if isinstance(size, int) else (size or {}).get("shortest_edge")
