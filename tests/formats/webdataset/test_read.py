"""Tars of packed samples are read with their images; broken samples have a reason."""

from __future__ import annotations

from pathlib import Path

import pytest
import xxhash
from make_media import image
from tars import tar_bytes
from video_tars import packed_members, write_video_tar

from shardmill.errors import ConfigError, FormatError
from shardmill.formats.reader import Record
from shardmill.formats.webdataset.read import TarReader, is_packed_tar


def records(reader: TarReader) -> list[Record]:
    return [record for part in reader.parts() for record in reader.read(part.input)]


def test_packs_come_back_with_mask_and_images(tmp_path: Path) -> None:
    tar = write_video_tar(tmp_path / "shard_0-0-50.tar", [2, 0, 1])
    found = records(TarReader(files=(str(tar),)))
    assert [record.key for record in found] == [f"shard_0-0-50/0-{n}" for n in range(3)]
    assert [len(record.rows[0].media) for record in found] == [2, 0, 1]
    assert found[0].num_tokens == 1 + 2 * 258 + 3
    assert found[0].loss_mask()[-2:].all()
    assert found[0].loss_mask().sum() == 2
    wanted = [xxhash.xxh3_64_hexdigest(image("JPEG", 64, 48, seed=n)) for n in (0, 1)]
    assert list(found[0].media) == wanted


def test_more_than_nine_images_keep_their_order(tmp_path: Path) -> None:
    members = packed_members("k", 0, 12)
    tar = tmp_path / "x.tar"
    tar.write_bytes(tar_bytes([members[0], *sorted(members[1:])]))
    (record,) = records(TarReader(files=(str(tar),)))
    wanted = [xxhash.xxh3_64_hexdigest(content) for _, content in members[1:]]
    assert list(record.media) == wanted


def test_a_broken_sample_has_a_reason_and_the_others_are_read(tmp_path: Path) -> None:
    tar = tmp_path / "x.tar"
    good = packed_members("a", 0, 0)
    tar.write_bytes(tar_bytes([*good, ("b.json", b"{"), ("c.json", b'{"input_ids": [99999]}')]))
    found = records(TarReader(files=(str(tar),)))
    assert [record.problem and record.problem.reason for record in found] == [
        None,
        "not a packed sample",
        "id out of range",
    ]


def test_only_tars_of_packs_are_taken_for_such(tmp_path: Path) -> None:
    assert is_packed_tar(write_video_tar(tmp_path / "a.tar", [0]))
    (tmp_path / "b.tar").write_bytes(tar_bytes([("k.json", b'{"caption": "x"}')]))
    (tmp_path / "c.tar").write_bytes(tar_bytes([]))
    assert not is_packed_tar(tmp_path / "b.tar")
    assert not is_packed_tar(tmp_path / "c.tar")


def test_a_tar_that_changes_or_is_not_there_is_refused(tmp_path: Path) -> None:
    tar = write_video_tar(tmp_path / "a.tar", [0])
    reader = TarReader(files=(str(tmp_path),))
    (part,) = reader.parts()
    write_video_tar(tar, [0, 0])
    with pytest.raises(FormatError, match="changed after it was listed"):
        list(reader.read(part.input))
    tar.unlink()
    with pytest.raises(ConfigError, match=r"no \.tar files"):
        reader.tars()
