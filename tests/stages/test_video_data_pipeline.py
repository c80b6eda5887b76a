"""Video-Data-Pipeline, held against its behaviour as it is described, written here once more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numbered_video import numbered_clip, read_image
from sample_folder import write_sample_folder
from video_tables import steady_table

import shardmill as sm
from shardmill.media.samplers import Keyframes, VideoTable
from shardmill.model.codec import build, parse_plugin
from shardmill.model.sample import Document, MediaSize, Sample, Segment
from shardmill.plugins import FRAME_SAMPLERS
from shardmill.stages.frames import PRESETS


def uniform_frames(num_frames: int, fps: float, count: int = 16) -> list[int]:
    """Return the middles of segments between the first frame and the last, as numbers."""
    first, last = max(0, round(-1e5 * fps)), min(round(1e5 * fps), num_frames - 1)
    size = (last - first) / count
    return [int(first + size / 2 + np.round(size * i)) for i in range(count)]


def sample_evenly(frames: list[int], count: int) -> list[int]:
    if len(frames) <= count:
        return frames
    step = int((len(frames) - 1) / (count - 1))
    return [frames[i * step] for i in range(count)]


def key_frames(types: str, i_frames: int = 8, total: int = 24) -> list[int]:
    """Return the frames of a video whose frames have these types: I and the last, then others."""
    last = len(types) - 1
    i_set = sorted({n for n, kind in enumerate(types) if kind == "I"} | {last})
    others = [n for n, kind in enumerate(types) if kind != "I" and n != last]
    chosen = sample_evenly(i_set, i_frames)
    return sorted(chosen + sample_evenly(others, total - len(chosen)))


def marks(frames: list[int], num_frames: int, scale: int = 1000) -> list[int]:
    return [int(n / (num_frames - 1) * scale) for n in frames]


def of_preset(name: str) -> Any:
    sampler = PRESETS[name]["sampler"]
    return build(FRAME_SAMPLERS, parse_plugin(sampler), where="sampler", trusted=True)


def chosen(sampler: Any, video: VideoTable) -> list[int]:
    return video.numbers_at(sampler.times(video)).tolist()


@given(st.integers(1, 3000), st.sampled_from([1, 10, 15, 24, 25, 30, 60]))
def test_uniform_frames_have_the_numbers_of_the_original(num: int, fps: int) -> None:
    video = steady_table(num, fps=fps)
    assert chosen(of_preset("vdp-un"), video) == uniform_frames(num, fps)


@given(st.integers(1, 400), st.integers(1, 40))
def test_uniform_frames_of_any_count(num: int, count: int) -> None:
    sampler = build(
        FRAME_SAMPLERS,
        {"kind": "uniform", "count": count, "by": "number", "repeat": True},
        where="sampler",
        trusted=True,
    )
    assert chosen(sampler, steady_table(num)) == uniform_frames(num, 10, count)


@given(st.integers(2, 600), st.sets(st.integers(1, 599)), st.integers(2, 12), st.integers(13, 40))
def test_key_frames_have_the_numbers_and_marks_of_the_original(
    num: int, keys: set[int], i_frames: int, total: int
) -> None:
    video = steady_table(num, keys={0, *keys})
    types = "".join("I" if n in keys or n == 0 else "PBB"[n % 3] for n in range(num))
    sampler = Keyframes(i_frames=i_frames, p_frames=total - i_frames, spacing="step")
    found = chosen(sampler, video)
    assert found == key_frames(types, i_frames, total)
    assert video.positions(1000, "number")[found].tolist() == marks(found, num)


# Scenes that change fast make I frames from which nothing can be decoded alone.
CUTS = (("bf", "2"), ("x264-params", "keyint=40:min-keyint=40:scenecut=200"))


def types_of(content: bytes) -> str:
    import io

    import av

    names = {int(kind): kind.name for kind in av.video.frame.PictureType}
    with av.open(io.BytesIO(content)) as container:
        return "".join(names[int(frame.pict_type)] for frame in container.decode(video=0))


@pytest.fixture
def clips(tmp_path: Path) -> Path:
    """A folder of clips of 7, 60 and 130 frames that show their numbers."""
    samples = []
    for number, num_frames in enumerate((7, 60, 130)):
        segments = (
            Segment(kind="video", media="mp4"),
            Segment(kind="text", text=f"a clip of {num_frames} frames"),
        )
        content = numbered_clip(num_frames, group=40, options=CUTS)
        sample = Sample(key=f"{number}", document=Document(segments), media={"mp4": content})
        samples.append((sample, {"mp4": MediaSize(width=128, height=96, num_frames=num_frames)}))
    return write_sample_folder(tmp_path / "clips", [samples])


def test_frames_and_marks_of_the_presets_are_those_of_the_original(
    clips: Path, tmp_path: Path
) -> None:
    un = sm.frames(clips, tmp_path / "un", preset="vdp-un", workers=0)
    kf = sm.frames(clips, tmp_path / "kf", preset="vdp-kf", workers=0)
    for number, num_frames in enumerate((7, 60, 130)):
        types = types_of(numbered_clip(num_frames, group=40, options=CUTS))
        shown = [read_image(image) for image in un[number].media.values()]
        assert shown == uniform_frames(num_frames, 25)
        expected = key_frames(types)
        assert [read_image(image) for image in kf[number].media.values()] == expected
        assert len(expected) == min(24, num_frames)
        texts = [s.text for s in kf[number].document.segments if s.kind == "text"][:-1]
        assert texts == [f"#{at}" for at in marks(expected, num_frames)]
    # Not all of the I frames of this clip are key frames of its container.
    assert types.count("I") > 4


def test_what_is_said_comes_before_the_preset(clips: Path, tmp_path: Path) -> None:
    made = sm.frames(
        clips, tmp_path / "un", preset="vdp-kf", sampler="uniform,count=3", mark="", workers=0
    )
    segments = made[1].document.segments
    assert [segment.kind for segment in segments] == ["image"] * 3 + ["text"]


def test_a_clip_that_is_too_short_says_how_to_repeat_frames(clips: Path, tmp_path: Path) -> None:
    made = sm.frames(clips, tmp_path / "un", sampler="uniform", workers=0, max_skip_rate=0.5)
    assert len(made) == 2
    assert "repeat=true" in next((tmp_path / "un" / "rejects").iterdir()).read_text()
    made = sm.frames(clips, tmp_path / "all", sampler="uniform,repeat=true", workers=0)
    assert [read_image(image) for image in made[0].media.values()][::5] == [0, 2, 4, 6]
