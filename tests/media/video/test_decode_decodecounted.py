from __future__ import annotations

import numpy as np
import pytest
from numbered_video import numbered_clip, read_number
from video_tables import steady_table

from shardmill.errors import SampleError
from shardmill.media.video.decode import count_frames
from shardmill.media.video.file import open_video
from shardmill.media.video.frames import FramePainter, read_frames
from shardmill.media.video.probe import probe_video
from shardmill.media.video.samplers import AllFrames

DIVX = {"codec": "mpeg4", "options": (("bf", "2"),)}


@pytest.mark.parametrize("clip", [{}, DIVX])
def test_the_nth_frame_that_comes_out_is_the_nth(clip: dict[str, object]) -> None:
    painter = FramePainter()
    with open_video(numbered_clip(format="avi", **clip)) as video:  # type: ignore[arg-type]
        table = probe_video(video)
        for _ in range(2):  # from the beginning each time
            frames = count_frames(video, table, np.array([59, 3, 10]))
            found = [(number, read_number(painter.rgb(frame))) for number, frame in frames]
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
