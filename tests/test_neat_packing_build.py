"""A packed sample: the documented keys, dtypes and values, with its masks and positions right."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_qwen import IMAGE_ID, tiny_model

from shardmill.neat_packing import (
    MEDIA_KEYS,
    _build_packed_vlm_sample,
    _compute_mrope_position_ids,
    _shift_sample,
)
from shardmill.train.nemo.packs import empty_sample

KEYS = {
    "input_ids",
    "labels",
    "attention_mask",
    "mm_token_type_ids",
    "seq_lens",
    "seq_lens_padded",
    "n_images",
    "n_videos",
    "position_ids",
    *MEDIA_KEYS,
}


def sample(length: int, first: int = 0, **extra: Any) -> dict[str, Any]:
    ids = torch.arange(length) + first
    return {
        "input_ids": ids,
        "labels": ids.clone(),
        "attention_mask": torch.ones_like(ids),
        **extra,
    }


def image(num: int = 1) -> dict[str, Any]:
    return {
        "pixel_values": torch.ones(4 * num, 6),
        "image_grid_thw": torch.tensor([[1, 2, 2]] * num),
    }


def test_shift_moves_labels_and_leaves_media() -> None:
    types = torch.tensor([[0, 1, 1, 0, 0]])
    shifted = _shift_sample(sample(5, mm_token_type_ids=types, other=3, **image()))
    assert shifted["input_ids"].tolist() == [0, 1, 2, 3]
    assert shifted["labels"].tolist() == [1, 2, 3, 4]
    assert shifted["mm_token_type_ids"].tolist() == [0, 1, 1, 0]
    assert shifted["pixel_values"].shape == (4, 6)
    assert "other" not in shifted
    assert "position_ids" not in shifted


def test_shift_keeps_positions_only_for_mrope() -> None:
    positions = torch.arange(15).view(3, 5)
    assert _shift_sample(sample(5, position_ids=positions), True)["position_ids"].shape == (3, 4)
    assert "position_ids" not in _shift_sample(sample(5, position_ids=positions))


def test_pack_numbers_documents_and_restarts_positions() -> None:
    packed = _build_packed_vlm_sample(
        [_shift_sample(sample(5)), _shift_sample(sample(4, 50))], 16, 9
    )
    assert set(packed) == KEYS
    assert packed["input_ids"].tolist() == [0, 1, 2, 3, 50, 51, 52]
    assert packed["labels"].tolist() == [1, 2, 3, 4, 51, 52, 53]
    assert packed["attention_mask"].tolist() == [1, 1, 1, 1, 2, 2, 2]
    assert packed["position_ids"].tolist() == [0, 1, 2, 3, 0, 1, 2]
    assert packed["seq_lens"] == packed["seq_lens_padded"] == [4, 3]
    for key in ("input_ids", "labels", "attention_mask", "mm_token_type_ids", "position_ids"):
        assert packed[key].dtype == torch.int64
    assert all(packed[key] is None for key in MEDIA_KEYS)


def test_alignment_pads_inside_documents() -> None:
    samples = [_shift_sample(sample(6)), _shift_sample(sample(4, 50))]
    packed = _build_packed_vlm_sample(samples, 16, 9, sequence_alignment=4)
    assert packed["input_ids"].tolist() == [0, 1, 2, 3, 4, 9, 9, 9, 50, 51, 52, 9]
    assert packed["labels"].tolist() == [1, 2, 3, 4, 5, -100, -100, -100, 51, 52, 53, -100]
    assert packed["attention_mask"].tolist() == [1] * 8 + [2] * 4
    assert packed["position_ids"].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3]
    assert (packed["seq_lens"], packed["seq_lens_padded"]) == ([5, 3], [8, 4])


def test_media_of_all_samples_are_joined_and_counted() -> None:
    video = {"pixel_values_videos": torch.ones(8, 6), "video_grid_thw": torch.tensor([[2, 2, 2]])}
    samples = [_shift_sample(sample(5, **image(2))), _shift_sample(sample(4, **image(), **video))]
    packed = _build_packed_vlm_sample(samples, 16, 9)
    assert (packed["n_images"], packed["n_videos"]) == (3, 1)
    assert packed["pixel_values"].shape == (12, 6)
    assert packed["image_grid_thw"].shape == (3, 3)


def test_images_of_many_sizes_stay_a_list_and_do_not_mix_with_tensors() -> None:
    lists = [_shift_sample(sample(5, pixel_values=[torch.ones(3, n, 4)])) for n in (4, 8)]
    packed = _build_packed_vlm_sample(lists, 16, 9)
    assert [tuple(one.shape) for one in packed["pixel_values"]] == [(3, 4, 4), (3, 8, 4)]
    with pytest.raises(TypeError, match="pixel_values must be tensors"):
        _build_packed_vlm_sample([lists[0], _shift_sample(sample(5, **image()))], 16, 9)


def test_mask_of_a_sample_survives_packing() -> None:
    masked = {**sample(6), "attention_mask": torch.tensor([1, 0, 0, 0, 1, 1])}
    packed = _build_packed_vlm_sample([_shift_sample(sample(3)), _shift_sample(masked)], 16, 9)
    assert packed["attention_mask"].tolist() == [1, 1, 2, 0, 0, 0, 2]


@pytest.mark.parametrize(("has_mrope", "shape"), [(False, (0,)), (True, (3, 0))])
def test_empty_pack_has_the_shapes_of_any_other(has_mrope: bool, shape: tuple[int, ...]) -> None:
    packed = _build_packed_vlm_sample([empty_sample(has_mrope)], 16, 9, has_mrope)
    assert set(packed) == KEYS
    assert tuple(packed["position_ids"].shape) == shape
    assert packed["seq_lens"] == packed["seq_lens_padded"] == [0]


def test_sample_without_positions_counts_as_text() -> None:
    with_positions = sample(5, position_ids=torch.arange(15).view(3, 5))
    samples = [_shift_sample(with_positions, True), _shift_sample(sample(4), True)]
    packed = _build_packed_vlm_sample(samples, 16, 9, True)
    assert packed["position_ids"][:, 4:].tolist() == [[0, 1, 2]] * 3
    aligned = _build_packed_vlm_sample(samples, 16, 9, True, sequence_alignment=8)
    assert aligned["position_ids"].shape == (3, 16)
    assert aligned["position_ids"][:, 4:8].tolist() == [[14, 15, 16, 17]] * 3


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_positions_of_a_bound_model_need_no_token_types(family: str) -> None:
    model = tiny_model(family).model
    ids = torch.tensor([1, 2, IMAGE_ID, IMAGE_ID, IMAGE_ID, IMAGE_ID, 3])
    one = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "image_grid_thw": torch.tensor([[1, 4, 4]]),
    }
    positions = _compute_mrope_position_ids(one, model.get_rope_index)
    assert positions.tolist() == [
        [0, 1, 2, 2, 2, 2, 4],
        [0, 1, 2, 2, 3, 3, 4],
        [0, 1, 2, 3, 2, 3, 4],
    ]


def test_function_gets_only_the_arguments_it_has() -> None:
    def old(input_ids: Any, image_grid_thw: Any = None, attention_mask: Any = None) -> Any:
        return torch.zeros(3, 1, input_ids.shape[1], dtype=torch.int64), None

    assert _compute_mrope_position_ids(sample(5, **image()), old).shape == (3, 5)
    assert _compute_mrope_position_ids(sample(5), lambda input_ids: None) is None
