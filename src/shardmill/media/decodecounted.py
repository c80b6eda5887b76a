"""Decodes chosen frames of a video whose frames can only be counted, from its beginning on.

AVI does not say when a frame is shown. Where frames look ahead (H.264, or DivX that packs two of
them into one packet), FFmpeg's timestamps are guesses, but what comes out of the decoder is in the
right order: the frame with number n is the one that n others came before.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shardmill.errors import SampleError
from shardmill.media.videofile import OpenVideo, read_packets
from shardmill.media.videotable import VideoTable
from shardmill.model.frames import FrameNumbers


def count_frames(
    video: OpenVideo, table: VideoTable, numbers: FrameNumbers
) -> Iterator[tuple[int, Any]]:
    """Yield (number, decoded frame) of each number once, in the order of time."""
    wanted = {table.first_number + number: number for number in numbers.tolist()}
    damaged = False
    for count, frame in enumerate(_all_frames(video)):
        damaged = is_damaged(frame, damaged)
        number = wanted.pop(count, None)
        if number is not None:
            if damaged:
                raise SampleError("broken video", f"frame {count} is damaged")
            yield number, frame
        if not wanted:
            return
    if wanted:
        raise SampleError("broken video", f"frame {min(wanted)} cannot be decoded")


def is_damaged(frame: Any, was_damaged: bool) -> bool:
    """Tell whether a frame is damaged, or may refer to one before it that was."""
    return bool(frame.is_corrupt or (was_damaged and not frame.key_frame))


def _all_frames(video: OpenVideo) -> Iterator[Any]:
    video.rewind()
    context = video.stream.codec_context
    for packet in read_packets(video):
        yield from context.decode(packet)
    yield from context.decode(None)
