"""Batches: joined or stacked, padded, under the names and with the labels of each trainer."""

from __future__ import annotations

import pickle
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
from shardmill.train.collate import NO_DOCUMENT, TRAINERS, Collate, num_items
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


def test_one_says_for_whom() -> None:
    with pytest.raises(TypeError, match="trainer"):
        Collate()  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="'thd': batches are made for transformers, torch, "):
        Collate("thd")
    for name in TRAINERS:
        assert pickle.loads(pickle.dumps(Collate(name)))([pack(3)])


def test_a_batch_of_one_row_has_all_packs_in_it() -> None:
    batch = Collate("transformers", multiple_of=16, pad_id=1)([pack(3, 4), pack(5)])
    assert batch["input_ids"].shape == (1, 16)
    assert batch["input_ids"][0, 12:].tolist() == [1] * 4
    assert batch["position_ids"].tolist() == [
        [0, 1, 2, 0, 1, 2, 3, 0, 1, 2, 3, 4, 0, 1, 2, 3]
    ]  # padding is a document, too
    assert batch["cu_seq_lens_q"].tolist() == [0, 3, 7, 12, 16]
    assert batch["cu_seq_lens_k"].dtype == torch.int32
    assert batch["max_length_q"] == batch["max_length_k"] == 5
    assert batch["seq_idx"].tolist() == [[0] * 3 + [1] * 4 + [2] * 5 + [3] * 4]
    assert batch["use_cache"] is False
    assert not {"attention_mask", "mm_token_type_ids"} & set(batch)
    plain = Collate("torch")([pack(3, 4), pack(5)])
    assert plain["cu_seqlens"].tolist() == [0, 3, 7, 12]
    assert plain["max_seqlen"] == 5


def test_rows_are_padded_to_the_longest_a_multiple_and_a_fixed_length() -> None:
    packs = [pack(3, 4), pack(5)]
    given, labels = Collate("torchtitan", pad_id=1)(packs)
    assert set(given) == {"input", "positions"}
    assert given["input"].shape == labels.shape == (2, 7)
    assert given["input"][1, 5:].tolist() == [1, 1]
    assert given["positions"].tolist() == [[0, 1, 2, 0, 1, 2, 3], [0, 1, 2, 3, 4, 0, 1]]
    assert labels[1, 4:].tolist() == [-100] * 3
    assert Collate("nemo", multiple_of=8)(packs)["input_ids"].shape == (2, 8)
    assert Collate("nemo", length=10)(packs)["cu_seq_lens_q"].tolist() == [0, 3, 7, 10, 15, 20]
    with pytest.raises(ConfigError, match="takes 7 places, the batch has 6"):
        Collate("nemo", length=6)(packs)
    with pytest.raises(ConfigError, match=r"takes 12 places.*one pack a batch"):
        Collate("transformers", length=10)(packs)


def test_labels_for_models_that_shift_and_for_those_that_do_not() -> None:
    rows = [replace(token_row(n, k), loss=np.array([[0, k]])) for n, k in enumerate((3, 2))]
    packs = [TrainPack(0, build_pack(rows, BuildSpec()), {})]
    ids = Collate("torch")(packs)["input_ids"][0].tolist()
    shifted = Collate("torch")(packs)["labels"][0].tolist()
    assert shifted == [ids[1], ids[2], -100, ids[4], -100]
    plain = Collate("transformers")(packs)["labels"][0].tolist()
    assert plain == [-100, ids[1], ids[2], -100, ids[4]]
    # What a model that shifts inside predicts at each place is the same.
    assert plain[1:] == shifted[:-1]
    # And the same tokens count, in whatever batch.
    batches = [Collate(name)(packs) for name in TRAINERS]
    assert [num_items(batch).item() for batch in batches] == [3] * len(TRAINERS)
    assert num_items(*batches[:2]) == 6


