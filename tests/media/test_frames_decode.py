from __future__ import annotations

import io
from typing import Any

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numbered_video import numbered_clip, read_number
from video_tables import steady_table

from shardmill.errors import SampleError
from shardmill.media import frames as decodeframes
from shardmill.media.containers import broken_as
from shardmill.media.frames import (
    FrameConverter,
    _plan,
    changes_of,
    count_frames,
    decode_frames,
    measure_changes,
    read_frames,
)
from shardmill.media.samplers import AllFrames, Scenes
from shardmill.media.video import open_video, probe_video

OPEN = (("bf", "3"), ("x264-params", "open-gop=1:keyint=12:min-keyint=12"))


QUIET = (("x265-params", "log-level=none:keyint=20"),)


VP9 = (("cpu-used", "8"), ("deadline", "realtime"))


VP8 = (("cpu-used", "8"),)


CLIPS: dict[str, dict[str, Any]] = {
    "h264": {},
    "h264 mkv": {"format": "matroska"},
    "h264 ts": {"format": "mpegts"},
    "h264 fragments": {"container_options": (("movflags", "frag_keyframe+empty_moov"),)},
    "h264 open groups": {"options": OPEN},
    "h264 open groups ts": {"options": OPEN, "format": "mpegts"},
    "h264 10 bits": {"pix_fmt": "yuv420p10le"},
    "h264 odd size": {"pix_fmt": "yuv444p", "size": (127, 97)},
    "h264 variable rate": {"times": tuple(40 * n + 17 * (n % 3) for n in range(60))},
    "hevc": {"codec": "libx265", "options": QUIET},
    "hevc 10 bits": {"codec": "libx265", "options": QUIET, "pix_fmt": "yuv420p10le"},
    "vp9": {"codec": "libvpx-vp9", "format": "webm", "options": VP9},
    "vp8": {"codec": "libvpx", "format": "webm", "options": VP8},
    "h264 avi": {"format": "avi"},
    "mpeg4 avi": {"codec": "mpeg4", "format": "avi", "options": (("bf", "2"),)},
    "mpeg2": {"codec": "mpeg2video", "format": "mpeg", "options": (("bf", "2"),)},
    "mjpeg": {"codec": "mjpeg", "format": "avi", "pix_fmt": "yuvj420p", "options": ()},
    "gif": {"codec": "gif", "format": "gif", "pix_fmt": "rgb8", "options": ()},
}


def shown(content: bytes, numbers: list[int], threads: int = 1) -> dict[int, int]:
    """Return what the frames with these numbers show."""
    converter = FrameConverter()
    with open_video(content, threads=threads) as video:
        frames = decode_frames(video, probe_video(video), np.array(numbers))
        return {number: read_number(converter.rgb(frame)) for number, frame in frames}


@pytest.mark.parametrize("name", CLIPS)
def test_each_frame_shows_its_number(name: str) -> None:
    content = numbered_clip(**CLIPS[name])
    for numbers in (list(range(60)), [0], [59], [9, 10, 11, 58, 59], list(range(3, 60, 7))):
        assert shown(content, numbers) == {number: number for number in numbers}


@pytest.mark.parametrize("name", ["h264", "h264 open groups ts", "mpeg4 avi"])
@given(st.sets(st.integers(0, 59), min_size=1))
@settings(max_examples=25)
def test_any_choice_of_frames_is_decoded(name: str, numbers: set[int]) -> None:
    content = numbered_clip(**CLIPS[name])
    assert shown(content, sorted(numbers)) == {number: number for number in numbers}


def test_several_threads_decode_the_same() -> None:
    assert shown(numbered_clip(), [5, 33, 59], threads=2) == {5: 5, 33: 33, 59: 59}


def test_passing_over_unreferenced_frames_leaves_the_pixels_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def pixels() -> list[np.ndarray]:
        converter = FrameConverter()
        with open_video(numbered_clip(options=OPEN)) as video:
            frames = decode_frames(video, probe_video(video), np.arange(2, 60, 5))
            return [converter.rgb(frame) for _, frame in frames]

    quick = pixels()
    monkeypatch.setattr(decodeframes, "KNOWS_UNREFERENCED", ())
    assert np.array_equal(quick, pixels())


def test_frames_of_a_group_share_a_pass_and_groups_that_none_needs_are_not_touched() -> None:
    content = numbered_clip(100, options=(("bf", "0"), ("sc_threshold", "0")))
    with open_video(content) as video:
        table = probe_video(video)
    passes = [
        (p.start, p.last, sorted(p.wanted.values())) for p in _plan(table, np.array([25, 30, 82]))
    ]
    assert passes == [(20, 30, [25, 30]), (80, 82, [82])]
    assert len(_plan(table, np.arange(100))) == 1


def test_only_what_is_needed_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    content = numbered_clip(100, options=(("bf", "0"), ("sc_threshold", "0")))
    with open_video(content) as video:
        table = probe_video(video)
        reader = decodeframes._Reader(video)
        packets = []
        read = reader._next
        monkeypatch.setattr(reader, "_next", lambda: packets.append(read()) or packets[-1])
        for one_pass, expected in zip(_plan(table, np.array([41, 83])), (41, 83)):
            assert [number for number, _ in reader.decode(one_pass)] == [expected]
    assert len(packets) == 2 + 4  # 40, 41 and 80 .. 83


