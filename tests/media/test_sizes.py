from __future__ import annotations

import io
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from make_media import clip, encode, picture, pixels
from PIL import Image, ImageOps

from shardmill.errors import ConfigError, SampleError
from shardmill.media.sizes import Medium, probe

FORMATS = {
    "JPEG": "jpg",
    "PNG": "png",
    "GIF": "gif",
    "WEBP": "webp",
    "BMP": "bmp",
    "TIFF": "tif",
    "AVIF": "avif",
}
gray = pixels(33, 21)[:, :, 0]
ENCODINGS = [
    ("JPEG", pixels(33, 21), {"progressive": True}),
    ("JPEG", pixels(33, 21), {"quality": 95, "subsampling": 0, "comment": b"x" * 3000}),
    ("JPEG", gray, {"icc_profile": b"p" * 200_000}),
    ("PNG", gray.astype(np.uint16) * 257, {}),
    ("PNG", gray > 100, {"dpi": (72, 72)}),
    ("PNG", np.dstack([pixels(33, 21), gray]), {}),
    ("WEBP", pixels(33, 21), {"lossless": True}),
    ("WEBP", np.dstack([pixels(33, 21), gray]), {}),
    ("WEBP", pixels(33, 21), {"icc_profile": b"p" * 99}),
    ("TIFF", gray.astype(np.uint16), {"compression": "tiff_lzw"}),
    ("TIFF", pixels(33, 21), {"tiffinfo": {270: "a description"}}),
    ("BMP", gray, {}),
]


def shown(content: bytes) -> tuple[int, int]:
    with Image.open(io.BytesIO(content)) as opened:
        return ImageOps.exif_transpose(opened).size


def sides(medium: Medium) -> tuple[int, int]:
    return medium.size.width, medium.size.height


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("size", [(1, 1), (640, 480), (17, 3000)])
def test_sizes_are_those_of_pillow(format: str, size: tuple[int, int]) -> None:
    content = picture(format, *size)
    medium = probe("image", content)
    assert medium.ext == FORMATS[format]
    assert sides(medium) == shown(content) == size
    assert probe("image", memoryview(content)) == medium
    assert medium.size.num_frames == 1


