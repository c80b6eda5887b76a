"""Blobs: the same bytes from a file, a web server and an S3 store; tars are read in place."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers import web_server
from tars import tar_bytes

from shardmill.errors import FormatError
from shardmill.shards.samples import open_foreign
from shardmill.storage import objects
from shardmill.storage.blob import Blob, LocalBlob, open_blob

CONTENT = bytes(range(256)) * 9000
TAR = tar_bytes([(f"{i:04d}.{ext}", b"%d" % i * 900) for i in range(300) for ext in ("jpg", "txt")])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a file and a tar."""
    folder = tmp_path_factory.mktemp("served")
    (folder / "data.bin").write_bytes(CONTENT)
    (folder / "x.tar").write_bytes(TAR)
    return folder


@pytest.fixture(scope="module")
def web(folder: Path) -> Iterator[str]:
    """Serve the folder over http."""
    with web_server(folder) as url:
        yield url


@pytest.fixture
def s3(folder: Path, store_url: str) -> str:
    """Put the folder into a bucket of a real S3 store."""
    for path in folder.iterdir():
        objects.put_file(f"{store_url}/deep/{path.name}", path)
    return f"{store_url}/deep"


@pytest.fixture(params=["file", "web", "s3"])
def root(request: pytest.FixtureRequest, folder: Path) -> str:
    """Return where the folder is served."""
    return str(folder) if request.param == "file" else request.getfixturevalue(request.param)


def test_the_same_bytes_everywhere(root: str) -> None:
    blob = open_blob(f"{root}/data.bin")
    assert blob.num_bytes == len(CONTENT)
    assert blob.read(0, 10) == CONTENT[:10]
    assert blob.read(len(CONTENT) - 3, 3) == CONTENT[-3:]
    assert blob.read(5, 0) == b""
    ranges = [(700, 300), (0, 5), (0, 0), (1_000_000, 70_000), (1005, 9)]
    assert [bytes(v) for v in blob.view_all(ranges)] == [CONTENT[o : o + n] for o, n in ranges]
    blob.prefetch([(0, 100)])
    blob.close()


def test_reading_beyond_the_end_names_the_place(root: str) -> None:
    blob = open_blob(f"{root}/data.bin")
    for ask in (lambda b: b.read(len(CONTENT) - 5, 10), lambda b: b.view_all([(1 << 40, 1)])):
        with pytest.raises(FormatError, match=r"data\.bin"):
            ask(blob)


def test_what_is_absent_is_named(root: str) -> None:
    with pytest.raises(FormatError, match=r"absent\.tar"):
        open_blob(f"{root}/absent.tar")


def test_a_tar_is_read_in_place(root: str) -> None:
    shard, grouped = open_foreign(f"{root}/x.tar")
    assert (len(shard), grouped.bad) == (300, [])
    number = shard.find("0123")
    assert number == 123
    assert {ext: bytes(view) for ext, view in shard.raw(123).items()} == {
        "jpg": b"123" * 900,
        "txt": b"123" * 900,
    }
    raws = [shard.raw(number) for number in (299, 0, 7)]
    assert [bytes(raw["jpg"][:3]) for raw in raws] == [b"299", b"000", b"777"]
    shard.close()


class Counting:
    """A blob that counts how many reads it takes."""

    def __init__(self, blob: Blob) -> None:
        self.blob, self.num_reads, self.url = blob, 0, blob.url
        self.num_bytes, self.window = blob.num_bytes, blob.window

    def read(self, offset: int, length: int) -> bytes:
        self.num_reads += 1
        return self.blob.read(offset, length)


def test_a_remote_walk_asks_for_headers_of_many_members_at_once(web: str) -> None:
    from shardmill.shards.tar.read import walk_tar

    counting = Counting(open_blob(f"{web}/x.tar"))
    assert len(walk_tar(counting).names) == 600  # type: ignore[arg-type]
    assert counting.num_reads <= 2 + len(TAR) // (1 << 20) + 1


def test_a_file_without_permission_is_named(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    path = tmp_path / "x"
    path.touch(0o000)
    with pytest.raises(FormatError, match="Permission denied"):
        open_blob(str(path))


def test_views_outlive_the_blob(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"hello")
    blob = LocalBlob(str(tmp_path / "x"))
    (view,) = blob.view_all([(1, 3)])
    blob.close()
    assert bytes(view) == b"ell"


def test_an_empty_file_can_be_mapped(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    assert bytes(LocalBlob(str(tmp_path / "x")).mapped()) == b""


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.tar")
    with pytest.raises(FormatError, match=r"a\.tar: cannot be opened: it is no regular file"):
        open_blob(str(tmp_path / "a.tar"))
