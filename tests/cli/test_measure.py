from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hf_processors import chat_template, make_tokenizer
from sample_folder import write_sample_folder

from shardmill.cli.main import cli
from shardmill.errors import ConfigError
from shardmill.model.sample import Document, MediaSize, Sample, Segment
from shardmill.shards.plans import open_lengths

MARKS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
CHAT = Document(
    (
        Segment(kind="image", media="jpg", role="user"),
        Segment(kind="text", text="a cat", role="assistant", turn=1),
    )
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return a model folder: tokenizer, chat template, settings of the processor."""
    start, end, image, _ = MARKS
    tokenizer = make_tokenizer(*MARKS)
    tokenizer.chat_template = chat_template(image=start + image + end)
    folder = tmp_path / "model"
    tokenizer.save_pretrained(folder)
    config = {"processor_class": "Qwen2_5_VLProcessor", "min_pixels": 3136, "max_pixels": 12845056}
    (folder / "preprocessor_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    sample = Sample(key="k", document=CHAT, media={"jpg": b"?"})
    size = MediaSize(width=280, height=560)
    return write_sample_folder(tmp_path / "in", [[(sample, {"jpg": size})]])


def run(*words: object) -> Any:
    return CliRunner().invoke(cli, [str(word) for word in words], catch_exceptions=False)


def test_a_model_folder_says_everything(shards: Path, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = run("measure", shards, out, "--model", model, "--workers", 0)
    assert done.exit_code == 0, done.output
    assert "exact" in done.output
    table = open_lengths(out / "lengths.bin")
    assert table.num_visual.tolist() == [200]
    named = run("measure", shards, tmp_path / "b", "--model", "qwen2.5-vl", "--tokenizer", model)
    assert named.exit_code == 0, named.output
    assert open_lengths(tmp_path / "b" / "lengths.bin").digest == table.digest


def test_settings_of_a_rule_can_be_given(shards: Path, model: Path, tmp_path: Path) -> None:
    rule = 'qwen2.5-vl,images={"max_pixels": 39200}'
    out = tmp_path / "out"
    done = run("measure", shards, out, "--model", rule, "--tokenizer", model, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["complete"]
    assert open_lengths(out / "lengths.bin").num_visual.tolist() == [50]


def test_estimates_need_no_tokenizer_but_must_be_asked_for(shards: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="guess lengths by --estimate"):
        run("measure", shards, tmp_path / "out", "--model", "qwen2.5-vl")
    done = run("measure", shards, tmp_path / "out", "--model", "qwen2.5-vl", "--estimate")
    assert done.exit_code == 0, done.output
    assert "estimates" in done.output
    assert not open_lengths(tmp_path / "out" / "lengths.bin").exact
