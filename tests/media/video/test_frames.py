from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numbered_video import numbered_clip, read_number
from web_server import serving

from shardmill.errors import SampleError
from shardmill.media.video import file as videofile
from shardmill.media.video.file import BlobPart
from shardmill.media.video.frames import read_frames
from shardmill.media.video.samplers import Keyframes, Uniform, WholeVideo
from shardmill.storage.blob import LocalBlob


def numbers(video: object, sampler: object, **options: object) -> list[int]:
    """Return what the frames show; their own numbers must agree."""
    frames = read_frames(video, sampler, **options)  # type: ignore[arg-type]
    assert [frame.time_s for frame in frames] == sorted(frame.time_s for frame in frames)
    return [read_number(frame.pixels) for frame in frames]


def test_bytes_paths_and_parts_of_blobs_read_alike(tmp_path: Path) -> None:
    content = numbered_clip()
    (tmp_path / "clip.mp4").write_bytes(content)
    (tmp_path / "clip.tar").write_bytes(b"x" * 777 + content + b"y" * 999)
    blob = LocalBlob(str(tmp_path / "clip.tar"))
    found = [
        numbers(video, Uniform(count=12))
        for video in (
            content,
            memoryview(content),
            tmp_path / "clip.mp4",
            str(tmp_path / "clip.mp4"),
            BlobPart(blob, 777, len(content)),
        )
    ]
    assert found == [[2, 7, 12, 17, 22, 27, 32, 37, 42, 47, 52, 57]] * 5
    blob.close()


def test_every_frame_is_itself_beyond_the_ninth_and_to_the_last() -> None:
    assert numbers(numbered_clip(), WholeVideo()) == list(range(60))


def test_a_clip_of_a_video_keeps_the_times_of_the_video() -> None:
    frames = read_frames(numbered_clip(), Uniform(count=3), clip=(1.0, 1.6))
    assert [read_number(frame.pixels) for frame in frames] == [27, 32, 37]
    assert [frame.number for frame in frames] == [27, 32, 37]
    assert [frame.time_s for frame in frames] == pytest.approx([1.08, 1.28, 1.48])


def test_frames_can_be_scaled() -> None:
    frames = read_frames(numbered_clip(), Uniform(count=2), long_side=64)
    assert [frame.pixels.shape for frame in frames] == [(48, 64, 3)] * 2


def test_keyframes_are_those_of_the_encoder() -> None:
    fixed = (("bf", "0"), ("sc_threshold", "0"))
    found = numbers(numbered_clip(100, options=fixed), Keyframes(i_frames=6, p_frames=0))
    assert found == [0, 20, 40, 60, 80, 99]


FUZZED = {
    "mp4": {},
    "mkv": {"format": "matroska"},
    "ts": {"format": "mpegts"},
    "flv": {"format": "flv"},
    "avi": {"format": "avi", "codec": "mpeg4", "options": (("bf", "2"),)},
    "gif": {"format": "gif", "codec": "gif", "pix_fmt": "rgb8", "options": ()},
}


@given(
    st.sampled_from(sorted(FUZZED)),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), max_size=20),
    st.floats(0, 1),
    st.binary(max_size=20),
)
@settings(max_examples=150)
def test_any_damage_gives_frames_or_a_reject(
    name: str, noise: list[tuple[float, int]], cut: float, more: bytes
) -> None:
    content = bytearray(numbered_clip(20, **FUZZED[name]))  # type: ignore[arg-type]
    for place, value in noise:
        content[int(place * (len(content) - 1))] = value
    at = int(cut * len(content))
    content[at : at + len(more) // 2] = more
    with suppress(SampleError):
        read_frames(bytes(content), Uniform(count=4))


def test_titles_in_another_alphabet_do_no_harm() -> None:
    content = numbered_clip(format="matroska")
    assert content.count(b"Lavf") > 0
    assert numbers(content.replace(b"Lavf", b"\xff\xfe\xe2a"), Uniform(count=2)) == [15, 45]


def test_what_is_no_video_is_rejected() -> None:
    with pytest.raises(SampleError, match="not a video"):
        read_frames(b"hello" * 100, Uniform())


def test_a_video_behind_a_url_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    content = numbered_clip()
    with serving({"clip.mp4": content}) as url:
        assert numbers(f"{url}/clip.mp4", Uniform(count=3)) == [10, 30, 50]
        monkeypatch.setattr(videofile, "MAX_FETCHED_BYTES", 1000)  # then piece by piece
        assert numbers(f"{url}/clip.mp4", Uniform(count=3)) == [10, 30, 50]
