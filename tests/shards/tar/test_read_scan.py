"""The scan of plain runs: both scanners take the same members and stop at the same one."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
from tars import tar_bytes

from shardmill.shards.tar import read as tarscan
from shardmill.shards.tar.header import BLOCK, END_OF_TAR, ustar_header
from shardmill.shards.tar.read import TarWalk, scan_in_python, scan_plain
from shardmill.storage.blob import open_blob

PLAIN = tar_bytes([("a.jpg", b"x" * 700), ("b.json", b"{}")], tarfile.PAX_FORMAT, mtime=0.5)
PLAIN = PLAIN[: PLAIN.rindex(b"{}") + BLOCK]


def scan_both(path: Path, at: int = 0) -> tuple[int, TarWalk]:
    """Scan with both scanners, compare them, and return what they found."""
    if tarscan._tarscan is None:
        pytest.skip("the compiled scanner is not built")
    blob = open_blob(str(path))
    compiled, python = TarWalk(), TarWalk()
    stops = scan_plain(blob, at, compiled), scan_in_python(blob, at, python)
    blob.close()
    assert stops[0] == stops[1]
    assert compiled == python
    return stops[0], compiled


@pytest.mark.parametrize(
    ("name", "next_member"),
    [
        ("the end", END_OF_TAR),
        ("nothing", b""),
        ("a cut header", ustar_header(b"c", b"", 0, b"0")[:300]),
        ("a content that is cut off", ustar_header(b"c", b"", 600, b"0") + bytes(512)),
        ("a folder", ustar_header(b"c", b"", 0, b"5")),
        ("a GNU long name", ustar_header(b"c", b"", 5, b"L") + bytes(512)),
        ("a global header", ustar_header(b"c", b"", 0, b"g")),
        ("a PAX path", tar_bytes([("n" * 150, b"")], tarfile.PAX_FORMAT)),
        ("a PAX header without a member", ustar_header(b"c", b"", 0, b"x") + END_OF_TAR),
        ("a PAX header twice", ustar_header(b"c", b"", 0, b"x") * 2 + END_OF_TAR),
        ("a wrong sum", ustar_header(b"c", b"", 0, b"0")[:-1] + b"x"),
        ("a binary size", tar_bytes([("c", b"")]).replace(b"00000000000\0", b"\x80" + bytes(11))),
    ],
)
def test_the_run_ends_at(tmp_path: Path, name: str, next_member: bytes) -> None:
    path = tmp_path / "x.tar"
    path.write_bytes(PLAIN + next_member)
    stop, found = scan_both(path)
    assert stop == len(PLAIN)
    assert found.names == ["a.jpg", "b.json"]


def test_a_prefix_belongs_to_the_name(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    path.write_bytes(tar_bytes([("d" * 120 + "/" + "n" * 90, b"1")]))
    assert scan_both(path)[1].names == ["d" * 120 + "/" + "n" * 90]


def test_a_scan_may_begin_at_any_member(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    path.write_bytes(PLAIN + END_OF_TAR)
    _, found = scan_both(path)
    stop, rest = scan_both(path, found.starts[1])
    assert (stop, rest.names) == (len(PLAIN), ["b.json"])


def test_names_that_are_not_utf8_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    path.write_bytes(ustar_header(b"caf\xe9.jpg", b"", 0, b"0") + END_OF_TAR)
    assert scan_both(path)[1].names == ["caf\udce9.jpg"]
