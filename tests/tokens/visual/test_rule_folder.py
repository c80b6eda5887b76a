from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hf_processors import chat_template, compare, make_tokenizer, transformers

from shardmill.errors import ConfigError
from shardmill.model.sample import MediaSize
from shardmill.tokens.visual.gemma3 import Gemma3
from shardmill.tokens.visual.internvl import InternVL
from shardmill.tokens.visual.llava import Llava
from shardmill.tokens.visual.qwen import Qwen2VL, Qwen3VL, Qwen25VL, QwenImages, QwenVideos
from shardmill.tokens.visual.rule import rule_of_folder

MARKS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")


def random_image(rng: random.Random) -> MediaSize:
    return MediaSize(width=rng.randint(20, 400), height=rng.randint(20, 400))


def film(rng: random.Random) -> MediaSize:
    return MediaSize(width=50, height=30, num_frames=rng.randint(4, 30), fps=10.0)


def write(folder: Path, **files: object) -> Path:
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize("family", ["Qwen2VL", "Qwen2_5_VL", "Qwen3VL"])
def test_a_saved_qwen_counts_like_the_processor_that_was_saved(family: str, tmp_path: Path) -> None:
    hf = transformers()
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor

    start, end, image, video = MARKS
    size = {"shortest_edge": 5000, "longest_edge": 30_000}
    films = hf.Qwen3VLVideoProcessor if family == "Qwen3VL" else hf.Qwen2VLVideoProcessor
    processor = getattr(hf, f"{family}Processor")(
        Qwen2VLImageProcessor(size=dict(size), merge_size=3),
        make_tokenizer(*MARKS),
        films(size=dict(size), fps=1, do_sample_frames=True, max_frames=10),
        chat_template(image=start + image + end, video=start + video + end),
    )
    processor.save_pretrained(tmp_path)
    compare(rule_of_folder(tmp_path), processor, image=random_image, video=film, num_chats=40)


def test_published_layouts_are_read(tmp_path: Path) -> None:
    qwen = write(
        tmp_path,
        preprocessor_config={
            "processor_class": "Qwen2_5_VLProcessor",
            "min_pixels": 3136,
            "max_pixels": 12845056,
            "patch_size": 14,
            "merge_size": 2,
        },
    )
    assert rule_of_folder(qwen) == Qwen25VL()
    write(tmp_path, config={"vision_config": {"tokens_per_second": 3}})
    assert rule_of_folder(qwen) == Qwen25VL(tokens_per_second=3)
    write(tmp_path, config={"vision_config": {}})
    assert rule_of_folder(qwen) == Qwen25VL(tokens_per_second=4)


def test_the_default_of_qwen3_is_the_published_checkpoint(tmp_path: Path) -> None:
    write(
        tmp_path,
        preprocessor_config={
            "processor_class": "Qwen3VLProcessor",
            "size": {"longest_edge": 16777216, "shortest_edge": 65536},
            "patch_size": 16,
        },
        video_preprocessor_config={
            "size": {"longest_edge": 25165824, "shortest_edge": 4096},
            "patch_size": 16,
        },
    )
    assert rule_of_folder(tmp_path) == Qwen3VL()


def test_what_no_file_says_has_the_default_of_the_class(tmp_path: Path) -> None:
    write(tmp_path, preprocessor_config={"processor_class": "Qwen2VLProcessor"})
    assert rule_of_folder(tmp_path) == Qwen2VL(
        images=QwenImages(max_pixels=28 * 28 * 1280),
        videos=QwenVideos(min_pixels=128 * 28 * 28, max_pixels=768 * 28 * 28),
    )


def test_fixed_and_tiled_models_are_read(tmp_path: Path) -> None:
    gemma, llava, intern = (tmp_path / name for name in ("gemma", "llava", "intern"))
    for folder in (gemma, llava, intern):
        folder.mkdir()
    write(
        gemma,
        processor_config={"processor_class": "Gemma3Processor", "image_seq_length": 256},
        tokenizer_config={"boi_token": "<start_of_image>", "eoi_token": {"content": "<eoi>"}},
    )
    assert rule_of_folder(gemma) == Gemma3(end="<eoi>")
    write(
        llava,
        preprocessor_config={"crop_size": {"height": 336, "width": 336}, "size": 336},
        processor_config={
            "processor_class": "LlavaProcessor",
            "patch_size": 14,
            "num_additional_image_tokens": 1,
            "vision_feature_select_strategy": "default",
        },
    )
    assert rule_of_folder(llava) == Llava()
    write(
        intern,
        processor_config={
            "processor_class": "InternVLProcessor",
            "image_processor": {"size": {"height": 448, "width": 448}, "crop_to_patches": False},
            "video_processor": {"size": {"height": 448, "width": 336}},
        },
    )
    assert rule_of_folder(intern) == InternVL(video_size=(448, 336))


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({}, "has no processor_config.json"),
        ({"preprocessor_config": []}, "must hold an object"),
        ({"preprocessor_config": {"processor_class": "Unknown"}}, "known processors are Gemma3"),
        ({"processor_config": {"processor_class": "LlavaProcessor"}}, "cannot read the settings"),
        (
            {
                "processor_config": {
                    "processor_class": "LlavaProcessor",
                    "image_processor": {"size": 9},
                }
            },
            "lacks 'patch_size'",
        ),
    ],
)
def test_folders_that_cannot_be_read_say_why(
    files: dict[str, object], problem: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=problem):
        rule_of_folder(write(tmp_path, **files))


def test_broken_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text("{")
    with pytest.raises(ConfigError, match="is not JSON"):
        rule_of_folder(tmp_path)
