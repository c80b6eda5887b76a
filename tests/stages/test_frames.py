from __future__ import annotations

import json
import os
import signal
import tarfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import webdataset
from drivers import snapshot, start_driver
from make_media import image
from numbered_video import numbered_clip, read_image, with_duration
from sample_folder import write_sample_folder

from shardmill.errors import ConfigError
from shardmill.media.frames import ImageFormat
from shardmill.media.header import probe
from shardmill.media.samplers import (
    AllFrames,
    Explicit,
    Fps,
    Keyframes,
    NearestKeyframes,
    Scenes,
    Uniform,
    VideoTable,
    WholeVideo,
)
from shardmill.model.codec import digest, from_plain, to_plain
from shardmill.model.manifest import Manifest
from shardmill.model.sample import Document, MediaSize, Sample, Segment
from shardmill.running.lock import LockTiming
from shardmill.running.runner import run_stage
from shardmill.shards.samples import open_samples
from shardmill.stages.frames import SampleFrames

FRONT = (("movflags", "faststart"),)


def video(key: str, content: bytes, *texts: str, **segment: Any) -> Sample:
    """Return a sample of a video and the texts that follow it."""
    said = tuple(Segment(kind="text", text=text) for text in texts)
    shown = Segment(kind="video", media="mp4", **segment)
    return Sample(key=key, document=Document((shown, *said)), media={"mp4": content})


def folder_of(path: Path, *shards: Sequence[Sample]) -> Path:
    return write_sample_folder(
        path, [[(sample, sizes_of(sample)) for sample in shard] for shard in shards]
    )


def sizes_of(sample: Sample) -> dict[str, MediaSize]:
    kinds = {segment.media: segment.kind for segment in sample.document.media()}
    return {n: probe("image", c).size for n, c in sample.media.items() if kinds[n] == "image"}


def run(stage: SampleFrames, out: Path, max_skip_rate: float = 0.0) -> Manifest:
    report = run_stage(stage, out, workers=0, max_skip_rate=max_skip_rate)
    assert report.manifest is not None, report
    return report.manifest


def framed(tmp_path: Path, sample: Sample, sampler: Any, **fields: Any) -> Sample:
    """Return what becomes of one sample."""
    folder = folder_of(tmp_path / "in", [sample])
    run(SampleFrames(input_dir=folder, sampler=sampler, **fields), tmp_path / "out")
    return open_samples(tmp_path / "out")[0]


def shown(sample: Sample) -> list[int]:
    return [read_image(sample.media[s.media]) for s in sample.document.media("image")]


@dataclass(frozen=True, slots=True)
class EveryTenth:
    """A sampler of a user's own."""

    def times(self, video: VideoTable) -> Any:
        return video.times_s[::10]


