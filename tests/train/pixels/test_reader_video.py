"""Films in the worker: the very ids, frames and times that the model's own processor makes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("av")

import torch
from click.testing import CliRunner
from film_chats import FAMILIES, film, film_processor, write_film_folder
from hf_processors import transformers
from pixel_folder import lengths_by
from tiny_qwen import tiny_model

import shardmill as sm
from shardmill.cli.main import cli
from shardmill.errors import SampleError
from shardmill.media.frames import read_frames
from shardmill.media.header import probe
from shardmill.media.samplers import AllFrames
from shardmill.model.plan import PackSpec
from shardmill.model.sample import MediaSize
from shardmill.model.tokenrow import mask_of, modality_of
from shardmill.packing.plan import plan_packs
from shardmill.shards.plans import open_lengths
from shardmill.tokens.visual.llava import Llava
from shardmill.tokens.visual.qwen import Qwen2VL
from shardmill.train.collate import Collate
from shardmill.train.dataset import PackedDataset
from shardmill.train.pixels.levels import Media
from shardmill.train.pixels.reader import PixelReader, find_rule, read_video


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_film_folder(tmp_path_factory.mktemp("films") / "samples")


def theirs(reader: PixelReader, number: int) -> Any:
    """Return what the processor makes of the whole films, choosing frames by itself."""
    from PIL import Image
    from transformers.video_utils import VideoMetadata

    sample = reader.samples[number]
    shown: dict[str, list[Any]] = {"image": [], "video": []}
    metadata = []
    for segment in sample.document.media():
        content = bytes(sample.media[segment.media])
        if segment.kind == "image":
            import io

            shown["image"].append(Image.open(io.BytesIO(content)).convert("RGB"))
            continue
        frames = read_frames(content, AllFrames())
        shown["video"].append(np.stack([frame.pixels.transpose(2, 0, 1) for frame in frames]))
        rate = probe("video", content).size.fps
        metadata.append(VideoMetadata(total_num_frames=len(frames), fps=rate))
    rendered = reader.asked.render(_plain_messages(sample), tools=None)
    options: dict[str, Any] = {"images": [shown["image"]]} if shown["image"] else {}
    if metadata:
        options |= {"videos": shown["video"], "video_metadata": metadata}
    return reader.processor(text=[rendered], return_tensors="pt", **options)


def _plain_messages(sample: Any) -> list[dict[str, Any]]:
    turns: dict[str, list[Any]] = {}
    for s in sample.document.segments:
        item = {"type": "text", "text": s.text} if s.kind == "text" else {"type": s.kind}
        turns.setdefault(s.role, []).append(item)
    return [{"role": role, "content": content} for role, content in turns.items()]


@pytest.mark.parametrize("family", FAMILIES)
def test_ids_pixels_and_times_are_the_processors_own(folder: Path, family: str) -> None:
    reader = PixelReader.open(folder, film_processor(family))
    for number in range(len(reader)):
        document, expected = reader.read(number), theirs(reader, number)
        assert np.array_equal(document.row.ids, expected["input_ids"][0].numpy())
        assert reader.levels is not None
        for name, tensor in reader.levels.finish(document.tensors).items():
            assert torch.equal(torch.as_tensor(tensor), torch.as_tensor(expected[name])), name
        assert set(document.tensors) == set(expected) - {
            "input_ids",
            "attention_mask",
            "mm_token_type_ids",
        }
        types = modality_of(document.row.media, len(document.row.ids))
        assert np.array_equal(types, expected["mm_token_type_ids"][0].numpy())


@pytest.mark.parametrize("family", FAMILIES)
def test_loss_is_on_the_answer_behind_a_film(folder: Path, family: str) -> None:
    reader = PixelReader.open(folder, film_processor(family))
    tokenizer = reader.processor.tokenizer
    for number in range(len(reader)):
        row, sample = reader.read(number).row, reader.samples[number]
        learned = row.ids[mask_of(row.loss, len(row.ids))]
        text = "".join(tokenizer.convert_ids_to_tokens(learned.tolist())).replace("Ġ", " ")
        assert text == f"{sample.document.segments[-1].text}<|im_end|>"
        if row.media:
            marks = tokenizer.convert_tokens_to_ids(["<|vision_start|>", "<|vision_end|>"])
            first, last = row.media[0].start, row.media[-1].end - 1
            assert row.ids[[first, last]].tolist() == marks


@pytest.mark.parametrize("family", FAMILIES)
def test_planned_lengths_are_built_lengths(folder: Path, family: str, tmp_path: Path) -> None:
    processor = film_processor(family)
    processor.save_pretrained(tmp_path / "model")
    arguments = ["measure", folder, tmp_path / "m", "--model", tmp_path / "model", "--workers", 0]
    told = CliRunner().invoke(cli, list(map(str, arguments)))
    assert told.exit_code == 0, told.output
    measured = open_lengths(tmp_path / "m" / "lengths.bin")
    reader = PixelReader.open(folder, processor)
    found = lengths_by(reader)
    assert np.array_equal(measured.num_tokens, found.num_tokens)
    assert np.array_equal(measured.num_visual, found.num_visual)
    assert np.array_equal(measured.num_fixed, found.num_fixed)
    plan = plan_packs(measured, PackSpec(capacity=700), loops="plain")
    packs = PackedDataset(plan, reader, lengths=measured, max_faults=0)
    assert sum(len(packs[n].pack.samples) for n in range(len(packs))) == len(reader)


@pytest.mark.parametrize("family", FAMILIES)
def test_positions_of_films_are_the_models_own(folder: Path, family: str) -> None:
    reader = PixelReader.open(folder, film_processor(family))
    table = lengths_by(reader)
    plan = plan_packs(table, PackSpec(capacity=700), loops="plain")
    packs = PackedDataset(plan, reader, max_faults=0)
    model = tiny_model(family).model
    for number in range(len(packs)):
        pack = packs[number].pack
        for place, row in enumerate(pack.samples.tolist()):
            document = reader.read(row)
            start, length = int(pack.layout.starts[place]), int(pack.layout.lengths[place])
            types = torch.from_numpy(pack.modality[start : start + length].astype(np.int32))
            media = {n: t for n, t in document.tensors.items() if "pixel" not in n}
            expected, _ = model.get_rope_index(
                torch.from_numpy(document.row.ids)[None], types[None], **media
            )
            ours = pack.position_ids[:, start : start + length]
            assert np.array_equal(ours, expected[:, 0].numpy())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_batch_counts_films_not_runs(folder: Path, family: str) -> None:
    reader = PixelReader.open(folder, film_processor(family))
    plan = plan_packs(lengths_by(reader), PackSpec(capacity=700), loops="plain")
    packs = PackedDataset(plan, reader, max_faults=0)
    chosen = [packs[number] for number in range(2)]
    batch = Collate("nemo", media_dtype=torch.bfloat16)(chosen)
    counts = [
        sum(len(reader.samples[row].document.media("video")) for row in item.pack.samples.tolist())
        for item in chosen
    ]
    assert batch["n_videos_per_sample"].tolist() == counts
    assert len(batch["video_grid_thw"]) == sum(counts)
    assert batch["pixel_values_videos"].dtype == torch.bfloat16
    assert len(batch["pixel_values_videos"]) == int(batch["video_grid_thw"].prod(dim=1).sum())


@pytest.mark.parametrize("family", FAMILIES)
def test_films_travel_as_levels_once_they_are_compared(folder: Path, family: str) -> None:
    reader = PixelReader.open(folder, film_processor(family))
    for number in range(len(reader)):
        tensors = reader.read(number).tensors
        for name in {"pixel_values", "pixel_values_videos"} & tensors.keys():
            assert tensors[name].dtype == torch.uint8


def test_each_kind_of_medium_is_compared_before_it_is_believed(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reader = PixelReader.open(folder, film_processor("qwen2_vl"))
    kinds = [
        {s.kind for s in sample.document.media()}
        for sample in map(reader.samples.__getitem__, range(len(reader)))
    ]
    levels = reader.levels
    assert levels is not None and levels.videos is not None
    far = replace(levels.videos.normal, mean=(9.0, 9.0, 9.0))
    reader.levels = replace(levels, videos=replace(levels.videos, normal=far))
    for number in [n for n, kind in enumerate(kinds) if "video" not in kind]:
        reader.read(number)  # more samples than are compared, and none shows a film
    assert reader.levels.videos is not None
    number = kinds.index({"video"})
    document, expected = reader.read(number), theirs(reader, number)
    assert torch.equal(document.tensors["pixel_values_videos"], expected["pixel_values_videos"])
    assert "videos go through the processor" in caplog.text
    assert reader.levels.videos is None and reader.levels.images is not None


@pytest.mark.parametrize("family", FAMILIES)
def test_a_loader_with_a_device_gives_the_same_batches(
    folder: Path, family: str, tmp_path: Path
) -> None:
    processor = film_processor(family)
    processor.save_pretrained(tmp_path / "model")
    lengths = sm.measure(folder, tmp_path / "lengths", model=tmp_path / "model", workers=0)
    plan = sm.plan(lengths, tmp_path / "packs.plan", capacity=700)
    given: dict[str, Any] = {"processor": processor, "lengths": lengths, "collate": "transformers"}
    plain = list(sm.loader(plan, folder, **given))
    there = list(sm.loader(plan, folder, device="cpu", workers=1, **given))
    assert any("pixel_values_videos" in batch for batch in plain)
    for mine, other in zip(plain, there, strict=True):
        assert mine.keys() == other.keys()
        for name, value in mine.items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(other[name])), name


@pytest.mark.parametrize("settings", [{"do_sample_frames": False}, {"fps": None, "num_frames": 4}])
def test_all_frames_or_a_number_of_them(folder: Path, settings: dict[str, Any]) -> None:
    reader = PixelReader.open(folder, film_processor("qwen2_5_vl", **settings))
    number = next(n for n in range(len(reader)) if reader.samples[n].document.media("video"))
    document, expected = reader.read(number), theirs(reader, number)
    assert np.array_equal(document.row.ids, expected["input_ids"][0].numpy())
    assert reader.levels is not None
    finished = reader.levels.finish(document.tensors)
    assert torch.equal(finished["pixel_values_videos"], expected["pixel_values_videos"])


def test_a_film_that_is_not_as_indexed_is_named() -> None:
    content, rule = film(64, 48, 20, 10), find_rule(film_processor("qwen2_vl"))
    assert isinstance(rule, Qwen2VL)
    size = probe("video", content).size
    chosen = read_video(content, size, rule)
    assert chosen.numbers.tolist() == [0, 5, 10, 15]
    with pytest.raises(SampleError, match="number of frames 20, the index says 21"):
        read_video(content, replace(size, num_frames=21), rule)
    with pytest.raises(SampleError, match="size"):
        read_video(content, replace(size, width=66), rule)
    with pytest.raises(SampleError, match="not a video"):
        read_video(b"no film" * 99, size, rule)
    with pytest.raises(SampleError):
        read_video(content[: len(content) // 2], size, rule)
    with pytest.raises(SampleError, match="takes no video"):
        read_video(content, size, Llava())
    with pytest.raises(SampleError, match="unknown"):
        read_video(content, MediaSize(width=64, height=48, num_frames=0), rule)


def test_memory_holds_what_the_model_gets() -> None:
    transformers()
    content, processor = film(120, 64, 31, 5), film_processor("qwen2_vl")
    rule, videos = find_rule(processor), Media.of(processor.video_processor)
    assert rule is not None and videos is not None
    chosen = read_video(content, probe("video", content).size, rule, videos.resize)
    _, tall, wide = rule.count("video", chosen.size).grid
    assert tuple(chosen.pixels.shape) == (len(chosen.numbers), 3, tall * 14, wide * 14)
