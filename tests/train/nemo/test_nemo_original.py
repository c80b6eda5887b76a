"""The drop-in against NeMo Automodel itself, on random and odd input."""

from __future__ import annotations

import dataclasses
import random
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import shardmill.neat_packing as ours

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
from packers import nemo_module

IMAGES = {
    "factor": 28,
    "patch_size": 14,
    "merge_size": 2,
    "min_pixels": 3136,
    "max_pixels": 1003520,
}
VIDEOS = {
    "factor": 32,
    "patch_size": 16,
    "merge_size": 2,
    "temporal_patch_size": 2,
    "min_pixels": 16384,
    "max_pixels": 16 * 16 * 2 * 2 * 2 * 6144,
    "fps": 2.0,
    "min_frames": 4,
    "max_frames": 768,
}


@pytest.fixture(scope="module")
def nemo() -> Any:
    return nemo_module()


@pytest.fixture(scope="module")
def nemo_llm(nemo: Any) -> Any:
    from nemo_automodel.components.datasets.llm import neat_packing

    return neat_packing


@pytest.fixture
def rng() -> random.Random:
    return random.Random(0)


class Samples:
    """A data set of these samples."""

    def __init__(self, samples: Any) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, number: int) -> dict[str, Any]:
        return dict(self.samples[number])


def same(one: Any, other: Any) -> bool:
    """Whether two answers are equal in value, type, shape and dtype."""
    if isinstance(one, torch.Tensor):
        alike = isinstance(other, torch.Tensor) and one.dtype == other.dtype
        return alike and one.shape == other.shape and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list):
        return isinstance(other, list) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


def make_row(rng: random.Random) -> dict[str, Any]:
    def text() -> str:
        return rng.choice(["", "a", "hello wörld ", "图像说明", "🙂 x", "\ud800"]) * rng.randint(
            0, 30
        )

    def item() -> Any:
        return rng.choice(
            [
                {"type": "text", "text": text()},
                {"type": "image"},
                {"type": "video"},
                {"type": "audio"},
                {"type": "text"},
                "plain",
                None,
            ]
        )

    turn: dict[str, Any] = {"role": "user", "content": [item() for _ in range(rng.randint(0, 4))]}
    turns = [turn, {"role": "assistant", "content": text()}, {"role": "x"}, {"content": ("t",)}]
    row: dict[str, Any] = {"conversation": rng.sample(turns, rng.randint(0, 4))}
    if rng.random() < 0.3:
        row["_text_tokens"] = rng.choice([0, 5, 77, 3.7, True, -4])
    if rng.random() < 0.6:
        sides = rng.randint(1, 3000), rng.randint(1, 3000)
        images = [None, list(sides), (rng.randint(1, 50), 5000), [rng.random() * 900 + 1, 200.9]]
        frames = rng.choice([0, 1, 3, rng.randint(1, 9000)])
        seconds = rng.choice([0.0, rng.random() * 300])
        videos = [None, [frames, *sides, rng.choice([0, 25.0, 29.97, 1]), seconds]]
        row["mm_inputs_meta"] = {
            "images_meta": rng.choice([None, rng.sample(images, rng.randint(0, 4))]),
            "videos_meta": rng.sample(videos, rng.randint(0, 2)),
        }
    return row


def make_sample(rng: random.Random, axes: int | None = None) -> dict[str, Any]:
    length = rng.randint(1, 12)
    ids = torch.randint(0, 99, (length,))
    sample = {"input_ids": ids, "labels": ids + 1, "attention_mask": torch.ones_like(ids)}
    if rng.random() < 0.5:
        types = torch.randint(0, 3, (length,))
        sample["mm_token_type_ids"] = types if rng.random() < 0.5 else types[None]
    if axes is not None:
        sample["position_ids"] = torch.randint(0, 50, (axes, length))
    if rng.random() < 0.4:
        sample["pixel_values"] = torch.rand(4, rng.choice([6, 6, 6, 7]))
        sample["image_grid_thw"] = torch.randint(1, 5, (rng.randint(1, 3), 3))
    if rng.random() < 0.2:
        sample["pixel_values_videos"] = torch.rand(4, 6)
        sample["video_grid_thw"] = torch.randint(1, 5, (1, 3))
        sample["second_per_grid_ts"] = torch.rand(1)
    if rng.random() < 0.1:
        sample["image_position_ids"] = torch.randint(0, 9, (3, 2))
    return sample