@pytest.mark.parametrize(("format", "array", "options"), ENCODINGS)
def test_every_encoding_has_its_size(format: str, array: np.ndarray, options: dict) -> None:
    content = encode(format, array, **options)
    assert sides(probe("image", content)) == shown(content) == (33, 21)


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_turned_picture_has_the_size_it_is_shown_in(format: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[274] = orientation
    content = encode(format, pixels(33, 21), exif=exif)
    assert sides(probe("image", content)) == shown(content)


def test_a_png_may_say_at_its_end_how_it_is_turned() -> None:
    content = picture("PNG", 33, 21)
    exif = Image.Exif()
    exif[274] = 5
    block = exif.tobytes().removeprefix(b"Exif\0\0")
    chunk = b"eXIf" + block
    chunk = len(block).to_bytes(4, "big") + chunk + zlib.crc32(chunk).to_bytes(4, "big")
    turned = content[:-12] + chunk + content[-12:]
    assert sides(probe("image", turned)) == shown(turned) == (21, 33)


@pytest.mark.parametrize("format", ["GIF", "WEBP", "PNG", "AVIF"])
def test_a_moving_picture_has_the_size_of_its_canvas(format: str) -> None:
    frames = [Image.fromarray(pixels(40, 30, seed)) for seed in range(3)]
    buffer = io.BytesIO()
    frames[0].save(buffer, format, save_all=True, append_images=frames[1:])
    assert sides(probe("image", buffer.getvalue())) == (40, 30)


def test_an_exif_block_that_is_broken_does_not_spoil_the_picture() -> None:
    exif = Image.Exif()
    exif[274] = 6
    content = encode("JPEG", pixels(33, 21), exif=exif)
    at = content.index(b"Exif\0\0") + 6
    for broken in (b"XX", b"II*\0\xff\xff\xff\x7f"):
        spoiled = content[:at] + broken + content[at + len(broken) :]
        assert sides(probe("image", spoiled)) == (33, 21)


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


def test_a_turned_video_is_as_wide_as_it_is_shown(tmp_path: Path) -> None:
    content = bytearray(clip(tmp_path / "a.mp4", codec="libx264"))
    at = content.index(b"tkhd") + 4 + 40
    quarter = (0, 1 << 16, 0, -(1 << 16), 0)
    content[at : at + 20] = b"".join(n.to_bytes(4, "big", signed=True) for n in quarter)
    assert sides(probe("video", bytes(content))) == (48, 64)


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


def test_a_picture_without_width_is_none() -> None:
    content = picture("PNG")
    with pytest.raises(SampleError, match="its header says 0 x 48 pixels"):
        probe("image", content[:16] + bytes(4) + content[20:])


def test_a_wav_tells_its_duration() -> None:
    rate = 8000
    form = b"fmt " + (16).to_bytes(4, "little") + b"\1\0\1\0" + rate.to_bytes(4, "little")
    form += (2 * rate).to_bytes(4, "little") + b"\2\0\x10\0"
    data = b"data" + (2 * rate * 3).to_bytes(4, "little") + bytes(2 * rate * 3)
    wav = b"RIFF" + (len(form) + len(data) + 4).to_bytes(4, "little") + b"WAVE" + form + data
    assert probe("audio", wav).ext == "wav"
    assert probe("audio", wav).size.duration_s == 3


@pytest.mark.parametrize(
    "head", [b"fLaC", b"OggS", b"ID3\4", b"\xff\xfb\x90", b"\0\0\0\x20ftypM4A "]
)
def test_sounds_are_known_by_their_first_bytes(head: bytes) -> None:
    assert probe("audio", head + bytes(500)).size.width == 0


@pytest.mark.parametrize("kind", ["image", "video", "audio"])
@pytest.mark.parametrize("content", [b"hello, I am a text\n" * 20, b"\0" * 500, b"<html>", b"x"])
def test_what_is_not_what_its_name_says_is_a_reject(kind: str, content: bytes) -> None:
    with pytest.raises(SampleError, match="not a"):
        probe(kind, content)


def test_a_picture_is_no_video_and_a_video_no_picture(tmp_path: Path) -> None:
    with pytest.raises(SampleError, match="not a video"):
        probe("video", picture("JPEG"))
    with pytest.raises(SampleError, match="not a picture"):
        probe("image", clip(tmp_path / "a.mp4", codec="libx264"))
    assert sides(probe("video", picture("GIF"))) == (64, 48)
    with pytest.raises(ConfigError, match="a medium is one of"):
        probe("text", b"")


@pytest.mark.parametrize("format", FORMATS)
def test_a_picture_cut_anywhere_is_read_or_rejected(format: str) -> None:
    content = picture(format)
    for length in range(0, min(len(content), 700), 3):
        try:
            assert sides(probe("image", content[:length])) == (64, 48)
        except SampleError as error:
            assert error.reason == "not a picture"


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    folder = tmp_path_factory.mktemp("clips")
    names = [("a.mp4", "libx264"), ("a.mkv", "libx264"), ("a.avi", "mpeg4")]
    return [clip(folder / name, codec=codec) for name, codec in names]


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_damaged_headers_never_do_worse_than_a_reject(data: st.DataObject, clips: list) -> None:
    pictures = [("image", picture(format)) for format in FORMATS]
    kind, content = data.draw(st.sampled_from([*pictures, *(("video", c) for c in clips)]))
    damaged = bytearray(content[: data.draw(st.integers(1, len(content)))])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, min(len(damaged), 2000) - 1))
        damaged[at] = data.draw(st.sampled_from([0, 1, 127, 128, 255]))
    try:
        size = probe(kind, bytes(damaged)).size
    except SampleError:
        return
    assert 0 < size.width < 1 << 31
    assert 0 <= size.num_frames < 1 << 31


DEMO = Path(__file__).parents[2] / "demo" / "data"


@pytest.mark.parametrize("path", sorted((DEMO / "photos").iterdir()), ids=lambda path: path.name)
def test_real_photographs(path: Path) -> None:
    assert sides(probe("image", path.read_bytes())) == shown(path.read_bytes())


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
