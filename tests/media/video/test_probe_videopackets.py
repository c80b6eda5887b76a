from __future__ import annotations

import pytest
from numbered_video import numbered_clip, shifted_clip

from shardmill.errors import SampleError
from shardmill.media.video.file import open_video
from shardmill.media.video.probe import demux_packets


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