def test_every_name_of_its_modules_is_here(nemo: Any, nemo_llm: Any) -> None:
    for module in (nemo, nemo_llm):
        for name, value in vars(module).items():
            own = getattr(value, "__module__", None) == module.__name__
            if own or (name.isupper() and name != "TYPE_CHECKING"):
                assert hasattr(ours, name), name
    for name in ("NeatPackConfig", "PackedDatasetWrapperConfig"):
        theirs, mine = (dataclasses.fields(getattr(module, name)) for module in (nemo, ours))
        assert [(f.name, f.default) for f in theirs] == [
            (f.name, f.default) for f in mine[: len(theirs)]
        ]


def test_knapsacks_make_the_same_packs(nemo: Any, rng: random.Random) -> None:
    for _ in range(500):
        lengths = [rng.choice([0, 1, 5, rng.randint(0, 60)]) for _ in range(rng.randint(0, 40))]
        visual, most = [rng.randint(0, 9) for _ in lengths], rng.randint(1, 50)
        assert nemo.greedy_knapsack(lengths, most) == ours.greedy_knapsack(lengths, most)
        theirs = nemo.greedy_knapsack_vt_balanced(lengths, most, visual)
        assert theirs == ours.greedy_knapsack_vt_balanced(lengths, most, visual)


def test_estimates_are_the_same(nemo: Any, rng: random.Random) -> None:
    for _ in range(1500):
        row = make_row(rng)
        image = rng.choice([None, IMAGES, {**IMAGES, "max_pixels": 40_000}])
        video = rng.choice([None, VIDEOS, {**VIDEOS, "fps": 1.5, "max_frames": 9}])
        theirs, mine = (
            module._estimate_sample_length(row, image, video, return_media_tokens=True)
            for module in (nemo, ours)
        )
        assert theirs == mine, row
    for _ in range(1500):
        size = [rng.randint(1, 4000), rng.choice([rng.randint(1, 40), rng.randint(1, 9999)])]
        frames = rng.choice([0, 1, 2, 3, rng.randint(1, 99_999)])
        clip = [frames, *size, rng.choice([0, 25, 29.97, rng.random() * 60]), rng.random() * 900]
        assert nemo._estimate_image_tokens(size, IMAGES) == ours._estimate_image_tokens(
            size, IMAGES
        )
        assert nemo._estimate_video_tokens(clip, VIDEOS) == ours._estimate_video_tokens(
            clip, VIDEOS
        )


def make_processor(rng: random.Random) -> Any:
    values: dict[str, list[Any]] = {
        "patch_size": [14, 16],
        "merge_size": [1, 2],
        "min_pixels": [3136, None],
        "max_pixels": [None, 200_000],
        "fps": [1.0, 2.0],
        "min_frames": [2, 4],
        "size": [{"shortest_edge": 3136, "longest_edge": 500_000}, {"min_pixels": 5000}, None],
    }
    return SimpleNamespace(
        **{
            f"{kind}_processor": SimpleNamespace(
                **{name: rng.choice(of) for name, of in values.items() if rng.random() < 0.5}
            )
            for kind in ("image", "video")
            if rng.random() < 0.8
        }
    )


def test_the_preset_makes_the_same_plan(nemo: Any, rng: random.Random) -> None:
    for _ in range(200):
        rows = [make_row(rng) for _ in range(rng.randint(0, 40))]
        settings: dict[str, Any] = {
            "pack_size": rng.choice([16, 256, 2048]),
            "ds_raw": rows,
            "drop_long_samples": rng.random() < 0.4,
            "max_packs": rng.choice([None, None, 3]),
            "packing_ratio": rng.choice([1.0, 0.9]),
            "balance_media_tokens": rng.random() < 0.7,
            "sequence_alignment": rng.choice([1, 1, 8]),
            "processor": rng.choice([None, make_processor(rng)]),
        }
        theirs = nemo.neat_pack_dataset_vlm(rows, **settings)
        mine = ours.neat_pack_dataset_vlm(rows, **settings, preset="nemo")
        assert theirs.bins == mine.bins


def test_packs_are_the_same(nemo: Any, rng: random.Random) -> None:
    for _ in range(800):
        axes = rng.choice([None, None, 3, 4])
        alignment = 1 if axes else rng.choice([1, 1, 4, 8])
        samples = [make_sample(rng, axes) for _ in range(rng.randint(0, 5))]
        shifted = [nemo._shift_sample(dict(sample), bool(axes)) for sample in samples]
        assert same(shifted, [ours._shift_sample(sample, bool(axes)) for sample in samples])
        if rng.random() < 0.3:  # lists, and no mask
            for sample in shifted:
                del sample["attention_mask"]
                for name in {"input_ids", "labels", "mm_token_type_ids"} & sample.keys():
                    sample[name] = sample[name].tolist()
        given = (shifted, 64, 7, bool(axes), alignment)
        assert same(nemo._build_packed_vlm_sample(*given), ours._build_packed_vlm_sample(*given))


