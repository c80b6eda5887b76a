"""Size, frames, rate and duration of a video from its container's headers; nothing is decoded.

ISO media (MP4, MOV), Matroska (MKV, WebM) and AVI are read here; what only FFmpeg knows (Ogg, MPEG,
FLV, ASF) is asked of PyAV. A phone's display matrix turns width and height.

Of ISO media, the boxes of the first video track:

    moov/trak/tkhd        display matrix (a quarter turn swaps width and height)
    moov/trak/mdia/mdhd   timescale, duration          hdlr  "vide"
    .../minf/stbl/stsd    coded width and height       stsz  number of frames
    moof/traf/trun        frames of a fragmented file, which `stsz` does not count

A Matroska element is an id, a size and a body; id and size are numbers of 1 to 8 bytes whose first
byte says, by its leading zeros, how many follow. A size of all ones means "until the parent ends".

FFmpeg makes room for as many packets as `stsz` claims, also where one number stands for the size of
all: four kilobytes can ask for gigabytes. So `check_claims` compares it with the bytes there are.

FFmpeg itself is met in two places only: `open_container` says what it may open and how much memory
a frame may take, `broken_as` turns its complaints into rejects.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from itertools import chain
from struct import error as StructError
from struct import unpack, unpack_from
from typing import Any, Protocol, TypeAlias

from shardmill.errors import SampleError, foreign, need
from shardmill.model.frames import MAX_FRAMES
from shardmill.model.sample import MediaSize

Bytes: TypeAlias = bytes | memoryview
Fields: TypeAlias = dict[int, memoryview]

ASF = bytes.fromhex("3026b2758e66cf11a6d900aa0062ce6c")
# What FFmpeg may open: a "video" that is really a playlist of other files or urls is refused.
DEMUXERS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,ogg,mpeg,mpegts,flv,asf,gif,h264,hevc,ivf"
# Twice 8K. A decoder holds up to 16 frames besides, so more would not be bounded memory.
MAX_PIXELS = 1 << 26
LOCAL_READ_BYTES = 128 << 10
HEAD_BYTES = 4096  # of Matroska, whose header may be padded
MAX_MOOV_BYTES = 1 << 28  # 16 bytes for each of `MAX_FRAMES`
MAX_OGG_PAGE = 27 + 255 * 256
TS_SYNC, MAX_TS_PACKET, TS_TAIL_PACKETS = 0x47, 204, 1 << 14
MAX_FRAGMENT_BOXES = 1 << 20
MAX_BOXES = 1 << 12  # before the index; a file of empty boxes must not keep us for ever
# EBML ids of Matroska.
SEGMENT, INFO, TRACKS, CLUSTER = 0x18538067, 0x1549A966, 0x1654AE6B, 0x1F43B675
TIMECODE_SCALE, DURATION = 0x2AD7B1, 0x4489
TRACK, TRACK_NUMBER, TRACK_TYPE, VIDEO, DEFAULT_DURATION = 0xAE, 0xD7, 0x83, 0xE0, 0x23E383
WIDTH, HEIGHT = 0xB0, 0xBA
SIMPLE_BLOCK, BLOCK_GROUP, BLOCK = 0xA3, 0xA0, 0xA1
ENTERED = (CLUSTER, BLOCK_GROUP)
UNKNOWN = -1
IS_VIDEO = 1
NO_FIELDS: Fields = {}
MAX_RATE = 30_000  # the largest numerator that FFmpeg allows a rate


def video_format(head: bytes) -> str | None:
    """Return the extension of the container that these first bytes begin, or None."""
    if head[4:8] in (b"ftyp", b"moov", b"wide", b"mdat"):
        return "mov" if head[4:8] != b"ftyp" or head[8:12] == b"qt  " else "mp4"
    if head[:4] == b"\x1aE\xdf\xa3":
        return "webm" if b"webm" in head else "mkv"
    if head[:4] == b"RIFF" and head[8:12] == b"AVI ":
        return "avi"
    for magic, ext in ((b"OggS", "ogv"), (b"\0\0\x01\xba", "mpg"), (b"FLV", "flv"), (ASF, "wmv")):
        if head.startswith(magic):
            return ext
    # Packets of Blu-ray and cameras (.m2ts) have a time of 4 bytes before them.
    is_ts = any(head[at::size][:2] == b"\x47\x47" for at, size in ((0, 188), (4, 192)))
    return "ts" if is_ts else None


def video_size(format: str, data: Bytes) -> MediaSize | None:
    """Return what the headers say of the first video track, or None if there is none."""
    return READERS.get(format, _ask_ffmpeg)(data)


class Readable(Protocol):
    """Bytes that can be read anywhere; fewer come back only at their end."""

    @property
    def num_bytes(self) -> int:
        """How many there are."""

    def read(self, start: int, length: int) -> bytes:
        """Return the bytes from `start` on."""


def read_moov(file: Readable) -> bytes:
    """Return the content of the box that holds the index, empty if it is absurd or not there.

    Unlike `boxes` it reads only the headers on the way, so that a video in a store stays there.
    """
    at = 0
    for _ in range(MAX_BOXES):
        header = file.read(at, 16)
        if len(header) < 16:
            break
        size, kind = unpack_from(">I4s", header)
        head = 8
        if size == 1:
            (size,), head = unpack_from(">Q", header, 8), 16
        elif size == 0:
            size = file.num_bytes - at
        if kind == b"moov":
            return file.read(at + head, size - head) if size <= MAX_MOOV_BYTES else b""
        if size < head:
            break
        at += size
    return b""


def check_claims(file: Readable) -> None:
    """Raise `SampleError` if an index claims more packets than its file can hold."""
    moov = read_moov(file)
    if first_box(moov, b"mvex"):
        _check_fragments(file)
    for track in find_boxes(moov, b"trak"):
        table = first_box(track, b"mdia", b"minf", b"stbl")
        sizes = first_box(table, b"stsz")
        try:
            size, count = unpack_from(">II", sizes, 4)
        except StructError:
            continue
        room = file.num_bytes // size if size else (len(sizes) - 12) // 4
        if count > room or (count > MAX_FRAMES and not _is_pcm(table)):
            detail = f"its index claims {count} packets, there is room for {room}"
            raise SampleError("absurd number of frames", detail)


def _check_fragments(file: Readable) -> None:
    """Raise `SampleError` if a fragment is cut off; its packets would be missing in silence."""
    at = 0
    for _ in range(MAX_FRAGMENT_BOXES):
        header = file.read(at, 16)
        if len(header) < 8 or not header[4:8].isalnum():
            return  # the end, or something appended
        (size,) = unpack_from(">I", header)
        if size == 1 and len(header) == 16:
            (size,) = unpack_from(">Q", header, 8)
        if size < 8:
            return  # the last box, which reaches to the end, or no box
        at += size
        if at > file.num_bytes:
            raise SampleError("truncated video", f"{file.num_bytes} bytes, a fragment needs {at}")


def find_ts_packets(file: Readable) -> Iterator[bytes]:
    """Yield the last packets of a transport stream, the very last one first.

    They have 188 bytes each, in some files 4 or 16 more. A stream whose last packet is not
    complete is a `SampleError`.
    """
    head = file.read(0, 4 * MAX_TS_PACKET)
    sizes = (
        (size, start)
        for size in (188, 192, MAX_TS_PACKET)
        for start in range(size)
        if all(head[at] == TS_SYNC for at in range(start, len(head) - size, size))
    )
    size, start = next(sizes, (0, 0))
    if not size or len(head) < 3 * size:
        return
    # With 192 bytes each packet has 4 before it.
    begin = start - 4 if size == 192 and start >= 4 else start
    count, rest = divmod(file.num_bytes - begin, size)
    if rest:
        detail = f"its last packet has {rest} of {size} bytes"
        raise SampleError("truncated video", detail)
    first = max(0, count - TS_TAIL_PACKETS)
    tail = file.read(begin + first * size, (count - first) * size)
    for number in range(count - first - 1, -1, -1):
        at = number * size + start - begin
        yield tail[at : at + 188]


def check_whole(file: Readable) -> None:
    """Raise `SampleError` if a file ends before the end that it states itself: it was cut off.

    FFmpeg makes a frame of what is there of the last one, or leaves it out, and says nothing.
    Transport streams and Matroska that was written to a pipe do not state an end.
    """
    head = file.read(0, HEAD_BYTES)
    end = None
    try:
        if head[:3] == b"GIF":
            end = _gif_end(file)
        elif head[:4] == b"OggS":
            end = _ogg_end(file)
        elif head[:4] == b"RIFF":
            end = 8 + unpack_from("<I", head, 4)[0]
        elif head[:4] == b"\x1aE\xdf\xa3":
            _, size, at = _element(memoryview(head), 0)
            _, size, at = _element(memoryview(head), at + size)
            end = at + size if size != UNKNOWN else None
    except (StructError, IndexError):  # of another kind, or cut off here already: FFmpeg will say
        return
    if end is not None and end > file.num_bytes:
        raise SampleError("truncated video", f"{file.num_bytes} bytes, it needs {end} or more")


def _ogg_end(file: Readable) -> int:
    """Return where the last page of an Ogg ends; behind the file if it does not say that it ends.

    A page is b"OggS", 2 bytes of which the second is flags (4: the last one of its stream), 20
    more, and the number of pieces, whose sizes follow before the pieces themselves.
    """
    start = max(0, file.num_bytes - 2 * MAX_OGG_PAGE)
    tail = file.read(start, file.num_bytes - start)
    page = tail[max(0, tail.rfind(b"OggS")) :]
    num_pieces = page[26] if len(page) > 26 else 0
    sizes = page[27 : 27 + num_pieces]
    is_last = len(sizes) == num_pieces > 0 and page[5] & 4
    end = file.num_bytes - len(page) + 27 + num_pieces + sum(sizes)
    return end if is_last else max(end, file.num_bytes + 1)


def _gif_end(file: Readable) -> int:
    """Return where a GIF ends: behind its trailer, or behind the block that is cut off.

    Blocks are b"!" and a label, or b"," and where an image goes, perhaps with colours; both are
    followed by pieces of up to 255 bytes, each with its length before it, up to one of length 0.
    """
    window, start = b"", 0

    def byte(at: int) -> int:
        nonlocal window, start
        if not start <= at < start + len(window):
            start, window = at, file.read(at, LOCAL_READ_BYTES)
        return window[at - start] if window else -1

    flags = byte(10)
    at = 13 + (3 << (flags & 7) + 1 if flags & 0x80 else 0)
    # A block of length 0 between the others is a piece too many, which some writers make.
    while (kind := byte(at)) in (0, ord("!"), ord(",")):
        if kind == ord("!"):
            at += 2
        elif kind == ord(","):
            flags = byte(at + 9)
            at += 11 + (3 << (flags & 7) + 1 if flags & 0x80 else 0)
        while (length := byte(at)) > 0:
            at += 1 + length
        at += 1
    return at + 1


def _element(data: memoryview, at: int) -> tuple[int, int, int]:
    """Return id and size of a Matroska element, and where its body begins."""
    kind, at = _number(data, at, keep_marker=True)
    size, at = _number(data, at, keep_marker=False)
    return kind, size, at


def _is_pcm(table: bytes | memoryview) -> bool:
    """Say whether every sample of audio is a packet of its own: FFmpeg takes it by chunks."""
    times = first_box(table, b"stts")
    return len(times) >= 16 and unpack_from(">II", times, 4)[0] == 1 and times[12:16] == b"\0\0\0\1"


def iso_size(data: Bytes) -> MediaSize | None:
    """Return what the headers say of the first video track, or None if there is none."""
    for track in find_boxes(data, b"moov", b"trak"):
        handler = first_box(track, b"mdia", b"hdlr")
        if handler[8:12] == b"vide":
            return _track_size(data, track)
    return None


def _track_size(data: Bytes, track: Bytes) -> MediaSize | None:
    table = first_box(track, b"mdia", b"minf", b"stbl")
    entry = first_box(table, b"stsd")
    # Flags and count, the entry's size and type, then 24 bytes before its width.
    width, height = unpack_from(">HH", entry, 8 + 8 + 24)
    header = first_box(track, b"tkhd")
    if _is_turned(header):
        width, height = height, width
    timescale, duration = _time(first_box(track, b"mdia", b"mdhd"))
    (num_frames,) = unpack_from(">I", first_box(table, b"stsz") or bytes(12), 8)
    if num_frames == 0:
        num_frames = _fragment_frames(data, track_number(header))
    seconds = duration / timescale if timescale else 0.0
    return MediaSize(
        width=width,
        height=height,
        num_frames=num_frames,
        fps=num_frames / seconds if seconds else 0.0,
        duration_s=seconds,
    )


def _is_turned(header: Bytes) -> bool:
    # The matrix (a b u, c d v, x y w) turns by a quarter when a and d are 0.
    # Version 1 has three times of 8 bytes before it instead of 4.
    at = 40 if header[:1] == b"\0" else 52
    a, b, _, c, d = unpack_from(">iiiii", header, at)
    return bool(a == 0 == d and b != 0 != c)


def track_number(header: Bytes) -> int:
    """Return the number of a track, from the content of its `tkhd`."""
    (number,) = unpack_from(">I", header, 12 if header[:1] == b"\0" else 20)
    return int(number)


def _time(header: Bytes) -> tuple[int, int]:
    """Return (timescale, duration); all ones mean an unknown duration."""
    if header[:1] == b"\0":
        timescale, duration = unpack_from(">II", header, 12)
        return timescale, 0 if duration == 0xFFFFFFFF else duration
    timescale, duration = unpack_from(">IQ", header, 20)
    return timescale, 0 if duration == 0xFFFFFFFFFFFFFFFF else duration


def _fragment_frames(data: Bytes, track_number: int) -> int:
    total = 0
    for fragment in find_boxes(data, b"moof", b"traf"):
        (number,) = unpack_from(">I", first_box(fragment, b"tfhd"), 4)
        if number == track_number:
            total += sum(unpack_from(">I", run, 4)[0] for run in find_boxes(fragment, b"trun"))
    return total


def boxes(data: Bytes) -> Iterator[tuple[bytes, Bytes]]:
    """Yield (type, content) of the boxes of an ISO media file; stops at one that is cut off."""
    view, at = memoryview(data), 0
    while at + 8 <= len(view):
        size, kind = unpack_from(">I4s", view, at)
        head = 8
        if size == 1:
            if at + 16 > len(view):
                return
            (size,), head = unpack_from(">Q", view, at + 8), 16
        elif size == 0:
            size = len(view) - at
        if size < head:
            return
        yield kind, view[at + head : at + size]
        at += size


def find_boxes(data: Bytes, *path: bytes) -> Iterator[Bytes]:
    """Yield the content of each box at a path such as moov/trak."""
    for kind, body in boxes(data):
        if kind == path[0]:
            if len(path) == 1:
                yield body
            else:
                yield from find_boxes(body, *path[1:])


def first_box(data: Bytes, *path: bytes) -> Bytes:
    """Return the content of the first box at a path, empty if there is none."""
    return next(find_boxes(data, *path), b"")


def matroska_size(data: Bytes) -> MediaSize | None:
    """Return what the headers say of the first video track, or None if there is none."""
    scale_ns, duration, num_frames = 1_000_000, 0.0, 0
    track, video = NO_FIELDS, NO_FIELDS
    segments = [body for kind, body in _elements(memoryview(data)) if kind == SEGMENT]
    for kind, body in chain.from_iterable(map(_elements, segments)):
        if kind == INFO:
            info = dict(_elements(body))
            scale_ns = _whole(info, TIMECODE_SCALE) or scale_ns
            duration = _real(info.get(DURATION, memoryview(b"")))
        elif kind == TRACKS:
            for field, entry in _elements(body):
                if field == TRACK and not _whole(video, WIDTH):
                    track, video = _video_track(entry)
        elif kind in (SIMPLE_BLOCK, BLOCK) and body:
            # A block begins with the number of its track.
            number, _ = _number(body, 0, keep_marker=False)
            num_frames += number == _whole(track, TRACK_NUMBER)
    if not _whole(video, WIDTH):
        return None
    seconds = duration * scale_ns / 1e9
    rate = _rate(_whole(track, DEFAULT_DURATION))
    return MediaSize(
        width=_whole(video, WIDTH),
        height=_whole(video, HEIGHT),
        num_frames=num_frames,
        fps=rate or (num_frames / seconds if seconds else 0.0),
        duration_s=seconds,
    )


def _video_track(entry: memoryview) -> tuple[Fields, Fields]:
    """Return the fields of a track and of what it says of its video; none of another track."""
    track = dict(_elements(entry))
    if _whole(track, TRACK_TYPE) != IS_VIDEO:
        return NO_FIELDS, NO_FIELDS
    return track, dict(_elements(track.get(VIDEO, memoryview(b""))))


def _rate(frame_ns: int) -> float:
    """Return the frames a second that whole nanoseconds a frame stand for, as FFmpeg does.

    30 a second are written as 33,333,333 ns, which would be 30.0000003: with numerators up to
    30,000 the nearest fraction is 30 / 1, and that of 41,708,333 ns is 24,000 / 1,001.
    """
    seconds = Fraction(frame_ns, 10**9).limit_denominator(MAX_RATE)
    return float(1 / seconds) if seconds else 0.0


def _elements(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield (id, body); clusters and block groups are entered, so that their blocks come flat."""
    at = 0
    while at < len(data):
        kind, at = _number(data, at, keep_marker=True)
        size, at = _number(data, at, keep_marker=False)
        end = len(data) if size == UNKNOWN else at + size
        if kind not in ENTERED:
            yield kind, data[at:end]
            at = end


