"""The drop-in offers the documented names with the documented arguments."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import shardmill.neat_packing as neat

# Ours, behind those of NeMo.
MORE = ("preset", "max_faults")
SIGNATURES = {
    "neat_pack_dataset_vlm": (
        "dataset, pack_size, padding_idx=0, drop_long_samples=False, max_packs=None, "
        "get_rope_index=None, ds_raw=None, packing_ratio=1.0, processor=None, "
        "balance_media_tokens=True, sequence_alignment=1"
    ),
    "PackedDatasetWrapper": (
        "inner_dataset, bins, pack_size, padding_idx=0, sequence_alignment=1, "
        "get_rope_index=None, max_retries=10"
    ),
    "greedy_knapsack": "lengths, max_length",
    "greedy_knapsack_vt_balanced": "lengths, max_length, visual_tokens",
    "_shift_sample": "sample, has_mrope=False",
    "_build_packed_vlm_sample": (
        "samples, pack_size, padding_idx, has_mrope=False, sequence_alignment=1"
    ),
    "_compute_mrope_position_ids": "sample, get_rope_index",
    "_estimate_image_tokens": "img_meta, image_cfg",
    "_estimate_video_tokens": "vid_meta, video_cfg",
    "_estimate_sample_length": (
        "example, image_cfg=None, video_cfg=None, return_media_tokens=False"
    ),
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_arguments_are_the_documented_ones(name: str) -> None:
    found = inspect.signature(getattr(neat, name)).parameters.values()
    written = ", ".join(
        p.name if p.default is inspect.Parameter.empty else f"{p.name}={p.default!r}"
        for p in found
        if p.name not in MORE
    )
    assert written == SIGNATURES[name]


def test_media_keys() -> None:
    assert neat.MEDIA_KEYS == (
        "pixel_values",
        "image_grid_thw",
        "image_position_ids",
        "pixel_values_videos",
        "video_grid_thw",
        "second_per_grid_ts",
    )


def test_length_is_a_number_or_a_pair() -> None:
    row: dict[str, Any] = {"conversation": [{"role": "user", "content": [{"type": "image"}]}]}
    assert neat._estimate_sample_length(row) == 500
    assert neat._estimate_sample_length(row, return_media_tokens=True) == (500, 500)
