"""Batches: padded, stacked, and with documents kept apart in each attention layout."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from packed_folder import Made, token_row

from shardmill.errors import ConfigError
from shardmill.model.tokenrow import MediaSpan, TokenRow
from shardmill.packing.build import BuildSpec, build_pack
from shardmill.tokens.visual.qwen import Qwen2VL
from shardmill.train.collate import NO_DOCUMENT, Collate
from shardmill.train.dataset import PackedDataset
from shardmill.train.documents import TrainPack


def pack(*lengths: int, alignment: int = 1) -> TrainPack:
    rows = [token_row(number, length) for number, length in enumerate(lengths)]
    return TrainPack(0, build_pack(rows, BuildSpec(alignment=alignment)), {})


def image_pack(num_images: int, number: int = 0) -> TrainPack:
    row = TokenRow(
        key="k",
        ids=np.arange(2 + 4 * num_images),
        media=tuple(
            MediaSpan(name=f"{i}", kind="image", position=1 + 4 * i, num_tokens=3, grid=(1, 2, 6))
            for i in range(num_images)
        ),
    )
    values = torch.full((12 * num_images, 5), float(number))
    grids = torch.tensor([[1, 2, 6]] * num_images).reshape(-1, 3)
    tensors = {"pixel_values": values, "image_grid_thw": grids} if num_images else {}
    return TrainPack(number, build_pack([row], BuildSpec(positions=Qwen2VL())), tensors)


def test_padding_to_the_longest_a_multiple_and_a_fixed_length() -> None:
    packs = [pack(3, 4), pack(5)]
    batch = Collate(pad_id=1)(packs)
    assert batch["input_ids"].shape == (2, 7)
    assert batch["input_ids"][1, 5:].tolist() == [1, 1]
    assert batch["labels"][1, 4:].tolist() == [-100] * 3
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 2, 2, 2, 2], [1, 1, 1, 1, 1, 0, 0]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0, 1, 2, 3], [0, 1, 2, 3, 4, 0, 0]]
    assert Collate(multiple_of=8)(packs)["input_ids"].shape == (2, 8)
    assert Collate(length=10)(packs)["input_ids"].shape == (2, 10)
    with pytest.raises(ConfigError, match="takes 7 places, the batch has 6"):
        Collate(length=6)(packs)


def test_labels_for_models_that_shift_and_for_those_that_do_not() -> None:
    rows = [replace(token_row(n, k), loss=np.array([[0, k]])) for n, k in enumerate((3, 2))]
    packs = [TrainPack(0, build_pack(rows, BuildSpec()), {})]
    ids = Collate()(packs)["input_ids"][0].tolist()
    shifted = Collate()(packs)["labels"][0].tolist()
    assert shifted == [ids[1], ids[2], -100, ids[4], -100]
    unshifted = Collate(labels="unshifted")(packs)["labels"][0].tolist()
    assert unshifted == [-100, ids[1], ids[2], -100, ids[4]]
    # What a model that shifts inside predicts at each place is the same.
    assert unshifted[1:] == shifted[:-1]


def test_the_written_out_mask_lets_documents_see_only_themselves() -> None:
    mask = Collate(attention="4d")([pack(2, 3), pack(1)])["attention_mask"]
    assert mask.shape == (2, 1, 5, 5)
    assert mask.dtype == torch.bool
    expected = torch.zeros(5, 5, dtype=torch.bool)
    expected[:2, :2] = torch.ones(2, 2).tril().bool()
    expected[2:, 2:] = torch.ones(3, 3).tril().bool()
    assert torch.equal(mask[0, 0], expected)
    # Padding sees itself and nothing else.
    assert torch.equal(mask[1, 0], torch.eye(5, dtype=torch.bool))


def test_thd_lengths_cover_the_flattened_batch() -> None:
    batch = Collate(attention="thd", length=12)([pack(3, 2, alignment=4), pack(6, alignment=4)])
    assert batch["seq_lens"].tolist() == [[3, 2], [6, NO_DOCUMENT]]
    assert batch["seq_lens_padded"].tolist() == [[4, 8], [12, NO_DOCUMENT]]
    assert batch["cu_seqlens"].tolist() == [0, 4, 12, 24]
    assert batch["cu_seqlens"].dtype == torch.int32
    assert batch["max_seqlen"] == 12
    assert batch["qkv_format"] == "thd"
    assert "attention_mask" not in batch
    empty = TrainPack(-1, build_pack([], BuildSpec()), {})
    assert Collate(attention="thd", length=4)([empty])["cu_seqlens"].tolist() == [0, 4]


def test_three_axes_are_stacked_in_front() -> None:
    batch = Collate()([image_pack(1), image_pack(2)])
    assert batch["position_ids"].shape == (3, 2, 10)
    assert batch["mm_token_type_ids"][0].tolist() == [0, 1, 1, 1, 0, 0, 0, 0, 0, 0]


def test_media_are_joined_counted_cast_and_chunked() -> None:
    packs = [image_pack(n, number=i) for i, n in enumerate((1, 0, 2, 1))]
    batch = Collate(media_dtype=torch.bfloat16)(packs)
    assert batch["n_images_per_sample"].tolist() == [1, 0, 2, 1]
    assert "n_videos_per_sample" not in batch
    assert batch["pixel_values"].dtype == torch.bfloat16
    assert batch["image_grid_thw"].dtype == torch.int64
    chunks = Collate(num_chunks=2)(packs)["media_chunks"]
    assert [len(chunk["image_grid_thw"]) for chunk in chunks] == [1, 3]
    joined = torch.cat([chunk["pixel_values"] for chunk in chunks])
    assert torch.equal(joined, Collate()(packs)["pixel_values"])
    with pytest.raises(ConfigError, match="4 packs do not split into 3"):
        Collate(num_chunks=3)(packs)


def test_a_batch_of_nothing_but_padding_has_a_place() -> None:
    empty = TrainPack(-1, build_pack([], BuildSpec()), {})
    assert Collate()([empty, empty])["labels"].tolist() == [[-100], [-100]]


def test_settings_that_cannot_be(made: Made) -> None:
    wrong: list[dict[str, Any]] = [
        {"attention": "5d"},
        {"labels": "both"},
        {"multiple_of": 0},
        {"num_chunks": 0},
    ]
    for settings in wrong:
        with pytest.raises(ConfigError):
            Collate(**settings)


def test_a_batch_of_real_packs(made: Made) -> None:
    packs = PackedDataset(made.plan_path, made.tokens)
    batch = Collate(length=128)([packs[0], packs[-1]])
    assert {tuple(t.shape) for t in batch.values()} == {(2, 128)}
    assert (batch["attention_mask"][1] == 0).all()
