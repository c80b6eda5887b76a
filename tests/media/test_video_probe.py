from __future__ import annotations

import io
import shutil
import subprocess
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from numbered_video import numbered_clip, read_number, shifted_clip, with_duration

from shardmill.errors import SampleError
from shardmill.media.frames import read_frames
from shardmill.media.samplers import AllFrames, VideoTable
from shardmill.media.video import (
    BlobPart,
    Packets,
    demux_packets,
    list_packets,
    open_video,
    probe_video,
)

FRONT = (("movflags", "faststart"),)


def probed(content: bytes) -> VideoTable:
    with open_video(content) as video:
        return probe_video(video)


def reason(content: bytes) -> str:
    with pytest.raises(SampleError) as caught:
        probed(content)
    return caught.value.reason


def decoded(content: bytes) -> list[Any]:
    """Return every frame as FFmpeg decodes them one after the other."""
    with av.open(io.BytesIO(content)) as container:
        return list(container.decode(container.streams.video[0]))


@pytest.mark.parametrize("format", ["mp4", "matroska", "mpegts", "flv"])
def test_demuxing_tells_what_decoding_would(format: str) -> None:
    content = numbered_clip(format=format)
    table, frames = probed(content), decoded(content)
    assert table.pts.tolist() == [frame.pts for frame in frames]
    assert table.is_key.tolist() == [bool(frame.key_frame) for frame in frames]
    types = {int(kind): kind.name for kind in av.video.frame.PictureType}
    assert [table.type_of(n) for n in range(60)] == [types[f.pict_type] for f in frames]
    assert table.times_s == pytest.approx(np.arange(60) / 25, abs=0.001)
    assert (table.fps, table.duration_s) == (
        pytest.approx(25, abs=0.02),
        pytest.approx(2.4, abs=2e-3),
    )


def test_times_of_a_variable_rate_are_those_of_the_frames() -> None:
    times = tuple(40 * n + 17 * (n % 3) + (900 if n > 30 else 0) for n in range(60))
    assert probed(numbered_clip(times=times)).times_s * 1000 == pytest.approx(times, abs=1)


@pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="ffmpeg is not installed")
def test_hidden_frames_of_vp8_are_not_counted(tmp_path: Path) -> None:
    (tmp_path / "clip.mp4").write_bytes(numbered_clip())
    vp8 = "-i clip.mp4 -c:v libvpx -auto-alt-ref 1 -lag-in-frames 16 -b:v 500k -pass"
    for number, out in (("1", "-f null -"), ("2", "clip.webm")):
        command = f"ffmpeg -v error -y {vp8} {number} {out}"
        subprocess.run(command.split(), check=True, cwd=tmp_path)
    content = (tmp_path / "clip.webm").read_bytes()
    with av.open(io.BytesIO(content)) as container:
        num_packets = sum(1 for packet in container.demux(video=0) if packet.size)
    assert num_packets > 60
    frames = read_frames(content, AllFrames())
    assert [read_number(frame.pixels) for frame in frames] == list(range(60))


def test_time_begins_with_the_first_frame() -> None:
    for seconds in (5, 3600):
        late = shifted_clip(numbered_clip(), seconds, format="mpegts")
        assert probed(late).times_s[[0, -1]] == pytest.approx([0, 2.36], abs=0.001)


def test_of_negative_timestamps_an_edit_list_shows_the_rest() -> None:
    table = probed(shifted_clip(numbered_clip(), -1.0))
    assert len(table) == 35
    assert table.times_s[[0, -1]] == pytest.approx([0, 1.36], abs=0.001)
    assert reason(numbered_clip(format="h264")) == "no frame times"


