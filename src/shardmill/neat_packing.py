"""Drop-in for NeMo Automodel's VLM neat packing: change one import, keep every call.

    from shardmill.neat_packing import neat_pack_dataset_vlm

Same names, arguments, keys and dtypes as nemo_automodel.components.datasets.vlm.neat_packing_vlm.
Packs are planned to the lower bound; use `PackedDatasetWrapper.balanced_sampler` in place of a
shuffling DistributedSampler, which would undo the balance.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardmill.train.nemo.build import MEDIA_KEYS
from shardmill.train.nemo.build import build_packed_sample as _build_packed_vlm_sample
from shardmill.train.nemo.build import mrope_position_ids as _compute_mrope_position_ids
from shardmill.train.nemo.build import shift_sample as _shift_sample
from shardmill.train.nemo.dataset import (
    BalancedPackSampler,
    PackedDatasetWrapper,
    neat_pack_dataset_vlm,
)
from shardmill.train.nemo.plan import estimate_image_tokens as _estimate_image_tokens
from shardmill.train.nemo.plan import (
    estimate_sample_length,
    greedy_knapsack,
    greedy_knapsack_vt_balanced,
)
from shardmill.train.nemo.plan import estimate_video_tokens as _estimate_video_tokens

__all__ = [
    "MEDIA_KEYS",
    "BalancedPackSampler",
    "PackedDatasetWrapper",
    "_build_packed_vlm_sample",
    "_compute_mrope_position_ids",
    "_estimate_image_tokens",
    "_estimate_sample_length",
    "_estimate_video_tokens",
    "_shift_sample",
    "greedy_knapsack",
    "greedy_knapsack_vt_balanced",
    "neat_pack_dataset_vlm",
]


def _estimate_sample_length(
    example: Mapping[str, Any],
    image_cfg: Mapping[str, Any] | None = None,
    video_cfg: Mapping[str, Any] | None = None,
    return_media_tokens: bool = False,
) -> int | tuple[int, int]:
    """Return all tokens of a row, with `return_media_tokens` also those of its media."""
    total, media = estimate_sample_length(example, image_cfg, video_cfg)
    return (total, media) if return_media_tokens else total
