"""TarWriter: what is written is what others read, byte for byte the same each time."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from tars import read_tar, samples

from shardmill.errors import SampleError
from shardmill.shards.tar import write as tarwrite
from shardmill.shards.tar.header import Layout, member_name
from shardmill.shards.tar.index import IndexedTar
from shardmill.shards.tar.write import TarWriter


def write(path: Path, named: dict[str, dict[str, bytes]], layout: Layout = "dotted") -> list[int]:
    """Write samples and return the offset of each content."""
    with IndexedTar(path, path.with_suffix(".idx")) as tar:
        for key, members in named.items():
            tar.add(key, members.items(), layout)
    assert path.stat().st_size == tar.num_bytes
    return tar.rows.offset


@given(samples)
def test_tarfile_reads_what_was_written_where_it_was_said(named: dict) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.tar"
        offsets = write(path, named)
        expected = [
            (member_name(key, ext), content)
            for key, members in named.items()
            for ext, content in members.items()
        ]
        assert read_tar(path) == expected
        data = path.read_bytes()
        for offset, (_, content) in zip(offsets, expected, strict=True):
            assert data[offset : offset + len(content)] == content


def test_the_same_samples_give_the_same_bytes(tmp_path: Path) -> None:
    named = {"a": {"json": b"{}", "jpg": b"x" * 700}, "b/c": {"json": b"[]"}}
    write(tmp_path / "1.tar", named)
    write(tmp_path / "2.tar", named)
    assert (tmp_path / "1.tar").read_bytes() == (tmp_path / "2.tar").read_bytes()


def test_more_members_than_one_writev_takes(tmp_path: Path) -> None:
    named = {f"{i:05d}": {"json": b"%d" % i, "jpg": b"y" * (i % 700)} for i in range(1500)}
    write(tmp_path / "x.tar", named)
    assert len(read_tar(tmp_path / "x.tar")) == 3000


def test_one_sample_of_more_members_than_one_writev_takes(tmp_path: Path) -> None:
    frames = {f"{i}.jpg": b"%d" % i for i in range(2000)}
    write(tmp_path / "x.tar", {"a": frames})
    assert [content for _, content in read_tar(tmp_path / "x.tar")] == list(frames.values())


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.writev

    def stingy(fd: int, pieces: list) -> int:
        return os.write(fd, b"".join(pieces)[:777]) if pieces else real(fd, pieces)

    named = {f"{i}": {"json": b"z" * 300, "jpg": b"w" * 900} for i in range(30)}
    write(tmp_path / "1.tar", named)
    monkeypatch.setattr(tarwrite.os, "writev", stingy)
    write(tmp_path / "2.tar", named)
    assert (tmp_path / "1.tar").read_bytes() == (tmp_path / "2.tar").read_bytes()


def test_a_full_disk_names_the_file() -> None:
    tar = TarWriter(Path("/dev/full"))
    tar.add("a", [("json", b"{}")])
    with pytest.raises(OSError, match="/dev/full") as caught:
        tar.close()
    assert caught.value.errno == errno.ENOSPC


def test_a_key_twice_is_rejected_and_leaves_the_tar_whole(tmp_path: Path) -> None:
    with TarWriter(tmp_path / "x.tar") as tar:
        tar.add("a", [("json", b"1")])
        with pytest.raises(SampleError, match="duplicate key"):
            tar.add("a", [("jpg", b"2")])
        tar.add("b", [("json", b"3")])
    assert read_tar(tmp_path / "x.tar") == [("a.json", b"1"), ("b.json", b"3")]


@pytest.mark.parametrize("order", [("a", "a-0"), ("a-0", "a")])
def test_dashed_members_of_two_samples_cannot_meet(tmp_path: Path, order: tuple[str, str]) -> None:
    members = {"a": [("json", b"1"), ("0.jpg", b"2")], "a-0": [("json", b"3"), ("jpg", b"4")]}
    with TarWriter(tmp_path / "x.tar") as tar:
        tar.add(order[0], members[order[0]], "dashed")
        with pytest.raises(SampleError, match="duplicate member"):
            tar.add(order[1], members[order[1]], "dashed")


@pytest.mark.parametrize(
    "members", [[], [("json", b"1"), ("json", b"2")], [("js/on", b"")], [("", b"")]]
)
def test_bad_members_are_rejected(tmp_path: Path, members: list) -> None:
    with TarWriter(tmp_path / "x.tar") as tar, pytest.raises(SampleError):
        tar.add("a", members)
    assert read_tar(tmp_path / "x.tar") == []


def test_a_buffer_may_be_used_again_after_add(tmp_path: Path) -> None:
    buffer = bytearray(b"first")
    with TarWriter(tmp_path / "x.tar") as tar:
        tar.add("a", [("txt", memoryview(buffer))])
        buffer[:] = b"later"
    assert read_tar(tmp_path / "x.tar") == [("a.txt", b"first")]


def test_an_error_leaves_a_tar_without_an_end(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), TarWriter(tmp_path / "x.tar") as tar:
        tar.add("a", [("json", b"1")])
        raise RuntimeError
    assert (tmp_path / "x.tar").stat().st_size == 0