SAMPLERS = {
    "uniform": (Uniform(count=12), [2, 7, 12, 17, 22, 27, 32, 37, 42, 47, 52, 57]),
    "all": (AllFrames(), list(range(60))),
    "fps": (Fps(fps=5.0), list(range(0, 60, 5))),
    "numbers": (Explicit(numbers=(0, 9, 10, 11, -1)), [0, 9, 10, 11, 59]),
    "nearest": (NearestKeyframes(count=3), [0, 20, 40]),
    "own": (EveryTenth(), [0, 10, 20, 30, 40, 50]),
    "scenes": (Scenes(threshold=0.9), [0]),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_video_becomes_the_frames_that_its_sampler_picks(tmp_path: Path, name: str) -> None:
    sampler, expected = SAMPLERS[name]
    sample = framed(tmp_path, video("k", numbered_clip(), "a caption"), sampler)
    assert shown(sample) == expected
    names = [segment.media for segment in sample.document.media()]
    assert names == [f"{number}.jpg" for number in range(len(expected))]
    times = [segment.time_s for segment in sample.document.media()]
    assert times == [(pytest.approx(n / 25), pytest.approx(n / 25)) for n in expected]
    assert sample.document.text == "a caption"
    assert [frame["number"] for frame in sample.extra["frames"]] == expected


def test_key_frames_have_their_type_and_their_place_on_the_scale(tmp_path: Path) -> None:
    sampler = Keyframes(i_frames=4, p_frames=12)
    sample = framed(tmp_path, video("k", numbered_clip(), "said"), sampler, mark="<{type}>#{at}")
    numbers, about = shown(sample), sample.extra["frames"]
    assert numbers == [frame["number"] for frame in about] == sorted(numbers)
    assert [n for n, frame in zip(numbers, about) if frame["type"] == "I"] == [0, 20, 40]
    assert [frame["at"] for frame in about] == [round(1000 * n / 59) for n in numbers]
    assert (numbers[-1], about[-1]["at"], len(numbers)) == (59, 1000, 16)
    texts = [s.text for s in sample.document.segments if s.kind == "text"]
    assert texts == [f"<{f['type']}>#{f['at']}" for f in about] + ["said"]


def test_a_row_says_which_clip_or_which_frames_are_meant(tmp_path: Path) -> None:
    clip = video("k", numbered_clip(), "text", time_s=(1.0, 1.4))
    sample = framed(tmp_path / "clip", clip, AllFrames(), clip_s=(0.0, 0.1))
    assert shown(sample) == list(range(25, 35))
    sample = framed(tmp_path / "all", video("k", numbered_clip()), AllFrames(), clip_s=(2.0, 2.2))
    assert shown(sample) == [50, 51, 52, 53, 54]
    told = Sample(
        key="k",
        document=Document((Segment(kind="video", media="mp4"),)),
        media={"mp4": numbered_clip()},
        extra={"media_info": {"mp4": {"picked": [59, 10, 9]}}, "other": 1},
    )
    sample = framed(tmp_path / "told", told, Explicit(field="picked"))
    assert shown(sample) == [59, 10, 9]
    assert sample.extra["other"] == 1


def test_a_conversation_and_other_media_stay(tmp_path: Path) -> None:
    segments = (
        Segment(kind="text", text="Look:", role="system"),
        Segment(kind="image", media="0.jpg", role="user", turn=1),
        Segment(kind="video", media="1.mp4", role="user", turn=1),
        Segment(kind="text", text="What is it?", role="user", turn=1, time_s=(1.0, 2.0)),
        Segment(kind="text", text="A clip.", role="assistant", turn=2),
        Segment(kind="video", media="2.mp4", role="user", turn=3),
        Segment(kind="image", media="0.jpg", role="user", turn=3),
    )
    first, second = numbered_clip(), numbered_clip(30)
    media = {"0.jpg": image(), "1.mp4": first, "2.mp4": second}
    sample = framed(
        tmp_path, Sample(key="k", document=Document(segments), media=media), Uniform(count=2)
    )
    found = [(s.kind, s.media or s.text, s.role, s.turn) for s in sample.document.segments]
    assert found == [
        ("text", "Look:", "system", 0),
        ("image", "0.jpg", "user", 1),
        ("image", "1.jpg", "user", 1),
        ("image", "2.jpg", "user", 1),
        ("text", "What is it?", "user", 1),
        ("text", "A clip.", "assistant", 2),
        ("image", "3.jpg", "user", 3),
        ("image", "4.jpg", "user", 3),
        ("image", "0.jpg", "user", 3),
    ]
    assert sample.document.segments[4].time_s == (1.0, 2.0)
    assert bytes(sample.media["0.jpg"]) == image()
    assert [read_image(sample.media[f"{n}.jpg"]) for n in (1, 2, 3, 4)] == [15, 45, 7, 22]


def test_texts_with_times_are_interleaved(tmp_path: Path) -> None:
    said = [("zero", 0.0), ("one", 1.0), ("two", 2.0)]
    texts = [Segment(kind="text", text=text, time_s=(at, at + 1)) for text, at in said]
    document = Document((Segment(kind="video", media="mp4"), *texts))
    sample = Sample(key="k", document=document, media={"mp4": numbered_clip()})
    found = framed(tmp_path, sample, Explicit(times_s=(0.4, 1.0, 1.4, 2.2)), interleave=True)
    order = [s.text or read_image(found.media[s.media]) for s in found.document.segments]
    assert order == ["zero", 10, 25, "one", 35, "two", 55]


def test_lists_of_frames_are_thinned_without_a_new_encoding(tmp_path: Path) -> None:
    images = {f"{n}.jpg": image("JPEG", 40, 30, n) for n in range(12)}
    segments = [Segment(kind="image", media=name) for name in images]
    document = Document((*segments, Segment(kind="text", text="merlin")))
    sample = Sample(key="k", document=document, media=images)
    found = framed(tmp_path / "a", sample, Uniform(count=3), list_fps=2.0)
    assert [bytes(c) for c in found.media.values()] == [images[f"{n}.jpg"] for n in (2, 6, 10)]
    assert [s.time_s for s in found.document.media()] == [(1.0, 1.0), (3.0, 3.0), (5.0, 5.0)]
    assert [frame["number"] for frame in found.extra["frames"]] == [2, 6, 10]
    assert found.document.text == "merlin"
    untouched = framed(tmp_path / "b", sample, Uniform(count=3))
    assert (len(untouched.media), untouched.document) == (12, document)


BAD = {
    "empty": (b"", "empty video"),
    "junk": (b"no video at all " * 20, "not a video"),
    "cut": (numbered_clip(container_options=FRONT)[:3000], "truncated video"),
    "no index": (numbered_clip()[:3000], "not a video"),
    "unknown": (numbered_clip().replace(b"avc1", b"zzzz"), "unknown codec"),
    "duration": (with_duration(numbered_clip(), 0.1), "wrong duration"),
    "one": (numbered_clip(1), "too few frames"),
}


def test_bad_videos_are_rejected_by_reason_and_the_rest_is_kept(tmp_path: Path) -> None:
    bad = [video(name.replace(" ", "-"), content, "text") for name, (content, _) in BAD.items()]
    outside = video("outside", numbered_clip(), "text", time_s=(90.0, 95.0))
    good = [video(f"good{n}", numbered_clip(), "text") for n in range(2)]
    folder = folder_of(tmp_path / "in", [good[0], *bad, outside, good[1]])
    stage = SampleFrames(input_dir=folder, sampler=Uniform(count=4))
    manifest = run(stage, tmp_path / "out", max_skip_rate=1.0)
    assert manifest.num_kept == 2
    lines = (tmp_path / "out" / "rejects" / "000000.jsonl").read_text().splitlines()
    found = {line["key"]: line["reason"] for line in map(json.loads, lines)}
    expected = {name.replace(" ", "-"): reason for name, (_, reason) in BAD.items()}
    assert found == {**expected, "outside": "clip outside the video"}
    assert all(line["detail"].startswith("mp4: ") for line in map(json.loads, lines))
    assert [shown(s) for s in open_samples(tmp_path / "out")] == [[7, 22, 37, 52]] * 2


def test_whole_videos_stay_as_they_are_if_they_are_whole(tmp_path: Path) -> None:
    cut = BAD["cut"][0]
    folder = folder_of(tmp_path / "in", [video("a", numbered_clip(), "x"), video("b", cut, "y")])
    stage = SampleFrames(input_dir=folder, sampler=WholeVideo())
    assert run(stage, tmp_path / "out", 1.0).skipped == {"truncated video": 1}
    (kept,) = open_samples(tmp_path / "out")
    assert bytes(kept.media["mp4"]) == numbered_clip()
    unchecked = SampleFrames(input_dir=folder, sampler=WholeVideo(check=False), layout="dotted")
    run(unchecked, tmp_path / "same")
    for name in ("000000.tar", "000000.idx"):
        old, new = folder / "shards" / name, tmp_path / "same" / "shards" / name
        assert old.read_bytes() == new.read_bytes()


def test_stock_tools_read_the_frames_in_their_order(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "in", [video("k", numbered_clip(), "text")])
    sampler = Uniform(count=12)
    for layout in ("dashed", "dotted"):
        stage = SampleFrames(input_dir=folder, sampler=sampler, layout=layout)  # type: ignore[arg-type]
        run(stage, tmp_path / layout)
    with tarfile.open(tmp_path / "dashed" / "shards" / "000000.tar") as tar:
        names = tar.getnames()
        numbers = [read_image(tar.extractfile(n).read()) for n in names[1:]]  # type: ignore[union-attr]
    assert names == ["k.json", *(f"k-{n}.jpg" for n in range(12))]
    assert numbers == SAMPLERS["uniform"][1]
    url = str(tmp_path / "dotted" / "shards" / "000000.tar")
    (sample,) = webdataset.WebDataset(url, shardshuffle=False)
    assert [read_image(sample[f"{n}.jpg"]) for n in range(12)] == numbers


def test_sizes_of_the_frames_are_in_the_index(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "in", [video("k", numbered_clip())])
    images = ImageFormat(format="webp", long_side=64)
    run(SampleFrames(input_dir=folder, sampler=Uniform(count=2), images=images), tmp_path / "o")
    samples = open_samples(tmp_path / "o")
    index = samples.shard(0).index
    assert index.column("width").tolist() == [0, 64, 64]
    assert index.column("height").tolist() == [0, 48, 48]
    assert list(samples[0].media) == ["0.webp", "1.webp"]


def test_too_many_frames_are_not_gathered(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "in", [video("k", numbered_clip())])
    stage = SampleFrames(input_dir=folder, sampler=AllFrames(), max_frames=59)
    assert run(stage, tmp_path / "out", 1.0).skipped == {"too many frames": 1}


def test_a_killed_run_goes_on_and_ends_with_the_same_bytes(tmp_path: Path) -> None:
    clips = [video(f"k{n}", numbered_clip(40 + n), f"clip {n}") for n in range(12)]
    folder = folder_of(tmp_path / "in", *(clips[n : n + 2] for n in range(0, 12, 2)))
    stage, killed = SampleFrames(input_dir=folder, sampler=Uniform()), tmp_path / "killed"
    driver = start_driver(stage, killed, workers=1, beat_s=0.2, stale_s=1.0)
    while driver.poll() is None and not list(killed.glob("receipts/*.json")):
        time.sleep(0.01)
    with suppress(ProcessLookupError):
        os.killpg(driver.pid, signal.SIGKILL)
    driver.communicate()
    report = run_stage(stage, killed, workers=0, timing=LockTiming(beat_s=0.2, stale_s=1.0))
    assert report.complete
    run_stage(stage, tmp_path / "whole", workers=0)
    assert snapshot(killed) == snapshot(tmp_path / "whole")


def test_the_spec_survives_its_plain_form(tmp_path: Path) -> None:
    stage = SampleFrames(input_dir=tmp_path, sampler=Keyframes(), clip_s=(1.0, 2.0), mark="{at}")
    assert from_plain(to_plain(stage)) == stage
    other = SampleFrames(input_dir=tmp_path, sampler=Keyframes(i_frames=9), clip_s=(1.0, 2.0))
    assert digest(other) != digest(stage)


@pytest.mark.parametrize(
    "fields",
    [
        {"mark": "{when}"},
        {"mark": "{"},
        {"time_scale": 0},
        {"max_frames": 0},
        {"clip_s": (2.0, 1.0)},
        {"clip_s": (-1.0, 1.0)},
        {"list_fps": 0.0},
        {"list_fps": 1.0, "sampler": Scenes()},
        {"limit": -1},
    ],
)
def test_settings_that_cannot_be_are_refused(tmp_path: Path, fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        SampleFrames(**{"input_dir": tmp_path, "sampler": Uniform(), **fields})


def test_what_was_corrected_is_counted_and_kept_with_the_sample(tmp_path: Path) -> None:
    content = 2 * numbered_clip(40, format="mpegts")
    folder = folder_of(tmp_path / "in", [video("joined", content), video("a", numbered_clip())])
    for name, sampler in (("frames", Uniform(count=4)), ("whole", WholeVideo())):
        manifest = run(SampleFrames(input_dir=folder, sampler=sampler), tmp_path / name)
        assert manifest.stats["corrected videos|segments were joined"] == 1
    joined, other = open_samples(tmp_path / "frames")
    assert joined.extra["corrected"]["mp4"][0].endswith("1 time corrected")
    assert shown(joined) == [10, 30, 10, 30]
    assert "corrected" not in other.extra
