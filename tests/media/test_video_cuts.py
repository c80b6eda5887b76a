"""Files that were cut, shifted or joined, held against the frames that the program ffmpeg gives."""

from __future__ import annotations

import shutil
import subprocess
from hashlib import md5
from pathlib import Path
from random import Random

import numpy as np
import pytest
from numbered_video import numbered_clip

from shardmill.errors import SampleError
from shardmill.media.frames import decode_frames
from shardmill.media.samplers import VideoTable
from shardmill.media.video import open_video, probe_video

pytestmark = pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="ffmpeg is not installed")

# Codec -> how it is made, and the containers that it is copied into.
OPEN = (("bf", "3"), ("x264-params", "open-gop=1:keyint=12"))
CODECS = {
    "h264": ({"group": 12}, "mp4 mov fragments mkv ts flv avi"),
    "h264 with sound": ({"group": 12, "sound": True}, "fragments mkv ts flv"),
    "open groups": ({"options": OPEN}, "mp4 mkv"),
    "hevc": (
        {"codec": "libx265", "options": (("x265-params", "keyint=12:log-level=none"),)},
        "mp4 mkv ts",
    ),
    "vp8": ({"codec": "libvpx", "format": "webm", "group": 12}, "webm ogg avi"),
    "vp9": ({"codec": "libvpx-vp9", "format": "webm", "group": 12}, "webm mp4"),
    "mpeg4": ({"codec": "mpeg4", "group": 12, "options": (("bf", "2"),)}, "mp4 avi mkv"),
    "mpeg2": ({"codec": "mpeg2video", "format": "mpegts", "group": 12}, "ts mpg mkv"),
    "mjpeg": ({"codec": "mjpeg", "pix_fmt": "yuvj420p", "options": ()}, "avi mkv"),
}
# What is said before the input, and before the output.
CUTS = {
    "a cut": ("-ss 1.3", ""),
    "a cut that keeps its times": ("-ss 1.3 -copyts", ""),
    "a piece that keeps its times": ("-ss 0.7 -to 1.9 -copyts", ""),
    "negative times": ("", "-output_ts_offset -0.5 -avoid_negative_ts disabled"),
    "a cut before zero": ("-ss 1.3", "-avoid_negative_ts disabled"),
    "a late start": ("", "-output_ts_offset 7"),
}
MUXERS = {"fragments": ("mp4", "-movflags frag_keyframe+empty_moov -f mp4"), "ogg": ("ogv", "")}


def ffmpeg(folder: Path, arguments: str) -> str:
    command = f"ffmpeg -hide_banner -v error -y {arguments}"
    return subprocess.run(
        command.split(), cwd=folder, check=True, capture_output=True, text=True
    ).stdout


def by_ffmpeg(path: Path) -> list[str]:
    """Return the checksum of each frame that the program decodes."""
    shown = f"-i {path.name} -map 0:V:0 -fps_mode passthrough -f framemd5 -"
    lines = ffmpeg(path.parent, shown).splitlines()
    return [line.rpartition(",")[2].strip() for line in lines if not line.startswith("#")]


def by_us(path: Path) -> tuple[list[str], VideoTable]:
    with open_video(path) as video:
        table = probe_video(video)
        frames = decode_frames(video, table, np.arange(len(table)))
        sums = {n: md5(f.to_ndarray().tobytes()).hexdigest() for n, f in frames}
    return [sums[number] for number in range(len(table))], table


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("cut", CUTS)
def test_frames_are_those_that_ffmpeg_decodes(codec: str, cut: str, tmp_path: Path) -> None:
    settings, containers = CODECS[codec]
    (tmp_path / "whole").write_bytes(numbered_clip(50, **settings))  # type: ignore[arg-type]
    before, after = CUTS[cut]
    # Each cut meets each container once, in turn: all pairs of codec and container are covered.
    names = containers.split()
    for name in names[list(CUTS).index(cut) % 2 :: 2] if len(names) > 2 else names:
        ext, flags = MUXERS.get(name, (name, ""))
        path = tmp_path / f"cut.{ext}"
        ffmpeg(tmp_path, f"{before} -i whole -c copy {after} {flags} {path.name}")
        expected = by_ffmpeg(path)
        if (name, cut) == ("mov", "negative times"):
            continue  # an edit list, of which versions of FFmpeg show one frame more or less
        found, table = by_us(path)
        assert found == expected, name
        assert (np.diff(table.times_s) > 0).all(), name
        assert table.duration_s < 3 or name == "avi", name  # which shows the first one for long


