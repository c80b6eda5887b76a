from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from struct import pack, pack_into

import pytest
from hypothesis import given
from hypothesis import strategies as st
from make_media import clip
from numbered_video import numbered_clip

from shardmill.errors import SampleError
from shardmill.media.containers import MAX_MOOV_BYTES, check_claims, read_moov
from shardmill.media.header import MediaHeader, probe
from shardmill.media.video import open_video

DEMO = Path(__file__).parents[2] / "demo" / "data"


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


def sides(medium: MediaHeader) -> tuple[int, int]:
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


@pytest.mark.parametrize(("name", "ext"), [("a.mpg", "mpg"), ("a.ts", "ts"), ("a.m2ts", "ts")])
def test_containers_that_only_ffmpeg_knows_are_asked_of_it(
    tmp_path: Path, name: str, ext: str
) -> None:
    medium = probe("video", clip(tmp_path / name, codec="mpeg2video"))
    assert (medium.ext, *sides(medium)) == (ext, 64, 48)


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


def test_a_turned_video_is_as_wide_as_it_is_shown(tmp_path: Path) -> None:
    content = bytearray(clip(tmp_path / "a.mp4", codec="libx264"))
    at = content.index(b"tkhd") + 4 + 40
    quarter = (0, 1 << 16, 0, -(1 << 16), 0)
    content[at : at + 20] = b"".join(n.to_bytes(4, "big", signed=True) for n in quarter)
    assert sides(probe("video", bytes(content))) == (48, 64)


@dataclass
class File:
    content: bytes

    @property
    def num_bytes(self) -> int:
        return len(self.content)

    def read(self, start: int, length: int) -> bytes:
        return self.content[start : start + length]


def box(kind: bytes, content: bytes) -> bytes:
    return pack(">I4s", 8 + len(content), kind) + content


def test_the_index_is_found_wherever_it_lies() -> None:
    moov, rest = b"index, long enough", box(b"mdat", b"x" * 40)
    large = pack(">I4sQ", 1, b"mdat", 16 + 5) + b"12345"
    to_the_end = pack(">I4s", 0, b"moov") + moov
    for content in (
        box(b"moov", moov) + rest,
        rest + box(b"moov", moov) + rest,
        large + box(b"moov", moov),
        rest + to_the_end,
    ):
        assert read_moov(File(content)) == moov


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"short",
        box(b"mdat", b"y" * 99),
        pack(">I4s", 4, b"mdat") * 9,
        pack(">I4s", MAX_MOOV_BYTES + 1, b"moov") + b"z" * 99,
        pack(">I4sQ", 1, b"mdat", 1 << 63) + b"z" * 99,
    ],
)
def test_what_has_no_index_has_none(content: bytes) -> None:
    assert read_moov(File(content)) == b""
    check_claims(File(content))


@given(st.binary(max_size=200))
def test_any_bytes_can_be_looked_at(content: bytes) -> None:
    read_moov(File(content))
    check_claims(File(content))


def claiming(count: int, size: int) -> bytes:
    """Return a clip whose index says that it has so many packets of one size."""
    content = bytearray(numbered_clip())
    pack_into(">II", content, content.index(b"stsz") + 8, size, count)
    return bytes(content)


@pytest.mark.parametrize("claim", [(4_000, 1), (1 << 32 - 1, 1), (2, 3_000), (61, 0), (10**6, 0)])
def test_claims_beyond_the_file_are_refused_before_room_is_made(claim: tuple[int, int]) -> None:
    with (
        pytest.raises(SampleError, match="absurd number of frames"),
        open_video(claiming(*claim)),
    ):
        pass


def test_honest_claims_pass() -> None:
    for content in (numbered_clip(), numbered_clip(sound=True), claiming(30, 100)):
        check_claims(File(content))


def element(kind: int, body: bytes) -> bytes:
    length = (kind.bit_length() + 7) // 8
    return kind.to_bytes(length, "big") + (1 << 56 | len(body)).to_bytes(8, "big") + body


def test_blocks_in_groups_are_frames_too() -> None:
    video = element(0xE0, element(0xB0, b"\x40") + element(0xBA, b"\x30"))
    track = element(0xAE, element(0xD7, b"\x01") + element(0x83, b"\x01") + video)
    group = element(0xA0, element(0xA1, b"\x81\0\0\0frame"))
    other = element(0xA3, b"\x82\0\0\0sound")
    cluster = element(0x1F43B675, group * 3 + other + element(0xA3, b"\x81\0\0\0frame"))
    segment = element(0x18538067, element(0x1654AE6B, track) + cluster * 2)
    size = probe("video", element(0x1A45DFA3, b"") + segment).size
    assert (size.width, size.height, size.num_frames) == (64, 48, 8)


def test_clusters_inside_of_clusters_do_no_harm() -> None:
    deep = b"".join(b"\x1f\x43\xb6\x75\xff" for _ in range(100_000))
    with pytest.raises(SampleError, match="not a video"):
        probe("video", element(0x1A45DFA3, b"") + b"\x18\x53\x80\x67\xff" + deep)
