"""Headers: Python's tarfile reads back the name and the size that were written."""

from __future__ import annotations

import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmill.shards.tar.header import BLOCK, END_OF_TAR, member_header, padded, padding


def read_back(header: bytes) -> tarfile.TarInfo:
    """Let tarfile parse the header blocks of one member."""
    import io

    with tarfile.open(fileobj=io.BytesIO(header + END_OF_TAR)) as tar:
        member = tar.next()
    assert member is not None
    return member


@given(st.text("ab/é漢.-", min_size=1, max_size=300).filter(lambda n: n.strip("/") == n))
def test_any_name_is_read_back(name: str) -> None:
    header = member_header(name.encode(), 0)
    assert len(header) % BLOCK == 0
    assert read_back(header).name == name


@pytest.mark.parametrize("size", [0, 1, 511, 512, (8 << 30) - 1, 8 << 30, 1 << 40])
@pytest.mark.parametrize("name", ["a.jpg", "d" * 90 + "/" + "n" * 90, "n" * 150])
def test_any_size_is_read_back(name: str, size: int) -> None:
    found = read_back(member_header(name.encode(), size))
    assert (found.name, found.size) == (name, size)


@pytest.mark.parametrize(
    ("name", "num_blocks"),
    [("n" * 100, 1), ("p" * 155 + "/" + "n" * 99, 1), ("n" * 101, 3), ("p" * 156 + "/n", 3)],
)
def test_pax_is_used_only_where_a_name_does_not_fit(name: str, num_blocks: int) -> None:
    assert len(member_header(name.encode(), 5)) == num_blocks * BLOCK


def test_headers_hold_no_time_and_no_owner() -> None:
    found = read_back(member_header(b"a.json", 3))
    assert (found.mtime, found.mode, found.uid, found.gid) == (0, 0o644, 0, 0)
    assert (found.uname, found.gname, found.type) == ("", "", tarfile.REGTYPE)


@given(st.integers(0, 5000))
def test_padding_fills_the_block(size: int) -> None:
    assert (size + len(padding(size))) % BLOCK == 0
    assert padded(size) == size + len(padding(size))
