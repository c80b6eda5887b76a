"""What kind of medium a file name promises; the bytes decide later whether it is true."""

from __future__ import annotations

from shardmill.model.sample import SegmentKind

MEDIA_KINDS: dict[str, SegmentKind] = {
    **dict.fromkeys(("jpg", "jpeg", "jfif", "png", "gif", "webp", "bmp"), "image"),
    **dict.fromkeys(("tif", "tiff", "avif"), "image"),
    **dict.fromkeys(("mp4", "m4v", "mov", "webm", "mkv", "avi", "mpg", "mpeg"), "video"),
    **dict.fromkeys(("ts", "flv", "wmv", "ogv"), "video"),
    **dict.fromkeys(("wav", "mp3", "flac", "ogg", "m4a", "opus"), "audio"),
}


def media_kind(name: str) -> SegmentKind | None:
    """Return the kind that the last suffix of a name says, or None."""
    return MEDIA_KINDS.get(name.rpartition(".")[2].lower())
