from __future__ import annotations

from pathlib import Path

import pytest
from make_media import clip

from shardmill.media.sizes import Medium, probe

DEMO = Path(__file__).parents[3] / "demo" / "data"


CONTAINERS = [
    ("a.mp4", "libx264", {}),
    ("a.mp4", "libx264", {"movflags": "faststart"}),
    ("a.mp4", "libx264", {"movflags": "frag_keyframe+empty_moov"}),
    ("a.mov", "libx264", {}),
    ("a.mkv", "libx264", {}),
    ("a.webm", "libvpx", {}),
    ("a.webm", "libvpx", {"live": "1"}),
    ("a.avi", "mpeg4", {}),
]


def sides(medium: Medium) -> tuple[int, int]:
    return medium.size.width, medium.size.height


@pytest.mark.parametrize(("name", "codec", "options"), CONTAINERS)
def test_videos_tell_size_and_frames(
    tmp_path: Path, name: str, codec: str, options: dict[str, str]
) -> None:
    content = clip(tmp_path / name, codec=codec, **options)
    medium = probe("video", content)
    assert f"a.{medium.ext}" == name
    assert sides(medium) == (64, 48)
    assert medium.size.num_frames == 12
    if not options or "faststart" in options.values():
        assert medium.size.fps == pytest.approx(25, rel=0.01)
        assert medium.size.duration_s == pytest.approx(12 / 25, abs=0.05)


@pytest.mark.parametrize(("name", "codec"), [("a.mpg", "mpeg2video"), ("a.ts", "mpeg2video")])
def test_containers_that_only_ffmpeg_knows_are_asked_of_it(
    tmp_path: Path, name: str, codec: str
) -> None:
    medium = probe("video", clip(tmp_path / name, codec=codec))
    assert (f"a.{medium.ext}", *sides(medium)) == (name, 64, 48)


def test_a_real_clip() -> None:
    import av

    path = DEMO / "tour.mp4"
    size = probe("video", path.read_bytes()).size
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        num_frames = sum(1 for _ in container.decode(stream))
        assert (size.width, size.height) == (stream.width, stream.height)
        assert size.fps == pytest.approx(float(stream.average_rate), rel=0.01)
    assert size.num_frames == num_frames
