"""Drop-in for NeMo Automodel's VLM neat packing: change one import, keep every call.

    from shardmill.neat_packing import neat_pack_dataset_vlm

Same names, arguments, keys and dtypes as nemo_automodel.components.datasets.vlm.neat_packing_vlm.
Packs are planned to the lower bound; use `PackedDatasetWrapper.balanced_sampler` in place of a
shuffling DistributedSampler, which would undo the balance.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardmill.tokens.count import estimate_medium, given_sizes
from shardmill.train.nemo.build import MEDIA_KEYS
from shardmill.train.nemo.build import build_packed_sample as _build_packed_vlm_sample
from shardmill.train.nemo.build import mrope_position_ids as _compute_mrope_position_ids
from shardmill.train.nemo.build import shift_sample as _shift_sample
from shardmill.train.nemo.dataset import (
    BalancedPackSampler,
    PackedDatasetWrapper,
    neat_pack_dataset_vlm,
)
from shardmill.train.nemo.plan import (
    estimate_sample_length,
    greedy_knapsack,
    greedy_knapsack_vt_balanced,
    rule_of_configs,
)

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

Config = Mapping[str, Any]


def _estimate_image_tokens(img_meta: Any, image_cfg: Config) -> int:
    """Return the tokens of an image from its [height, width]."""
    return _estimate("image", img_meta, rule_of_configs(image_cfg, None))


def _estimate_video_tokens(vid_meta: Any, video_cfg: Config) -> int:
    """Return the tokens of a video from its [total_frames, height, width, fps, duration]."""
    return _estimate("video", vid_meta, rule_of_configs(None, video_cfg))


def _estimate_sample_length(
    example: Mapping[str, Any],
    image_cfg: Config | None = None,
    video_cfg: Config | None = None,
    return_media_tokens: bool = False,
) -> int | tuple[int, int]:
    """Return all tokens of a row, with `return_media_tokens` also those of its media."""
    is_known = image_cfg is not None or video_cfg is not None
    rule = rule_of_configs(image_cfg, video_cfg) if is_known else None
    total, media = estimate_sample_length(example, rule)
    return (total, media) if return_media_tokens else total


def _estimate(kind: str, meta: Any, rule: Any) -> int:
    (size,) = given_sizes([kind], {"mm_inputs_meta": {f"{kind}s_meta": [meta]}})
    return estimate_medium(kind, size, rule)
