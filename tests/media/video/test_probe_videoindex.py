from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numbered_video import numbered_clip, shifted_clip

from shardmill.errors import SampleError
from shardmill.media.video.file import BlobPart, open_video
from shardmill.media.video.probe import Packets, demux_packets, list_packets

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