def _number(data: memoryview, at: int, *, keep_marker: bool) -> tuple[int, int]:
    """Return the number at `at` and where it ends; ids keep the bit that tells their length.

    0x40 0x02 is two bytes long, as 0x40 begins with one zero bit; as a size it is 2, as an id
    0x4002.
    """
    first = data[at]
    length = 9 - first.bit_length()
    if length > 8 or at + length > len(data):
        raise IndexError(f"no element at byte {at}")
    value = int.from_bytes(data[at : at + length], "big")
    if not keep_marker:
        value &= (1 << 7 * length) - 1
        if value == (1 << 7 * length) - 1:
            value = UNKNOWN
    return value, at + length


def _whole(fields: Fields, kind: int) -> int:
    return int.from_bytes(fields.get(kind, memoryview(b""))[:8], "big")


def _real(value: memoryview) -> float:
    if len(value) not in (4, 8):
        return 0.0
    return float(unpack(">f" if len(value) == 4 else ">d", value)[0])


def _avi(data: Bytes) -> MediaSize | None:
    rate = scale = num_frames = 0
    for kind, body in riff_chunks(data, 12):
        if kind != b"LIST" or body[:4] != b"hdrl":
            continue
        for inner, stream in riff_chunks(body, 4):
            if inner != b"LIST":
                continue
            parts = dict(riff_chunks(stream, 4))
            header, format = parts.get(b"strh", b""), parts.get(b"strf", b"")
            if header[:4] == b"vids":
                scale, rate, _, num_frames = unpack_from("<IIII", header, 20)
                width, height = unpack_from("<ii", format, 4)
                fps = rate / scale if scale else 0.0
                return MediaSize(
                    width=width,
                    height=abs(height),
                    num_frames=num_frames,
                    fps=fps,
                    duration_s=num_frames / fps if fps else 0.0,
                )
    return None


