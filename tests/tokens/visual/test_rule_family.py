"""A new VLM family is one class and one line of the plugins: everything else asks the rule."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hf_processors import chat_template, make_tokenizer, transformers
from numpy.typing import NDArray
from sample_folder import write_sample_folder
from video_tables import steady_table

from shardmill import plugins
from shardmill.errors import ConfigError, SampleError
from shardmill.model.codec import from_plain, to_plain
from shardmill.model.frames import FrameNumbers, spread_frames
from shardmill.model.sample import Document, MediaSize, Sample, Segment
from shardmill.model.tokenrow import MediaSpan, TokenRow
from shardmill.packing.build import BuildSpec, build_pack
from shardmill.running.runner import run_stage
from shardmill.stages.measure import Measure, merge_lengths
from shardmill.tokens.visual.rule import (
    ModelFolder,
    ModelFrames,
    Visual,
    VisualRule,
    need_size,
    refuse,
    rule_of_folder,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Strips(VisualRule):
    """A made-up family: a token for each strip of `height` rows, positions two apart."""

    processors: ClassVar[tuple[str, ...]] = ("StripsProcessor",)

    height: int = 32
    num_frames: int = 3

    @classmethod
    def from_folder(cls, folder: ModelFolder) -> Strips:
        return cls(height=folder.image["strip_height"], num_frames=folder.video["num_frames"])

    def placeholders(self) -> Mapping[str, str]:
        return {"image": "<strip>", "video": "<clip>"}

    def count(self, kind: str, size: MediaSize) -> Visual:
        height, _ = need_size(size)
        strips = -(-height // self.height)
        if kind == "image":
            return Visual("[<strip>]", strips, grid=(1, strips, 1))
        if kind != "video":
            raise refuse("Strips", kind)
        depth = len(self.frames(size))
        return Visual("<clip>" * depth, strips * depth, num_runs=depth, grid=(depth, strips, 1))

    def frames(self, size: MediaSize) -> FrameNumbers:
        return spread_frames(size.num_frames, self.num_frames)

    def positions(self, row: TokenRow, seconds_per_grid: Sequence[float] = ()) -> NDArray[np.int64]:
        return 2 * np.arange(len(row.ids), dtype=np.int64)[None]


CLIP = MediaSize(width=50, height=100, num_frames=21, fps=10.0)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Register the family by its one line, and write a model folder of it."""
    rules: Any = plugins.VISUAL_RULES
    monkeypatch.setitem(rules, "strips", f"{__name__}:Strips")
    folder = tmp_path / "model"
    folder.mkdir()
    settings = {
        "processor_class": "StripsProcessor",
        "image_processor": {"strip_height": 20},
        "video_processor": {"num_frames": 5},
    }
    (folder / "processor_config.json").write_text(json.dumps(settings))
    return folder


def test_a_model_folder_finds_its_family(model: Path) -> None:
    rule = rule_of_folder(model)
    assert rule == Strips(height=20, num_frames=5)
    assert from_plain(to_plain(rule), VisualRule, trusted=True) == rule
    (model / "processor_config.json").write_text('{"processor_class": "StripsProcessor"}')
    with pytest.raises(ConfigError, match="cannot read the settings of its StripsProcessor"):
        rule_of_folder(model)


def test_measure_counts_by_it(model: Path, tmp_path: Path) -> None:
    transformers()
    tokenizer = make_tokenizer("<strip>", "<clip>")
    tokenizer.chat_template = chat_template(image="<strip>", video="<clip>")
    tokenizer.save_pretrained(model)
    segments = (
        Segment(kind="text", text="a cat", role="user"),
        Segment(kind="image", media="0.jpg", role="user"),
        Segment(kind="video", media="1.mp4", role="user"),
    )
    media = {"0.jpg": b"never looked at", "1.mp4": b"never looked at"}
    sizes = {"0.jpg": MediaSize(width=9, height=50), "1.mp4": CLIP}
    sample = Sample(key="k", document=Document(segments), media=media)
    folder = write_sample_folder(tmp_path / "samples", [[(sample, sizes)]])
    stage = Measure(input_dir=folder, rule=rule_of_folder(model), tokenizer=model)
    run_stage(stage, tmp_path / "lengths", workers=0)
    table = merge_lengths(tmp_path / "lengths")
    rendered = "<|im_start|>user\na cat[<strip>]" + "<clip>" * 5 + "<|im_end|>\n"
    hidden = (3 - 1) + (25 - 5)
    assert table.num_visual.tolist() == [3 + 25]
    assert table.num_tokens.tolist() == [len(tokenizer(rendered)["input_ids"]) + hidden]
    assert table.exact


def test_the_frame_sampler_takes_its_frames(model: Path) -> None:
    video = steady_table(21, fps=10)
    times = ModelFrames(rule=rule_of_folder(model)).times(video)
    assert video.numbers_at(times).tolist() == [0, 5, 10, 15, 20]


def test_packs_have_its_positions(model: Path) -> None:
    span = MediaSpan(name="0.jpg", kind="image", position=1, num_tokens=3)
    row = TokenRow(key="k", ids=np.arange(5), media=(span,))
    pack = build_pack([row, row], BuildSpec(positions=rule_of_folder(model), alignment=2))
    assert pack.position_ids.tolist() == [0, 2, 4, 6, 8, 9] * 2
    assert build_pack([], BuildSpec(positions=Strips(), size=4)).position_ids.shape == (4,)


def test_a_family_without_videos_refuses_them() -> None:
    class Plain(Strips):
        frames = VisualRule.frames

    with pytest.raises(SampleError, match="Plain takes no video"):
        ModelFrames(rule=Plain()).times(steady_table(9))
