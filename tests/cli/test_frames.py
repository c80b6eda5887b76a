"""`shardmill frames` as a person types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from numbered_video import numbered_clip, read_image
from sample_folder import write_sample_folder

from shardmill.cli.verbs import frames
from shardmill.errors import ConfigError, StaleError
from shardmill.model.sample import Document, Sample, Segment
from shardmill.shards.samples import open_samples


@pytest.fixture
def clips(tmp_path: Path) -> Path:
    segments = (Segment(kind="video", media="mp4"), Segment(kind="text", text="a clip"))
    rows = [
        (Sample(key=f"k{n}", document=Document(segments), media={"mp4": numbered_clip(50 + n)}), {})
        for n in range(3)
    ]
    return write_sample_folder(tmp_path / "clips", [rows])


def run(*arguments: object) -> str:
    words = [*map(str, arguments), "--workers", "0"]
    ran = CliRunner().invoke(frames, words, catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    return ran.stdout


def test_frames_are_written_and_a_second_run_does_nothing(clips: Path, tmp_path: Path) -> None:
    command = (clips, tmp_path / "out", "--sampler", "uniform,count=5", "--long-side", 64, "--json")
    assert json.loads(run(*command))["run"]["num_done"] == 1
    assert json.loads(run(*command))["run"]["num_done"] == 0
    sample = open_samples(tmp_path / "out")[0]
    shown = [read_image(content) for content in sample.media.values()]
    assert shown == [5, 15, 25, 35, 45]
    with pytest.raises(StaleError):
        run(clips, tmp_path / "out", "--sampler", "uniform,count=6")


def test_flags_become_fields(clips: Path, tmp_path: Path) -> None:
    run(
        clips, tmp_path / "out", "--sampler", "frames,numbers=[0,-1]", "--format", "webp",
        "--quality", 50, "--mark", "#{at}", "--time-scale", 100, "--clip", "0,1.0",
        "--layout", "dotted", "--limit", 2,
    )  # fmt: skip
    samples = open_samples(tmp_path / "out")
    assert len(samples) == 2
    assert samples[0].document.text == "#0\n#100\na clip"
    assert [read_image(content) for content in samples[0].media.values()] == [0, 24]


def test_what_cannot_be_is_one_message(clips: Path, tmp_path: Path) -> None:
    for flags in (
        ("--sampler", "unifrom"),
        ("--sampler", "uniform,n=3"),
        ("--sampler", "frames"),
        ("--clip", "1"),
        ("--clip", "1,2,3"),
        ("--clip", "a,b"),
        ("--clip", "2,1"),
        ("--mark", "{when}"),
    ):
        with pytest.raises(ConfigError):
            run(clips, tmp_path / "out", *flags)
        assert not (tmp_path / "out" / "shards").exists()


def test_what_was_corrected_is_printed(tmp_path: Path) -> None:
    document = Document((Segment(kind="video", media="ts"),))
    joined = 2 * numbered_clip(40, format="mpegts")
    rows = [(Sample(key="k", document=document, media={"ts": joined}), {})]
    clips = write_sample_folder(tmp_path / "clips", [rows])
    printed = run(clips, tmp_path / "out", "--sampler", "uniform,count=4")
    assert "corrected  1 x segments were joined" in printed