@pytest.mark.parametrize("codec", ["h264", "h264 with sound", "mpeg2"])
def test_joined_segments_go_on(codec: str, tmp_path: Path) -> None:
    settings, _ = CODECS[codec]
    (tmp_path / "whole").write_bytes(numbered_clip(50, **settings))  # type: ignore[arg-type]
    ffmpeg(tmp_path, "-i whole -c copy -f segment -segment_time 0.5 %d.ts")
    ffmpeg(tmp_path, "-i whole -c copy whole.ts")
    parts = [path.read_bytes() for path in sorted(tmp_path.glob("?.ts"))]
    assert len(parts) > 2
    whole = (tmp_path / "whole.ts").read_bytes()
    joined = {"all": parts, "one left out": [parts[0], *parts[2:]], "twice": [whole, whole]}
    for name, pieces in joined.items():
        path = tmp_path / "joined.ts"
        path.write_bytes(b"".join(pieces))
        found, table = by_us(path)
        assert found == by_ffmpeg(path), name
        assert (np.diff(table.times_s) > 0).all(), name
        (note,) = table.corrected
        assert note.startswith(("segments were joined: at packet", "times restart")), name
    assert len(found) == 100
    assert table.duration_s == pytest.approx(4, abs=0.1)
    assert note.endswith("1 time corrected")


def test_what_is_in_order_is_not_corrected(tmp_path: Path) -> None:
    for format in ("mp4", "matroska", "mpegts", "flv", "avi"):
        (tmp_path / "clip").write_bytes(numbered_clip(format=format))
        assert by_us(tmp_path / "clip")[1].corrected == ()


def test_negative_times_are_corrected_and_said(tmp_path: Path) -> None:
    (tmp_path / "whole").write_bytes(numbered_clip(50))
    shift = "-output_ts_offset -0.5 -avoid_negative_ts disabled"
    ffmpeg(tmp_path, f"-i whole -c copy {shift} cut.mkv")
    _, table = by_us(tmp_path / "cut.mkv")
    assert table.corrected[0].startswith("no frame times: packet")
    assert table.times_s == pytest.approx(np.arange(50) / 25, abs=0.002)


@pytest.mark.parametrize(
    "container",
    ["-c:v libtheora -g 12 cut.ogv", "-c copy -movflags frag_keyframe+empty_moov cut.mp4"],
)
def test_no_ogg_and_no_fragment_is_cut_off_in_silence(container: str, tmp_path: Path) -> None:
    (tmp_path / "whole").write_bytes(numbered_clip(50, group=12, sound=True))
    ffmpeg(tmp_path, f"-i whole -an {container}")
    path = tmp_path / container.split()[-1]
    content = path.read_bytes()
    assert len(by_us(path)[0]) == 50
    ends = {at for kind in (b"moof", b"mfra") for at in _places(content, kind)}
    for at in {Random(n).randrange(len(content) // 4, len(content)) for n in range(40)} - ends:
        path.write_bytes(content[:at])
        with pytest.raises(SampleError, match="truncated video"):
            by_us(path)


def _places(content: bytes, kind: bytes) -> list[int]:
    """Return where boxes of a kind begin."""
    found, at = [], content.find(kind)
    while at >= 0:
        found.append(at - 4)
        at = content.find(kind, at + 1)
    return found


@pytest.mark.parametrize("codec", ["libx264", "libx265", "mpeg2video"])
def test_no_transport_stream_is_cut_off_in_silence(codec: str, tmp_path: Path) -> None:
    options = (("bf", "2"),) if codec == "libx264" else (("x265-params", "log-level=none"),)
    content = numbered_clip(
        50, format="mpegts", codec=codec, group=12, options=() if codec == "mpeg2video" else options
    )
    path = tmp_path / "cut.ts"
    path.write_bytes(content)
    whole = by_us(path)[0]
    outcomes = set()
    for n in range(40):
        at = Random(n).randrange(len(content) // 4, len(content))
        path.write_bytes(content[: at if n < 10 else at // 188 * 188])
        try:
            found, table = by_us(path)
        except SampleError as error:
            outcomes.add(error.reason)
            continue
        assert n >= 10, "a packet that is not complete"
        # Between two frames a cut leaves no trace; within one it is said or found.
        is_right = set(found) <= set(whole)
        assert is_right or table.corrected, (n, len(found))
        outcomes.add("right" if is_right and not table.corrected else "said")
    assert "truncated video" in outcomes
