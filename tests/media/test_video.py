from __future__ import annotations

import io
from pathlib import Path

import av
import numpy as np
import pytest
from make_media import image
from numbered_video import huge_stream, numbered_clip

from shardmill.errors import FormatError, SampleError, StoreError
from shardmill.media.video import BlobPart, check_size, open_video, read_packets


def sound(cover: bool = False) -> bytes:
    """Return an MP4 with sound, and perhaps an image of its cover."""
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("aac", rate=16000)
        if cover:
            front = container.add_stream("mjpeg")
            front.width, front.height, front.pix_fmt = 64, 48, "yuvj420p"
            front.disposition = av.stream.Disposition.attached_pic
        frame = av.AudioFrame.from_ndarray(
            np.zeros((1, 4096), np.float32), format="fltp", layout="mono"
        )
        frame.sample_rate = 16000
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
        if cover:
            packet = av.Packet(image())
            packet.stream, packet.pts, packet.dts = front, 0, 0
            container.mux(packet)
    return file.getvalue()


def reason(video: object) -> str:
    with pytest.raises(SampleError) as caught, open_video(video):  # type: ignore[arg-type]
        pass
    return caught.value.reason


def test_each_kind_of_what_is_no_video_has_its_reason() -> None:
    clip = numbered_clip()
    assert reason(b"") == "empty video"
    assert reason(b"not at all " * 100) == "not a video"
    assert reason(image()) == "not a video"
    assert reason(clip[: len(clip) // 2]) == "not a video"  # its index is at the end
    assert reason(sound()) == "no video stream"
    assert reason(sound(cover=True)) == "no video stream"
    assert reason(clip.replace(b"avc1", b"zzzz")) == "unknown codec"


def test_frames_that_do_not_fit_into_memory_are_refused_by_their_header() -> None:
    with open_video(huge_stream(4096)) as video:
        assert video.stream.codec_context.width == 4096
    assert reason(huge_stream(15360)) == "too many pixels"
    assert reason(huge_stream(16384)) == "no frame size"  # FFmpeg refuses it by itself
    for size in ((16384, 2), (9000, 9000)):
        with pytest.raises(SampleError, match="too many pixels"):
            check_size(*size)
    check_size(7680, 4320)


@pytest.mark.parametrize(
    "playlist",
    [
        "ffconcat version 1.0\nfile '{path}'\n",
        "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\n{path}\n#EXT-X-ENDLIST\n",
        "file:{path}",
    ],
)
def test_a_list_of_other_files_is_not_followed(tmp_path: Path, playlist: str) -> None:
    (tmp_path / "secret.ts").write_bytes(numbered_clip(format="mpegts"))
    assert reason(playlist.format(path=tmp_path / "secret.ts").encode()) == "not a video"


class Unreadable:
    """A store that goes away after some requests."""

    window = 4096

    def __init__(self, content: bytes, num_reads: int) -> None:
        self.content, self.num_reads = content, num_reads

    def read(self, offset: int, length: int) -> bytes:
        self.num_reads -= 1
        if self.num_reads < 0:
            raise StoreError("the store is away", passing=True)
        return self.content[offset : offset + length]


@pytest.mark.parametrize("num_reads", [0, 1])
def test_a_store_that_fails_is_not_the_fault_of_the_sample(num_reads: int) -> None:
    content = numbered_clip(900, codec="mjpeg", format="matroska", pix_fmt="yuvj420p", options=())
    assert len(content) > 512 << 10
    part = BlobPart(Unreadable(content, num_reads), 0, len(content))
    with pytest.raises(StoreError, match="the store is away"), open_video(part) as video:
        for _ in video.container.demux(video.stream):
            pass


class Far(Unreadable):
    """A store in which every request counts."""

    window = 1 << 20


def test_of_a_store_a_clip_is_fetched_at_once() -> None:
    content = numbered_clip()
    store = Far(content, num_reads=1)
    with open_video(BlobPart(store, 0, len(content))) as video:
        assert sum(1 for packet in video.container.demux(video.stream) if packet.size) == 60
    assert store.num_reads == 0


def test_packets_end_where_the_stream_ends() -> None:
    with open_video(numbered_clip(sound=True)) as video:
        assert sum(1 for _ in read_packets(video)) == 60
        assert list(read_packets(video)) == []


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"gone\.mp4"), open_video(tmp_path / "gone.mp4"):
        pass


def test_threads_are_bounded() -> None:
    with open_video(numbered_clip()) as video:
        assert video.stream.codec_context.thread_count == 1
    with open_video(numbered_clip(), threads=3) as video:
        assert video.stream.codec_context.thread_count == 3
