"""Bytes of media: whole, in ranges, as thumbnails, and as single frames of a video.

The type of a medium comes from its first bytes. Only formats that a browser shows without running
anything get their type; everything else is served as plain bytes to be saved.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from shardmill.errors import FormatError, MissingExtra, NotFound, SampleError, foreign, need
from shardmill.media.containers import broken_as, video_format
from shardmill.media.header import audio_format, image_format, probe
from shardmill.media.image import from_16_bits
from shardmill.media.video import BlobPart, open_video
from shardmill.view.answers import Query
from shardmill.view.context import Context, Folder

TYPES = {
    "jpg": "image/jpeg",
    "png": "image/png",
    "gif": "image/gif",
    "webp": "image/webp",
    "avif": "image/avif",
    "bmp": "image/bmp",
    "mp4": "video/mp4",
    "mov": "video/mp4",
    "webm": "video/webm",
    "mkv": "video/webm",
    "ogv": "video/ogg",
    "mp3": "audio/mpeg",
    "wav": "audio/wav",
    "flac": "audio/flac",
}
UNKNOWN = "application/octet-stream"
HEAD_BYTES = 256
MAX_THUMB_BYTES = 64 << 20
MAX_THUMB_PIXELS = 1 << 26  # a small file can claim any size: decoded, this is 200 MB
WIDTHS = (64, 160, 320, 640)  # few, so that caching helps
QUALITY = 82


def show_medium(context: Context, query: Query) -> bytes | MediumBytes:
    """Return a thumbnail or a frame as a JPEG if one is asked for, else where the bytes lie.

    `w` asks for a thumbnail of this width, `ms` for the frame of a video at this time.
    """
    folder = context.folder(query.text("id"), "samples", "packs")
    place = find_medium(folder, query.number("n"), query.text("name"))
    width = query.number("w", 0, most=4096)
    if "ms" in query.values:
        shot = frame(place, query.number("ms") / 1000, known_width(width or 320))
        if shot is None:
            raise NotFound("this frame cannot be shown: is shardmill[video] installed?")
        return shot
    return (thumbnail(place, known_width(width)) if width else None) or place


@dataclass(frozen=True, slots=True)
class MediumBytes:
    """Where the bytes of a medium lie; the tar's `checksum` tells it from a later version."""

    folder: Folder
    shard: int
    offset: int
    size: int
    checksum: str = ""

    @property
    def media_type(self) -> str:
        """The type to declare, by the first bytes."""
        return media_type(self.read(0, min(HEAD_BYTES, self.size)))

    def read(self, start: int = 0, length: int | None = None) -> bytes:
        """Return some of the bytes, or all from `start` on."""
        wanted = self.size - start if length is None else length
        with self.folder.lock:
            blob = self.folder.sample_shard(self.shard).blob
            return blob.read(self.offset + start, wanted)


def find_medium(folder: Folder, number: int, name: str) -> MediumBytes:
    """Return where a medium of a sample lies."""
    with folder.lock:
        samples = folder.samples()
        if not 0 <= number < len(samples):
            raise NotFound(f"there is no sample {number}")
        shard, inside = samples.locate(number)
        files = samples.entries[shard].files
        checksum = files["tar"].checksum if "tar" in files else ""
        for member in folder.sample_shard(shard).index.members(inside):
            if member.ext == name:
                return MediumBytes(folder, shard, member.offset, member.size, checksum)
    raise NotFound(f"sample {number} has no medium {name!r}")


def media_type(head: bytes) -> str:
    """Return the type to declare for a medium that begins with these bytes."""
    try:
        ext = image_format(head) or video_format(head) or audio_format(head) or ""
    except (IndexError, ValueError):
        ext = ""
    return TYPES.get(ext, UNKNOWN)


@lru_cache(maxsize=1024)
def thumbnail(place: MediumBytes, width: int) -> bytes | None:
    """Return an image as a JPEG of at most this width, or None if it should be served as it is."""
    if place.size > MAX_THUMB_BYTES:
        return None
    content = place.read()
    try:
        size = probe("image", content).size
        if size.width * size.height > MAX_THUMB_PIXELS:
            return None
        with foreign("broken image"):
            image = need("PIL.Image", extra="image").open(io.BytesIO(content))
            image.draft("RGB", (width, width))  # a JPEG is decoded at 1/8 to 1/2 of its size
            turned = need("PIL.ImageOps", extra="image").exif_transpose(image)
            return _as_jpeg(turned, width)
    except (SampleError, MissingExtra):
        return None


@lru_cache(maxsize=256)
def frame(place: MediumBytes, time_s: float, width: int) -> bytes | None:
    """Return the frame of a video at a time, as a JPEG; None if it cannot be decoded."""
    image = _decode_frame(place, time_s)
    return None if image is None else _as_jpeg(image, width)


def known_width(width: int) -> int:
    """Return the next width in which thumbnails are made."""
    return next((known for known in WIDTHS if known >= width), WIDTHS[-1])


def _as_jpeg(image: Any, width: int) -> bytes:
    if image.mode == "I" or image.mode.startswith("I;16"):
        image = need("PIL.Image", extra="image").fromarray(from_16_bits(np.asarray(image)))
    image.thumbnail((width, 2 * width))
    if image.mode in ("RGBA", "LA", "P", "PA"):
        image = image.convert("RGBA")
        background = need("PIL.Image", extra="image").new("RGBA", image.size, "white")
        image = need("PIL.Image", extra="image").alpha_composite(background, image)
    file = io.BytesIO()
    image.convert("RGB").save(file, "JPEG", quality=QUALITY)
    return file.getvalue()


@dataclass(frozen=True, slots=True)
class _VideoBytes:
    """The bytes of a medium as a video reader asks for them."""

    place: MediumBytes
    window: int = 1 << 20

    def read(self, offset: int, length: int) -> bytes:
        """Return exactly these bytes."""
        return self.place.read(offset, length)


def _decode_frame(place: MediumBytes, time_s: float) -> Any:
    """Return the first frame at a time or after it, else the last one; None if there is none."""
    try:
        with open_video(BlobPart(_VideoBytes(place), 0, place.size)) as video:
            last = None
            with broken_as("broken video"):
                video.container.seek(int(time_s * 1_000_000), backward=True)
                for shown in video.container.decode(video.stream):
                    last = shown
                    if shown.time is None or shown.time >= time_s - 1e-3:
                        break
                return None if last is None else last.to_image()
    except (SampleError, FormatError, MissingExtra):
        return None
