from __future__ import annotations

from pathlib import Path

from make_media import clip

from shardmill.media.sizes import Medium, probe


def sides(medium: Medium) -> tuple[int, int]:
    return medium.size.width, medium.size.height


def test_a_turned_video_is_as_wide_as_it_is_shown(tmp_path: Path) -> None:
    content = bytearray(clip(tmp_path / "a.mp4", codec="libx264"))
    at = content.index(b"tkhd") + 4 + 40
    quarter = (0, 1 << 16, 0, -(1 << 16), 0)
    content[at : at + 20] = b"".join(n.to_bytes(4, "big", signed=True) for n in quarter)
    assert sides(probe("video", bytes(content))) == (48, 64)
