from __future__ import annotations

import base64
import errno
import io
import os
import socket
import tarfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import lmdb
import pytest
from make_media import image
from web_server import serving

from shardmill.errors import SampleError
from shardmill.model.sample import Origin
from shardmill.sources import fetch
from shardmill.sources.allowed import Allowed
from shardmill.sources.fetch import (
    MIN_MAPPED_BYTES,
    Fetcher,
    LmdbValues,
    TarMembers,
    describe,
    map_file,
)
from shardmill.sources.source import Row

PHOTO = image("PNG", 90, 70)


@pytest.fixture
def fetcher() -> Iterator[Fetcher]:
    with closing(Fetcher(1 << 20)) as found:
        yield found


@pytest.fixture
def row(tmp_path: Path) -> Row:
    (tmp_path / "media" / "sub").mkdir(parents=True)
    (tmp_path / "media" / "sub" / "a.png").write_bytes(PHOTO)
    (tmp_path / "media" / "empty.png").write_bytes(b"")
    (tmp_path / "secret.png").write_bytes(b"secret")
    return Row(
        key="k",
        origin=Origin(source="s", path="p", row=0),
        media={"0.png": PHOTO},
        media_dir=str(tmp_path / "media"),
    )


def test_media_come_in_many_ways(fetcher: Fetcher, row: Row) -> None:
    code = base64.b64encode(PHOTO).decode()
    assert len(code) > 256
    references: list[Any] = [
        PHOTO,
        bytearray(PHOTO),
        memoryview(PHOTO),
        {"bytes": PHOTO, "path": "gone.png"},
        {"bytes": None, "path": "sub/a.png"},
        {"url": f"data:image/png;base64,{code}"},
        f"data:image/png;base64,{code}",
        code,
        "sub/a.png",
        "./sub/../sub/a.png",
        f"{row.media_dir}/sub/a.png",
        f"file://{row.media_dir}/sub/a.png",
        "0.png",
    ]
    for reference in references:
        assert bytes(fetcher.fetch(reference, row)) == PHOTO, describe(reference)


@pytest.mark.parametrize(
    ("reference", "reason"),
    [
        (None, "missing field"),
        ("", "missing field"),
        (5, "missing field"),
        ({}, "missing field"),
        ({"bytes": None, "path": None}, "missing field"),
        (b"", "empty file"),
        ("empty.png", "empty file"),
        ("gone.png", "missing file"),
        ("sub/a.png/x", "missing file"),
        ("x" * 5000, "missing file"),
        ("nul\0.png", "missing file"),
        ("sub", "not a file"),
        ("../secret.png", "path not allowed"),
        ("sub/../../secret.png", "path not allowed"),
        ("..", "path not allowed"),
        ("../x.tar::a", "path not allowed"),
        ("data:image/png,abc", "bad data url"),
        ("data:image/png;base64,@@@", "bad base64"),
        ("gopher://x/a.png", "unknown scheme"),
        ("gopher://x/a.tar::b", "unknown scheme"),
        ("pipe:cat a.png", "unknown scheme"),
        ("gone.tar::a.png", "missing file"),
        ("gone.lmdb::a", "missing file"),
        (bytes(2 << 20), "too large"),
    ],
)
def test_what_cannot_be_fetched_has_a_reason(
    fetcher: Fetcher, row: Row, reference: Any, reason: str
) -> None:
    with pytest.raises(SampleError) as error:
        fetcher.fetch(reference, row)
    assert error.value.reason == reason


def test_media_on_the_web(fetcher: Fetcher, row: Row) -> None:
    files = {"a/b.png": PHOTO, "large.png": bytes(2 << 20), "empty.png": b""}
    with serving(files) as url:
        row = replace(row, allow=(url,))
        assert bytes(fetcher.fetch(f"{url}/a/b.png", row)) == PHOTO
        assert bytes(fetcher.fetch({"url": f"{url}/a/b.png"}, row)) == PHOTO
        for name, reason in (
            ("gone.png", "http 404"),
            ("large.png", "too large"),
            ("empty.png", "empty file"),
        ):
            with pytest.raises(SampleError) as error:
                fetcher.fetch(f"{url}/{name}", row)
            assert error.value.reason == reason


def test_a_large_file_is_not_read(fetcher: Fetcher, row: Row) -> None:
    path = Path(row.media_dir) / "large.png"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(
        SampleError, match=r"too large: .*1099511627776 bytes, the limit is 1048576"
    ):
        fetcher.fetch("large.png", row)


def test_a_pipe_that_never_ends_is_refused(fetcher: Fetcher, row: Row) -> None:
    os.mkfifo(f"{row.media_dir}/pipe.png")
    with closing(socket.socket(socket.AF_UNIX)) as here:
        here.bind(f"{row.media_dir}/socket.png")
    row = replace(row, allow=("/dev",))
    for name in ("pipe.png", "socket.png", "/dev/zero"):
        with pytest.raises(SampleError, match="not a file"):
            fetcher.fetch(name, row)