def test_a_file_that_was_cut_off_is_rejected() -> None:
    content = numbered_clip(container_options=FRONT)
    assert len(probed(content)) == 60
    for length in (len(content) - 1, len(content) * 2 // 3, content.index(b"mdat") + 8):
        assert reason(content[:length]) == "truncated video"


@pytest.mark.parametrize("format", ["gif", "matroska", "avi"])
def test_a_file_that_states_its_end_is_whole_up_to_the_last_byte(format: str) -> None:
    # FFmpeg makes a last frame of what is there of it, and says nothing.
    codec = {"gif": {"codec": "gif", "pix_fmt": "rgb8"}, "avi": {"codec": "mpeg4"}}.get(format, {})
    options = {} if format == "matroska" else {"options": ()}
    content = numbered_clip(12, format=format, **codec, **options)  # type: ignore[arg-type]
    assert len(probed(content)) == 12
    assert len(probed(content + b"\0 appended")) == 12
    for length in (len(content) - 1, len(content) - 40, len(content) * 3 // 4, len(content) // 2):
        assert reason(content[:length]) == "truncated video"


def test_a_header_that_promises_less_than_there_is_is_rejected() -> None:
    content = numbered_clip()
    assert reason(with_duration(content, 0.1)) == "wrong duration"
    assert len(probed(with_duration(content, 1.2))) == 60


def test_a_header_that_promises_more_does_not_change_the_frames() -> None:
    table = probed(with_duration(numbered_clip(), 100))
    assert (len(table), table.duration_s) == (60, pytest.approx(2.4))


def test_frames_of_avi_are_counted_if_some_look_ahead() -> None:
    for clip in ({}, {"codec": "mpeg4", "options": (("bf", "2"),)}):
        table = probed(numbered_clip(format="avi", **clip))
        assert table.is_counted
        assert table.times_s == pytest.approx(np.arange(60) / 25)
        assert table.is_key.nonzero()[0].tolist()[0] == 0
    assert not probed(numbered_clip(format="avi", options=(("bf", "0"),))).is_counted
    assert not probed(numbered_clip()).is_counted


def test_sound_does_not_move_the_frames() -> None:
    table = probed(numbered_clip(sound=True))
    assert (len(table), float(table.times_s[-1])) == (60, pytest.approx(2.36, abs=0.07))


CLIPS: dict[str, dict[str, Any]] = {
    "plain": {},
    "index in front": {"container_options": (("movflags", "faststart"),)},
    "negative delays": {"container_options": (("movflags", "negative_cts_offsets"),)},
    "with sound": {"sound": True},
    "open groups": {"options": (("bf", "3"), ("x264-params", "open-gop=1:keyint=12"))},
    "no delays": {"options": (("bf", "0"),)},
    "variable rate": {"times": tuple(40 * n + 17 * (n % 3) for n in range(60))},
    "one frame": {"num_frames": 1},
}


def listed(content: bytes) -> Packets | None:
    with open_video(content) as video:
        return list_packets(video)


def demuxed(content: bytes) -> Packets:
    with open_video(content) as video:
        return demux_packets(video)


def as_lists(packets: Packets | None) -> list[object]:
    assert packets is not None
    arrays = (packets.pts, packets.dts, packets.is_key, packets.is_shown)
    return [*(array.tolist() for array in arrays), packets.last_duration]


@pytest.mark.parametrize("name", CLIPS)
def test_the_index_tells_what_demuxing_tells(name: str) -> None:
    content = numbered_clip(**CLIPS[name])
    assert as_lists(listed(content)) == as_lists(demuxed(content))


def test_what_an_edit_list_hides_is_hidden() -> None:
    content = shifted_clip(numbered_clip(), -0.2)
    packets = listed(content)
    assert as_lists(packets) == as_lists(demuxed(content))
    assert packets is not None
    assert np.count_nonzero(~packets.is_shown) == 5


def test_of_an_edit_list_that_leaves_packets_out_only_demuxing_tells() -> None:
    content = shifted_clip(numbered_clip(), -1.0)
    assert listed(content) is None
    assert np.count_nonzero(demuxed(content).is_shown) == 35


@pytest.mark.parametrize(
    "clip",
    [
        {"container_options": (("movflags", "frag_keyframe+empty_moov"),)},
        {"format": "matroska"},
        {"format": "mpegts"},
    ],
)
def test_without_a_whole_index_only_demuxing_tells(clip: dict[str, Any]) -> None:
    content = numbered_clip(**clip)
    with open_video(content) as video:
        assert list_packets(video) is None
        assert len(demux_packets(video).pts) == 60  # from the beginning, whatever was tried


def test_an_index_that_does_not_agree_with_the_packets_is_not_used() -> None:
    content = bytearray(numbered_clip())
    at = content.index(b"ctts") + 12  # packets of the first run, then of the next
    content[at + 3] += 1
    content[at + 8 + 3] -= 1
    with open_video(bytes(content)) as video:
        found = list_packets(video)
    if found is not None:
        assert as_lists(found) == as_lists(demuxed(bytes(content)))


class Counted:
    """Bytes that count how many of them are read."""

    window = 4096

    def __init__(self, content: bytes) -> None:
        self.content, self.num_read = content, 0

    def read(self, offset: int, length: int) -> bytes:
        self.num_read += length
        return self.content[offset : offset + length]


def test_little_of_a_long_video_is_read() -> None:
    clip = {"codec": "mjpeg", "pix_fmt": "yuvj420p", "options": (("q:v", "2"),), "size": (640, 480)}
    content = numbered_clip(300, **clip)
    blob = Counted(content)
    with open_video(BlobPart(blob, 0, len(content))) as video:
        before = blob.num_read
        packets = list_packets(video)
        assert packets is not None
        assert len(packets.pts) == 300
        assert blob.num_read - before < len(content) / 4


def test_a_file_that_is_shorter_than_its_index_says_is_cut_off() -> None:
    content = numbered_clip(container_options=(("movflags", "faststart"),))
    with pytest.raises(SampleError, match="truncated video"):
        listed(content[:-1])


def test_packets_come_in_the_order_of_decoding() -> None:
    with open_video(numbered_clip()) as video:
        packets = demux_packets(video)
    assert len(packets.pts) == 60
    assert packets.dts.tolist() == sorted(packets.dts.tolist())
    assert packets.pts.tolist() != sorted(packets.pts.tolist())
    assert (packets.pts >= packets.dts).all()
    assert packets.is_key.nonzero()[0].tolist() == [0, 20, 40]
    assert packets.is_shown.all()
    assert packets.last_duration == 512  # ticks of 1 / 12800 s


def test_packets_without_a_time_are_a_reject() -> None:
    for content in (
        shifted_clip(numbered_clip(), -1.0, format="matroska"),
        numbered_clip(format="h264"),
    ):
        with open_video(content) as video, pytest.raises(SampleError, match="no frame times"):
            demux_packets(video)
