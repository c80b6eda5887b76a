from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from sample_folder import write_sample_folder

from shardmill.errors import NotFound
from shardmill.model.sample import Document, Sample, Segment
from shardmill.view import media
from shardmill.view.context import AccessPolicy, Context, Folder
from shardmill.view.media import (
    TYPES,
    UNKNOWN,
    find_medium,
    frame,
    known_width,
    media_type,
    thumbnail,
)

Image = pytest.importorskip("PIL.Image")


def test_types_come_from_bytes_and_none_of_them_runs() -> None:
    assert media_type(b"\x89PNG\r\n\x1a\n" + bytes(8)) == "image/png"
    for content in (b"<svg xmlns=", b"<html>", b"", b"%PDF-1.7", b"GIF"):
        assert media_type(content) == UNKNOWN
    assert all(kind.partition("/")[0] in ("image", "video", "audio") for kind in TYPES.values())
    assert "image/svg+xml" not in TYPES.values()


def test_parts_of_a_medium_are_parts_of_its_bytes(context: Context) -> None:
    place = find_medium(context.folder("chats"), 0, "jpg")
    whole = place.read()
    assert len(whole) == place.size
    assert place.read(10, 20) == whole[10:30]
    with pytest.raises(NotFound):
        find_medium(context.folder("chats"), 0, "mp4")


def test_thumbnails_keep_their_shape(context: Context) -> None:
    place = find_medium(context.folder("pairs"), 28, "jpg")
    small = thumbnail(place, 160)
    assert small is not None
    width, height = Image.open(io.BytesIO(small)).size
    assert width == 160 and abs(width / height - 640 / 427) < 0.02


def test_what_is_not_an_image_has_no_thumbnail(context: Context) -> None:
    assert thumbnail(find_medium(context.folder("chats"), 0, "json"), 160) is None
    assert frame(find_medium(context.folder("chats"), 0, "json"), 1.0, 160) is None


def test_frames_are_those_of_their_time(context: Context) -> None:
    place = find_medium(context.folder("chats"), 17, "mp4")
    shots = [frame(place, time_s, 160) for time_s in (0.5, 0.6, 3.0, 60.0)]
    means = [np.asarray(Image.open(io.BytesIO(shot))).mean(axis=(0, 1)) for shot in shots if shot]
    assert len(means) == 4
    assert np.abs(means[0] - means[1]).max() < 10 < np.abs(means[0] - means[2]).max()


def test_a_playlist_that_names_other_files_is_no_video(tmp_path: Path) -> None:
    playlist = b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n"
    concat = b"ffconcat version 1.0\nfile /etc/passwd\n"
    rows = []
    for number, content in enumerate((playlist, concat)):
        document = Document((Segment(kind="video", media="mp4"),))
        rows.append((Sample(key=f"k{number}", document=document, media={"mp4": content}), {}))
    folder = Folder(write_sample_folder(tmp_path / "in", [rows]), AccessPolicy.below(tmp_path))
    for number in range(2):
        place = find_medium(folder, number, "mp4")
        assert frame(place, 0.5, 160) is None
        assert media_type(place.read()) == UNKNOWN


def test_16_bits_are_shown_as_they_are_trained_on() -> None:
    grey = np.full((4, 4), 128 * 257, np.uint16)
    with Image.open(io.BytesIO(media._as_jpeg(Image.fromarray(grey), 96))) as small:
        assert abs(int(np.asarray(small)[0, 0, 0]) - 128) < 4  # not white


def test_few_widths_are_made() -> None:
    assert {known_width(width) for width in range(1, 5000)} == {64, 160, 320, 640}