def test_permissions_are_a_reject_but_a_broken_disk_stops_the_unit(
    fetcher: Fetcher, row: Row, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(number: int) -> None:
        def refuse(*_: object) -> int:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "open", refuse)

    fail(errno.EACCES)
    with pytest.raises(SampleError, match=r"unreadable file: .*Permission denied"):
        fetcher.fetch("sub/a.png", row)
    fail(errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        fetcher.fetch("sub/a.png", row)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become someone else")
def test_a_file_that_may_not_be_read_is_a_reject(fetcher: Fetcher, row: Row) -> None:
    path = Path(row.media_dir) / "sub" / "a.png"
    path.chmod(0)
    child = os.fork()
    if child == 0:
        os.setuid(65534)
        try:
            fetcher.fetch(str(path), row)
        except SampleError as error:
            os._exit(0 if error.reason in ("unreadable file", "missing file") else 2)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("num_bytes", [1000, MIN_MAPPED_BYTES, MIN_MAPPED_BYTES + 7])
def test_a_large_file_is_mapped_and_reads_the_same(tmp_path: Path, num_bytes: int) -> None:
    content = os.urandom(num_bytes)
    (tmp_path / "clip.mp4").write_bytes(content)
    allowed = Allowed.below(str(tmp_path))
    found = map_file(str(tmp_path / "clip.mp4"), allowed, num_bytes)
    assert bytes(found) == content
    assert isinstance(found, memoryview) == (num_bytes >= MIN_MAPPED_BYTES)
    with pytest.raises(SampleError, match="too large"):
        map_file(str(tmp_path / "clip.mp4"), allowed, num_bytes - 1)


def write_tar(path: Path, members: dict[str, bytes]) -> str:
    with tarfile.open(path, "w") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return str(path)


def test_members_are_read_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    walks: list[str] = []
    walk_tar = fetch.walk_tar
    monkeypatch.setattr(fetch, "walk_tar", lambda blob: walks.append(blob.url) or walk_tar(blob))
    path = write_tar(tmp_path / "a.tar", {"x/1.jpg": b"one", "2.jpg": b"two", "0": b""})
    tars, allowed = TarMembers(), Allowed.below(str(tmp_path))
    assert tars.read(path, "2.jpg", allowed, 10) == b"two"
    assert tars.read(path, "x/1.jpg", allowed, 10) == b"one"
    assert tars.read(path, "0", allowed, 10) == b""
    assert walks == [path]
    with pytest.raises(SampleError, match=r"missing file: .*a\.tar has no member '3\.jpg'"):
        tars.read(path, "3.jpg", allowed, 10)
    with pytest.raises(SampleError, match="too large"):
        tars.read(path, "2.jpg", allowed, 2)
    tars.close()


def test_a_link_is_named_and_not_followed(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", {"1.jpg": b"one", "3.jpg": b"three"})
    with tarfile.open(path, "a") as tar:
        for name in ("2.jpg", "3.jpg"):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.LNKTYPE, "1.jpg"
            tar.addfile(link)
    tars, allowed = TarMembers(), Allowed.below(str(tmp_path))
    assert tars.read(path, "1.jpg", allowed, 10) == b"one"
    for name in ("2.jpg", "3.jpg"):
        with pytest.raises(SampleError, match=r"link: .*is a link to '1\.jpg'"):
            tars.read(path, name, allowed, 10)
    tars.close()


def test_only_a_few_tars_stay_open(tmp_path: Path) -> None:
    paths = [write_tar(tmp_path / f"{n}.tar", {"a": bytes([n])}) for n in range(20)]
    tars, allowed = TarMembers(), Allowed.below(str(tmp_path))
    for _ in range(2):
        assert [tars.read(path, "a", allowed, 10) for path in paths] == [
            bytes([n]) for n in range(20)
        ]
    assert len(tars.opened) == fetch.MAX_OPEN
    tars.close()


def test_a_broken_tar_rejects_each_of_its_samples(tmp_path: Path) -> None:
    path = tmp_path / "bad.tar"
    path.write_bytes(b"nonsense" * 1000)
    tars, allowed = TarMembers(), Allowed.below(str(tmp_path))
    for _ in range(3):
        with pytest.raises(SampleError, match=r"unreadable tar: .*bad\.tar, at byte 0"):
            tars.read(str(path), "a", allowed, 10)
    tars.close()


@pytest.mark.parametrize("subdir", [True, False])
def test_values_are_read_by_key(tmp_path: Path, subdir: bool) -> None:
    path = str(tmp_path / "a.lmdb")
    database = lmdb.open(path, subdir=subdir, map_size=1 << 20)
    with database.begin(write=True) as transaction:
        transaction.put(b"key/\xc3\xa9", b"value")
    database.close()
    values, allowed = LmdbValues(), Allowed.below(str(tmp_path))
    assert values.read(path, "key/é", allowed) == b"value"
    with pytest.raises(SampleError, match="has no key 'other'"):
        values.read(path, "other", allowed)
    with pytest.raises(SampleError, match=r"missing file|unreadable database") as error:
        values.read(path, "x" * 5000, allowed)
    assert len(str(error.value)) < 1000
    values.close()


def test_what_is_no_database_is_a_reject(tmp_path: Path) -> None:
    path, allowed = tmp_path / "a.lmdb", Allowed.below(str(tmp_path))
    path.write_bytes(b"nonsense" * 1000)
    with pytest.raises(SampleError, match="unreadable database"):
        LmdbValues().read(str(path), "a", allowed)
    with pytest.raises(SampleError, match="missing file"):
        LmdbValues().read(str(tmp_path / "gone.lmdb"), "a", allowed)


def test_a_database_that_was_cut_short_is_a_reject_not_the_end_of_the_process(
    tmp_path: Path,
) -> None:
    path, allowed = tmp_path / "a.lmdb", Allowed.below(str(tmp_path))
    database = lmdb.open(str(path), subdir=False, map_size=1 << 22)
    with database.begin(write=True) as transaction:
        for number in range(100):
            transaction.put(f"{number:03d}".encode(), bytes(10_000))
    database.close()
    content = path.read_bytes()
    for size in (9_000, len(content) // 2, len(content) - 4096):
        path.write_bytes(content[:size])
        with pytest.raises(SampleError, match=rf"unreadable database: .*a\.lmdb.*{size} bytes of"):
            LmdbValues().read(str(path), "099", allowed)
