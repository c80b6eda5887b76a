"""One small white picture for a pack that has none, so that no rank skips its vision tower.

With sharded weights, a rank that does not run the tower leaves the others waiting for it. The
picture's tokens stand in the padding at the end of the pack: they belong to no document, nothing
attends to them, and they carry no loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ConfigError
from shardmill.extras import need

SIDE = 56


@dataclass(frozen=True, slots=True)
class DummyImage:
    """The ids of a picture and its tensors, as the model's processor makes them."""

    ids: NDArray[np.int64]
    tensors: Mapping[str, Any]


def dummy_image(processor: Any, side: int = SIDE) -> DummyImage:
    """Return the smallest picture that a Hugging Face processor takes, a white square."""
    pictures = need("PIL.Image", extra="image")
    token = getattr(processor, "image_token", None)
    if token is None:
        raise ConfigError(f"{type(processor).__name__} has no image_token: it takes no pictures")
    white = pictures.new("RGB", (side, side), (255, 255, 255))
    made = dict(processor(text=[token], images=[white], return_tensors="pt"))
    ids = np.asarray(made.pop("input_ids")[0], np.int64)
    for name in ("attention_mask", "mm_token_type_ids"):
        made.pop(name, None)
    image_id = processor.tokenizer.convert_tokens_to_ids(token)
    return DummyImage(ids[ids == image_id], made)