def test_megatron_and_transformer_engine_are_told_of_padding() -> None:
    packs = [pack(3, 2, alignment=4), pack(6, alignment=4)]
    batch = Collate("megatron", length=20)(packs)
    assert batch["cu_seqlens"].tolist() == [0, 3, 5, 11]
    assert batch["cu_seqlens_padded"].tolist() == [0, 4, 8, 20]
    assert batch["max_seqlen"].tolist() == [12]
    assert set(batch) > {"tokens", "labels", "loss_mask", "position_ids"}
    batch = Collate("nemo-thd", length=12)(packs)
    assert batch["seq_lens"].tolist() == [[3, 2], [6, NO_DOCUMENT]]
    assert batch["seq_lens_padded"].tolist() == [[4, 8], [12, NO_DOCUMENT]]
    assert batch["qkv_format"] == "thd"
    empty = TrainPack(-1, build_pack([], BuildSpec()), {})
    assert Collate("nemo-thd", length=4)([empty])["seq_lens_padded"].tolist() == [[4]]
    assert Collate("megatron", length=4)([empty])["cu_seqlens_padded"].tolist() == [0, 4]


def test_text_positions_stand_in_front_of_three_axes() -> None:
    packs = [image_pack(1), image_pack(2)]
    assert Collate("torch")(packs)["position_ids"].shape == (3, 1, 16)
    positions = Collate("transformers")(packs)["position_ids"]
    assert positions.shape == (4, 1, 16)
    assert positions[0, 0].tolist() == [*range(6), *range(10)]
    assert torch.equal(positions[1:], Collate("torch")(packs)["position_ids"])
    assert Collate("nemo")(packs)["position_ids"].shape == (4, 2, 10)


def test_media_are_joined_counted_cast_and_chunked() -> None:
    packs = [image_pack(n, number=i) for i, n in enumerate((1, 0, 2, 1))]
    batch = Collate("nemo", media_dtype=torch.bfloat16)(packs)
    assert batch["n_images_per_sample"].tolist() == [1, 0, 2, 1]
    assert "n_videos_per_sample" not in batch
    assert batch["pixel_values"].dtype == torch.bfloat16
    assert batch["image_grid_thw"].dtype == torch.int64
    chunks = Collate("nemo", num_chunks=2)(packs)["media_chunks"]
    assert [len(chunk["image_grid_thw"]) for chunk in chunks] == [1, 3]
    joined = torch.cat([chunk["pixel_values"] for chunk in chunks])
    row = Collate("transformers")(packs)
    assert torch.equal(joined, row["pixel_values"])
    assert "n_images_per_sample" not in row
    with pytest.raises(ConfigError, match="4 packs do not split into 3"):
        Collate("nemo", num_chunks=3)(packs)


def test_a_batch_of_nothing_but_padding_has_a_place() -> None:
    empty = TrainPack(-1, build_pack([], BuildSpec()), {})
    assert Collate("nemo")([empty, empty])["labels"].tolist() == [[-100], [-100]]
    batch = Collate("transformers")([empty, empty])
    assert batch["labels"].tolist() == [[-100]]
    assert batch["cu_seq_lens_q"].tolist() == [0, 1]
    assert 0 < num_items(batch) < 1e-6  # a sum over no tokens is 0, and 0 / this is, too


def test_settings_that_cannot_be() -> None:
    wrong: list[dict[str, Any]] = [
        {"trainer": "nemo", "multiple_of": 0},
        {"trainer": "nemo", "num_chunks": 0},
        {"trainer": "transformers", "num_chunks": 2},
    ]
    for settings in wrong:
        with pytest.raises(ConfigError):
            Collate(**settings)


def test_a_batch_of_real_packs(made: Made) -> None:
    packs = PackedDataset(made.plan_path, made.tokens)
    given, labels = Collate("torchtitan", length=128)([packs[0], packs[-1]])
    assert given["input"].shape == labels.shape == (2, 128)
    assert (labels[1] == -100).all()