def test_a_sample_without_labels_is_refused(nemo: Any) -> None:
    for module in (nemo, ours):
        with pytest.raises(KeyError, match="labels"):
            module._build_packed_vlm_sample([{"input_ids": torch.arange(3)}], 64, 7)


def rope_of_three(input_ids: Any, image_grid_thw: Any = None, attention_mask: Any = None) -> Any:
    return torch.arange(input_ids.shape[1]).expand(3, 1, -1) * 2, None


def rope_of_four(input_ids: Any, mm_token_type_ids: Any) -> Any:
    return torch.arange(input_ids.shape[1]).expand(4, 1, -1) + mm_token_type_ids[None], None


def other_rope(ids: Any) -> Any:
    raise AssertionError("is not called without input_ids")


def test_data_sets_of_packs_are_the_same(nemo: Any, rng: random.Random) -> None:
    for _ in range(200):
        data = Samples([make_sample(rng) for _ in range(8)])
        bins = [rng.sample(range(8), rng.randint(0, 5)) for _ in range(4)]
        rope = rng.choice([None, rope_of_three, rope_of_four, other_rope])
        alignment = 1 if rope else rng.choice([1, 4])
        given = (data, bins, rng.choice([10, 20, 40]), 3, alignment, rope)
        theirs, mine = nemo.PackedDatasetWrapper(*given), ours.PackedDatasetWrapper(*given, 10, 99)
        for number in range(4):
            one, other = theirs[number], mine[number]
            if rope and not len(one["input_ids"]):
                # Theirs has one axis and cannot be collated with packs of three.
                one["position_ids"] = other["position_ids"]
            assert same(one, other)


@pytest.mark.parametrize("rope", [None, rope_of_three])
def test_its_collaters_take_an_empty_pack(nemo: Any, rng: random.Random, rope: Any) -> None:
    from nemo_automodel.components.datasets.vlm import collate_fns

    data = Samples([make_sample(rng)])
    packed = ours.PackedDatasetWrapper(data, [[], [0]], 20, get_rope_index=rope)
    for collate in (
        collate_fns.packed_sequence_thd_vlm_collater,
        collate_fns.neat_packed_vlm_collater,
    ):
        for order in ([0, 1], [1, 0]):
            batch = collate([packed[number] for number in order])
            assert batch["input_ids"].shape[0] == 2
    assert collate_fns.packed_sequence_thd_vlm_collater([packed[0]])["seq_lens"].tolist() == [[0]]


def test_text_packs_are_the_same(nemo_llm: Any, rng: random.Random) -> None:
    for _ in range(60):
        samples = []
        for _ in range(rng.randint(1, 20)):
            length = rng.randint(1, 14)
            sample: dict[str, Any] = {
                name: [rng.randint(0, 99) for _ in range(length)]
                for name in ("input_ids", "labels")
            }
            if rng.random() < 0.3:
                sample = {name: torch.tensor(value) for name, value in sample.items()}
            if rng.random() < 0.3:
                sample["loss_mask"] = [rng.randint(0, 1) for _ in range(length)]
            samples.append(sample)
        settings: dict[str, Any] = {
            "pack_size": rng.choice([12, 16, 30]),
            "max_packs": rng.choice([None, 2]),
            "padding_idx": rng.choice([0, 9]),
            "drop_long_samples": rng.random() < 0.5,
        }
        answers = []
        for module in (nemo_llm, ours):
            try:
                made = module.neat_pack_dataset([dict(s) for s in samples], "train", **settings)
                answers.append((made.features, made.to_dict()))
            except ValueError:
                answers.append("ValueError")
        assert answers[0] == answers[1]
        packed = (samples[:2], 64, 3)
        assert same(nemo_llm._build_packed_sample(*packed), ours._build_packed_sample(*packed))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda module: module._aligned_length(3, 0),
        lambda module: module.PackedDatasetWrapper([], [], 8, sequence_alignment=0),
        lambda module: module.neat_pack_dataset_vlm([], 8, sequence_alignment=0),
        lambda module: module.NeatPackConfig(packing_format="x"),
        lambda module: module.NeatPackConfig().build(dataset=[], padding_idx=0, cp_size=0),
        lambda module: module.NeatPackConfig(packing_format="thd", collate_max_length=6).build(
            dataset=[], padding_idx=0, cp_size=2
        ),
    ],
)
def test_wrong_settings_are_value_errors(nemo: Any, wrong: Any) -> None:
    for module in (nemo, ours):
        with pytest.raises(ValueError, match=r"sequence_alignment|packing_format|cp_size"):
            wrong(module)
