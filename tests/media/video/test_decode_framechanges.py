from __future__ import annotations

import io

import av
import numpy as np
import pytest

from shardmill.media.video.decode import changes_of, measure_changes
from shardmill.media.video.file import open_video
from shardmill.media.video.frames import read_frames
from shardmill.media.video.probe import probe_video
from shardmill.media.video.samplers import Scenes


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