def riff_chunks(data: Bytes, at: int) -> Iterator[tuple[bytes, Bytes]]:
    """Yield (type, content) of the chunks of AVI, WebP or WAV from `at` on."""
    view = memoryview(data)
    while at + 8 <= len(view):
        kind, size = unpack_from("<4sI", view, at)
        yield kind, view[at + 8 : at + 8 + size]
        at += 8 + size + (size & 1)  # odd ones are padded


@contextmanager
def broken_as(reason: str) -> Iterator[None]:
    """Turn what FFmpeg and PyAV complain of into a `SampleError`; errors of reading pass."""
    av = need("av", extra="video")
    with foreign(reason):
        try:
            yield
        except av.FFmpegError as error:  # has a number, but not one of a disk
            raise SampleError(reason, f"{error.strerror}") from error


def open_container(file: Any, read_bytes: int = LOCAL_READ_BYTES) -> Any:
    """Return the PyAV container that a file object holds; what is none is a `SampleError`.

    It must be closed. `read_bytes` is how much is asked of the file at once.
    """
    with broken_as("not a video"):
        return need("av", extra="video").open(
            file,
            # The second is for the decoders with which FFmpeg looks at a first frame.
            options={"format_whitelist": DEMUXERS, "max_pixels": str(MAX_PIXELS)},
            buffer_size=read_bytes,
            metadata_errors="replace",
        )


def _ask_ffmpeg(data: Bytes) -> MediaSize | None:
    try:
        with broken_as("not a video"), open_container(io.BytesIO(data)) as container:
            if not container.streams.video:
                return None
            stream = container.streams.video[0]
            return MediaSize(
                width=stream.width,
                height=stream.height,
                num_frames=stream.frames,
                fps=float(stream.average_rate or 0),
                duration_s=(container.duration or 0) / 1_000_000,
            )
    except SampleError:
        return None


READERS: dict[str, Callable[[Bytes], MediaSize | None]] = {
    "mp4": iso_size,
    "mov": iso_size,
    "mkv": matroska_size,
    "webm": matroska_size,
    "avi": _avi,
}
