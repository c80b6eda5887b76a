"""Images in whole levels become the very tensors of each family's own processor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hf_processors import (
    gemma3_processor,
    internvl_processor,
    llava_processor,
    make_tokenizer,
    transformers,
)
from packed_folder import token_row, write_rows
from pixel_folder import make_processor, save_model, write_pixel_folder

import shardmill as sm
from shardmill.model.sample import MediaSize
from shardmill.tokens.visual.rule import rule_of_processor
from shardmill.train.pixels.levels import Levels
from shardmill.train.pixels.processor import VideoFrames

torch = pytest.importorskip("torch")


def qwen(name: str, **settings: Any) -> Any:
    loaded = transformers()
    images = loaded.Qwen2VLImageProcessor(**settings)
    videos = loaded.Qwen2VLVideoProcessor() if name != "Qwen3VL" else loaded.Qwen3VLVideoProcessor()
    marks = ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
    return getattr(loaded, f"{name}Processor")(images, make_tokenizer(*marks), videos)


FAMILIES: dict[str, Callable[[], Any]] = {
    "qwen2": lambda: qwen("Qwen2VL"),
    "qwen2.5": lambda: qwen("Qwen2_5_VL", max_pixels=28 * 28 * 64),
    "qwen3": lambda: qwen(
        "Qwen3VL", patch_size=16, image_mean=[0.5] * 3, image_std=[0.5] * 3, min_pixels=128 * 128
    ),
    "internvl": internvl_processor,
    "llava": llava_processor,
    "gemma3": gemma3_processor,
}


def photo(rng: np.random.Generator) -> np.ndarray:
    """Return an image of a random size with smooth areas and edges, as photos have them."""
    from PIL import Image

    height, width = (int(n) for n in rng.integers(24, 400, 2))
    small = rng.integers(0, 256, (height // 12 + 1, width // 12 + 1, 3), dtype=np.uint8)
    return np.array(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC))


def processed(processor: Any, image: np.ndarray) -> dict[str, Any]:
    from PIL import Image

    token = rule_of_processor(processor).placeholders()["image"]
    made = processor(text=[token], images=[[Image.fromarray(image)]], return_tensors="pt")
    text = ("input_ids", "attention_mask", "mm_token_type_ids", "token_type_ids")
    return {name: tensor for name, tensor in made.items() if name not in text}


@pytest.mark.parametrize("family", FAMILIES)
def test_tensors_are_those_of_the_processor(family: str) -> None:
    processor = FAMILIES[family]()
    levels = Levels.of(processor, rule_of_processor(processor))
    assert levels is not None
    rng = np.random.default_rng(5)
    for _ in range(25):
        image = photo(rng)
        made = processed(processor, image)
        found = levels.make([image])
        assert found is not None and found["pixel_values"].dtype == torch.uint8
        assert levels.differs(found, made) == ""
        floats = made["pixel_values"]
        assert torch.equal(levels.finish(found)["pixel_values"], floats)
        assert found["pixel_values"].nbytes * 4 <= floats.nbytes


@pytest.mark.parametrize("family", ["qwen2", "gemma3", "llava", "internvl"])
def test_pillow_rounds_resized_pixels_by_at_most_two_levels_otherwise(family: str) -> None:
    loaded = transformers()
    processor = FAMILIES[family]()
    name = type(processor.image_processor).__name__ + "Pil"
    settings = processor.image_processor.to_dict()
    pillow = getattr(loaded, name)(
        **{key: value for key, value in settings.items() if "processor" not in key}
    )
    processor.image_processor = pillow
    levels = Levels.of(processor, rule_of_processor(processor))
    assert levels is not None
    rng = np.random.default_rng(6)
    for _ in range(10):
        image = photo(rng)
        found = levels.make([image])
        assert found is not None
        assert levels.differs(found, processed(processor, image)) == ""


VIDEOS: dict[str, Callable[[], Any]] = {
    "qwen2": lambda: qwen_videos("Qwen2VL", fps=2, do_sample_frames=True),
    "qwen2.5": lambda: qwen_videos("Qwen2_5_VL", fps=3, do_sample_frames=True),
    "qwen2.5-capped": lambda: qwen_videos(
        "Qwen2_5_VL", fps=3, do_sample_frames=True, cap_pixels_per_frame=True, max_video_tokens=99
    ),
    "qwen2.5-all": lambda: qwen_videos("Qwen2_5_VL"),
    "qwen3": lambda: qwen_videos("Qwen3VL"),
    "qwen3-capped": lambda: qwen_videos("Qwen3VL", cap_pixels_per_frame=True, max_video_tokens=9),
    "qwen3-bilinear": lambda: qwen_videos("Qwen3VL", resample=2),
    "internvl": lambda: internvl_processor(num_frames=5, do_sample_frames=True),
}


def qwen_videos(name: str, **settings: Any) -> Any:
    """Return a processor with a small budget for videos."""
    processor = qwen(name)
    side = 32 if name == "Qwen3VL" else 28
    most = 60 if name == "Qwen3VL" else 12
    size = {"shortest_edge": side * side * 4, "longest_edge": side * side * most}
    processor.video_processor = type(processor.video_processor)(size=size, **settings)
    return processor


def video(rng: np.random.Generator) -> tuple[np.ndarray, float]:
    """Return frames [frames, height, width, 3] of a random size and number, and their rate."""
    num_frames, rate = int(rng.integers(6, 40)), float(rng.choice([5.0, 8.0, 23.976, 30.0]))
    first = photo(rng)
    if rng.random() < 0.2:  # tall or wide beyond what photos are
        first = first[:30] if rng.random() < 0.5 else first[:, :30]
    return np.stack([np.roll(first, 3 * n, axis=n % 2) for n in range(num_frames)]), rate


@pytest.mark.parametrize("family", VIDEOS)
def test_videos_are_those_of_the_processor(family: str) -> None:
    processor = VIDEOS[family]()
    rule = rule_of_processor(processor)
    levels = Levels.of(processor, rule)
    assert levels is not None and levels.videos is not None
    rng = np.random.default_rng(9)
    for _ in range(20):
        frames, rate = video(rng)
        num_frames, height, width = frames.shape[:3]
        size = MediaSize(width=width, height=height, num_frames=num_frames, fps=rate)
        # The processor gets the whole video at its own size and chooses by itself.
        made = processor(
            text=[rule.placeholders()["video"]],
            videos=[torch.from_numpy(frames).permute(0, 3, 1, 2)],
            video_metadata=[{"total_num_frames": num_frames, "fps": rate}],
            return_tensors="pt",
        )
        text = ("input_ids", "attention_mask", "mm_token_type_ids")
        wanted = {name: tensor for name, tensor in made.items() if name not in text}
        target = rule.frame_size(size)
        assert target is not None
        chosen = [
            levels.videos.resize(torch.from_numpy(frames[n]), target) for n in rule.frames(size)
        ]
        pixels = torch.stack(chosen).permute(0, 3, 1, 2)
        found = levels.make([VideoFrames(pixels, np.asarray(rule.frames(size)), size)])
        assert found is not None and found[rule.video_pixels].dtype == torch.uint8
        assert levels.differs(found, wanted) == ""
        assert torch.equal(levels.finish(found)[rule.video_pixels], wanted[rule.video_pixels])
        assert found[rule.video_pixels].nbytes * 4 == wanted[rule.video_pixels].nbytes


def test_images_and_videos_of_one_tensor_are_scaled_alike_or_not_at_all() -> None:
    processor = internvl_processor()
    rule = rule_of_processor(processor)
    levels = Levels.of(processor, rule)
    assert levels is not None and levels.videos is not None
    processor.video_processor.image_mean = [0.1, 0.2, 0.3]
    levels = Levels.of(processor, rule)
    assert levels is not None and levels.videos is None and levels.images is not None


def test_images_of_a_sample_are_joined() -> None:
    processor = FAMILIES["qwen2"]()
    levels = Levels.of(processor, rule_of_processor(processor))
    assert levels is not None
    rng = np.random.default_rng(7)
    images = [photo(rng) for _ in range(3)]
    together, alone = levels.make(images), [levels.make([image]) for image in images]
    assert together is not None
    for name, tensor in together.items():
        torch.testing.assert_close(tensor, torch.cat([one[name] for one in alone if one]))


@pytest.mark.parametrize(
    "change", [{"do_normalize": False}, {"resample": 1}, {"do_resize": False}, {"do_pad": True}]
)
def test_a_processor_that_does_something_else_keeps_its_images(change: dict[str, Any]) -> None:
    processor = FAMILIES["llava"]()
    for name, value in change.items():
        setattr(processor.image_processor, name, value)
    assert Levels.of(processor, rule_of_processor(FAMILIES["llava"]())) is None


def test_another_processor_is_noticed() -> None:
    levels = Levels.of(qwen("Qwen2VL"), rule_of_processor(qwen("Qwen2VL")))
    other = qwen("Qwen2VL", image_mean=[0.5] * 3)
    image = photo(np.random.default_rng(8))
    assert levels is not None
    found = levels.make([image])
    assert found is not None
    assert "pixel_values is 0.3" in levels.differs(found, processed(other, image))
    del found["image_grid_thw"]
    assert "image_grid_thw" in levels.differs(found, processed(other, image))


@pytest.mark.parametrize("trainer", ["transformers", "nemo"])
def test_a_loader_with_a_device_gives_the_same_batches(tmp_path: Path, trainer: str) -> None:
    folder = write_pixel_folder(tmp_path / "samples", count=24)
    processor = make_processor()
    model = save_model(tmp_path / "model", processor)
    lengths = sm.measure(folder, tmp_path / "lengths", model=model)
    plan = sm.plan(lengths, tmp_path / "packs.plan", capacity=512)
    given: dict[str, Any] = {"processor": processor, "lengths": lengths, "collate": trainer}
    plain = list(sm.loader(plan, folder, **given))
    there = list(sm.loader(plan, folder, device="cpu", workers=1, **given))
    assert any("pixel_values" in batch for batch in plain)
    for mine, other in zip(plain, there, strict=True):
        assert mine.keys() == other.keys()
        for name, value in mine.items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(other[name])), name
    half = sm.Collate(trainer, media_dtype=torch.bfloat16)
    for batch in sm.loader(plan, folder, device="cpu", **{**given, "collate": half}):
        assert "pixel_values" not in batch or batch["pixel_values"].dtype == torch.bfloat16


def test_rows_with_and_without_images_and_mixes_of_both_go_to_a_device(tmp_path: Path) -> None:
    folder = write_pixel_folder(tmp_path / "samples", count=24)
    processor = make_processor()
    model = save_model(tmp_path / "model", processor)
    lengths = sm.measure(folder, tmp_path / "lengths", model=model)
    sm.plan(lengths, tmp_path / "packs.plan", capacity=256)
    write_rows(tmp_path / "tokens", [token_row(number, 40) for number in range(30)])
    sm.plan(tmp_path / "tokens", tmp_path / "text.plan", capacity=128)
    sources = {
        "images": sm.PackedDataset(
            tmp_path / "packs.plan", folder, processor=processor, lengths=tmp_path / "lengths"
        ),
        "text": sm.PackedDataset(tmp_path / "text.plan", tmp_path / "tokens"),
    }
    mix = sm.Mix(sources, {"images": 1, "text": 1})

    def batches(device: str | None) -> list[Any]:
        loader = sm.loader(mix, collate="nemo", batch_size=3, device=device)
        return [batch for _, batch in zip(range(6), loader)]

    plain, there = batches(None), batches("cpu")
    assert mix.sources["images"].in_levels
    for mine, other in zip(plain, there, strict=True):
        assert mine.keys() == other.keys() and "pixel_values" in mine
        for name, value in mine.items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(other[name])), name


def test_levels_and_floats_of_one_pack_are_joined(tmp_path: Path) -> None:
    folder = write_pixel_folder(tmp_path / "samples", count=12)
    processor = make_processor()
    model = save_model(tmp_path / "model", processor)
    lengths = sm.measure(folder, tmp_path / "lengths", model=model)
    plan = sm.plan(lengths, tmp_path / "packs.plan", capacity=2048)
    packs = sm.PackedDataset(plan.path, folder, processor=processor, lengths=lengths)
    packs.in_levels = True
    wanted = packs.reader.levels.finish(packs[0].tensors)["pixel_values"]
    read, made = packs.reader.read, packs.reader.levels

    def every_other(row: int) -> Any:
        found = read(row)
        return replace(found, tensors=made.finish(found.tensors)) if row % 2 else found

    packs.reader = SimpleNamespace(
        read=every_other, levels=made, prefetch=lambda rows: None, describe=str
    )
    assert torch.equal(packs[0].tensors["pixel_values"], wanted)