def test_a_seek_that_lands_too_late_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    content = numbered_clip(100, options=(("bf", "0"), ("sc_threshold", "0")))
    with open_video(content) as video:
        table, reader = probe_video(video), decodeframes._Reader(video)
        seek, sought = reader._seek, []
        late = 3 * round(1 / video.stream.time_base)

        def lands_late(pts: int) -> None:
            sought.append(pts)
            seek(pts + late if pts > -late else pts)

        monkeypatch.setattr(reader, "_seek", lands_late)
        (one_pass,) = _plan(table, np.array([27]))
        assert [number for number, _ in reader.decode(one_pass)] == [27]
    assert len(sought) > 1


def test_a_file_that_cannot_seek_is_read_from_its_beginning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(reader: decodeframes._Reader, _: int) -> None:
        reader._packets = iter(())

    monkeypatch.setattr(decodeframes._Reader, "_seek", fails)
    assert shown(numbered_clip(format="matroska"), [5, 33, 50]) == {5: 5, 33: 33, 50: 50}


def test_damage_is_found() -> None:
    """Noise in the packets is either an error of the decoder or a mark on a frame."""
    content = numbered_clip(options=(("bf", "3"), ("crf", "10")))
    begin, end = content.index(b"mdat") + 800, content.index(b"moov") - 4
    rng, outcomes = np.random.default_rng(1), set()
    for _ in range(40):
        noisy = bytearray(content)
        for place in rng.integers(begin, end, 3):
            noisy[place] ^= int(rng.integers(1, 256))
        outcomes.add(_outcome(bytes(noisy)))
    assert any(words.startswith("broken video: Invalid data") for words in outcomes)
    assert any(words.endswith("is damaged") for words in outcomes)


@pytest.mark.parametrize("format", ["mp4", "avi"])
def test_what_is_predicted_from_a_damaged_frame_is_damaged(format: str) -> None:
    """Decoders mark the frame whose bytes are wrong, and none of those that show its blocks."""
    content = _with_a_damaged_first_frame(format)
    with pytest.raises(SampleError, match="frame 5 is damaged"):
        shown(content, [5])
    assert shown(content, [25]) == {25: 25}  # behind the next key frame


def _with_a_damaged_first_frame(format: str) -> bytes:
    content = numbered_clip(options=(("bf", "3"), ("crf", "10")), format=format)
    with open_video(content) as video:
        first = next(video.container.demux(video.stream))
    for place in range(first.pos + first.size // 2, first.pos + first.size, 7):
        noisy = bytearray(content)
        noisy[place] ^= 255
        if _outcome(bytes(noisy)) == "broken video: frame 0 is damaged":
            return bytes(noisy)
    raise AssertionError("no damage that a decoder marks")


def _outcome(content: bytes) -> str:
    converter = FrameConverter()
    try:
        with open_video(content) as video, broken_as("broken video"):
            for _, frame in decode_frames(video, probe_video(video), np.arange(0, 60, 6)):
                converter.rgb(frame)
    except SampleError as error:
        return str(error)
    return "read"


DIVX = {"codec": "mpeg4", "options": (("bf", "2"),)}


@pytest.mark.parametrize("clip", [{}, DIVX])
def test_the_nth_frame_that_comes_out_is_the_nth(clip: dict[str, object]) -> None:
    converter = FrameConverter()
    with open_video(numbered_clip(format="avi", **clip)) as video:  # type: ignore[arg-type]
        table = probe_video(video)
        for _ in range(2):  # from the beginning each time
            frames = count_frames(video, table, np.array([59, 3, 10]))
            found = [(number, read_number(converter.rgb(frame))) for number, frame in frames]
            assert found == [(3, 3), (10, 10), (59, 59)]


def test_a_clip_is_counted_from_the_beginning_of_its_video() -> None:
    frames = read_frames(numbered_clip(format="avi"), AllFrames(), clip=(1.0, 1.2))
    assert [read_number(frame.pixels) for frame in frames] == [25, 26, 27, 28, 29]
    assert [frame.number for frame in frames] == [25, 26, 27, 28, 29]


def test_a_frame_that_does_not_come_out_is_a_reject() -> None:
    with (
        open_video(numbered_clip(format="avi")) as video,
        pytest.raises(SampleError, match="frame 60 cannot be decoded"),
    ):
        list(count_frames(video, steady_table(61), np.array([5, 60])))


def clip_with_cuts() -> bytes:
    """Return 90 frames: a gradient that drifts, and cuts to others at 30 and 65."""
    file, x = io.BytesIO(), np.mgrid[0:96, 0:128].sum(axis=0)
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=30)
        stream.width, stream.height, stream.pix_fmt = 128, 96, "yuv420p"
        for number in range(90):
            base = 20 if number < 30 else 200 if number < 65 else 90
            grey = ((x + number) // 4 + base).clip(0, 255).astype(np.uint8)
            frame = av.VideoFrame.from_ndarray(np.repeat(grey[..., None], 3, 2), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return file.getvalue()


def test_cuts_stand_out() -> None:
    with open_video(clip_with_cuts()) as video:
        changes = measure_changes(video, probe_video(video))
    assert sorted(np.argsort(changes)[-2:].tolist()) == [30, 65]
    assert changes[[30, 65]].min() > 0.2
    assert np.delete(changes, [30, 65]).max() < 0.05


def test_scenes_of_a_video_and_of_a_clip() -> None:
    content = clip_with_cuts()
    assert [frame.number for frame in read_frames(content, Scenes())] == [0, 30, 65]
    in_clip = read_frames(content, Scenes(), clip=(1.5, 3.0))
    assert [frame.time_s for frame in in_clip] == pytest.approx([1.5, 65 / 30])


def test_what_moves_all_the_time_does_not_change() -> None:
    found = changes_of(np.array([0.0, 0.2, 0.2, 0.7, 0.2]))
    assert found == pytest.approx([0, 0.2, 0, 0.5, 0.2])
