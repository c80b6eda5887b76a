"""LLaVA and LLaVA-1.5: every image is resized to one size and takes equally many tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from shardmill.model.sample import MediaSize
from shardmill.tokens.visual.rule import ModelFolder, Visual, VisualRule, refuse


@dataclass(frozen=True, slots=True, kw_only=True)
class Llava(VisualRule):
    """336 x 336 in patches of 14, so 576 tokens.

    `num_additional` tokens (the tower's class token) are added and, with the select strategy
    "default", one is taken away.
    """

    processors: ClassVar[tuple[str, ...]] = ("LlavaProcessor",)

    height: int = 336
    width: int = 336
    patch_size: int = 14
    num_additional: int = 1
    select: str = "default"
    token: str = "<image>"

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
