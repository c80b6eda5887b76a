from __future__ import annotations

import io
import tarfile
from pathlib import Path

import lmdb
import pytest

from shardmill.errors import SampleError
from shardmill.sources.media import containers
from shardmill.sources.media.containers import LmdbValues, TarMembers


def write_tar(path: Path, members: dict[str, bytes]) -> str:
    with tarfile.open(path, "w") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return str(path)


def test_members_are_read_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    walks: list[str] = []
    walk_tar = containers.walk_tar
    monkeypatch.setattr(
        containers, "walk_tar", lambda blob: walks.append(blob.url) or walk_tar(blob)
    )
    path = write_tar(tmp_path / "a.tar", {"x/1.jpg": b"one", "2.jpg": b"two", "0": b""})
    tars = TarMembers()
    assert tars.read(path, "2.jpg", 10) == b"two"
    assert tars.read(path, "x/1.jpg", 10) == b"one"
    assert tars.read(path, "0", 10) == b""
    assert walks == [path]
    with pytest.raises(SampleError, match=r"missing file: .*a\.tar has no member '3\.jpg'"):
        tars.read(path, "3.jpg", 10)
    with pytest.raises(SampleError, match="too large"):
        tars.read(path, "2.jpg", 2)
    tars.close()


def test_a_link_is_named_and_not_followed(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", {"1.jpg": b"one", "3.jpg": b"three"})
    with tarfile.open(path, "a") as tar:
        for name in ("2.jpg", "3.jpg"):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.LNKTYPE, "1.jpg"
            tar.addfile(link)
    tars = TarMembers()
    assert tars.read(path, "1.jpg", 10) == b"one"
    for name in ("2.jpg", "3.jpg"):
        with pytest.raises(SampleError, match=r"link: .*is a link to '1\.jpg'"):
            tars.read(path, name, 10)
    tars.close()


def test_only_a_few_tars_stay_open(tmp_path: Path) -> None:
    paths = [write_tar(tmp_path / f"{n}.tar", {"a": bytes([n])}) for n in range(20)]
    tars = TarMembers()
    for _ in range(2):
        assert [tars.read(path, "a", 10) for path in paths] == [bytes([n]) for n in range(20)]
    assert len(tars.tars) == containers.MAX_OPEN
    tars.close()


def test_a_broken_tar_rejects_each_of_its_samples(tmp_path: Path) -> None:
    path = tmp_path / "bad.tar"
    path.write_bytes(b"nonsense" * 1000)
    tars = TarMembers()
    for _ in range(3):
        with pytest.raises(SampleError, match=r"unreadable tar: .*bad\.tar, at byte 0"):
            tars.read(str(path), "a", 10)
    tars.close()


@pytest.mark.parametrize("subdir", [True, False])
def test_values_are_read_by_key(tmp_path: Path, subdir: bool) -> None:
    path = str(tmp_path / "a.lmdb")
    database = lmdb.open(path, subdir=subdir, map_size=1 << 20)
    with database.begin(write=True) as transaction:
        transaction.put(b"key/\xc3\xa9", b"value")
    database.close()
    values = LmdbValues()
    assert values.read(path, "key/é") == b"value"
    with pytest.raises(SampleError, match="has no key 'other'"):
        values.read(path, "other")
    with pytest.raises(SampleError, match=r"missing file|unreadable database") as error:
        values.read(path, "x" * 5000)
    assert len(str(error.value)) < 1000
    values.close()


def test_what_is_no_database_is_a_reject(tmp_path: Path) -> None:
    path = tmp_path / "a.lmdb"
    path.write_bytes(b"nonsense" * 1000)
    with pytest.raises(SampleError, match="unreadable database"):
        LmdbValues().read(str(path), "a")
    with pytest.raises(SampleError, match="missing file"):
        LmdbValues().read(str(tmp_path / "gone.lmdb"), "a")
