"""Names and headers of members: those of other tools, and none that a reader would misread."""

from __future__ import annotations

import io
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tars import exts, keys

from shardmill.errors import SampleError
from shardmill.shards.tar.header import (
    BLOCK,
    END_OF_TAR,
    Override,
    check_ext,
    check_key,
    has_right_sum,
    member_header,
    member_name,
    padded,
    padding,
    parse_number,
    pax_override,
    split_name,
)


@given(keys, exts)
def test_a_dotted_name_splits_into_what_it_was_made_of(key: str, ext: str) -> None:
    assert split_name(member_name(key, ext)) == (key, ext)


@given(keys, exts)
def test_dashed_names_differ_only_for_numbered_media(key: str, ext: str) -> None:
    dashed = member_name(key, ext, "dashed")
    assert dashed == (f"{key}-{ext}" if "." in ext else f"{key}.{ext}")


@pytest.mark.parametrize(
    "key",
    ["", "a.b", "/a", "a/", "a//b", "../a", "a/..", "a\nb", "a\0", "x" * 201, "é" * 101, "a\udc80"]
    + ["____", "__notes__", "__notes__/a"],
)
def test_a_bad_key_is_a_sample_error(key: str) -> None:
    with pytest.raises(SampleError):
        check_key(key)


@pytest.mark.parametrize(
    "key", ["a", "a/b/c", "x" * 200, "é" * 100, "a b", "0-1", "__a", "a/__b__"]
)
def test_a_good_key_passes(key: str) -> None:
    check_key(key)


@pytest.mark.parametrize("ext", ["", ".", ".jpg", "jpg.", "a..b", "a/b", "a\tb", "x" * 101])
def test_a_bad_extension_is_a_sample_error(ext: str) -> None:
    with pytest.raises(SampleError):
        check_ext(ext)


@given(st.text(max_size=20))
def test_split_never_loses_a_character(name: str) -> None:
    key, ext = split_name(name)
    assert name in (key, f"{key}.{ext}")
    assert "/" not in ext


def read_back(header: bytes) -> tarfile.TarInfo:
    """Let tarfile parse the header blocks of one member."""

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


@given(st.integers(0, (1 << 60) - 1))
def test_numbers_as_tarfile_writes_them(number: int) -> None:
    field = tarfile.itn(number, 12, tarfile.GNU_FORMAT)  # type: ignore[attr-defined]
    assert parse_number(field) == number


@pytest.mark.parametrize("field", [b"  17 \0", b"0017\0\0", b"17", b"\0" * 12 + b""])
def test_numbers_may_be_padded(field: bytes) -> None:
    assert parse_number(field) in (0o17, 0)


@pytest.mark.parametrize("field", [b"-1\0", b"0x1f", b"1_0", b"19", b"\xff" * 12, b"a"])
def test_what_is_no_number_is_refused(field: bytes) -> None:
    with pytest.raises(ValueError, match=r"number|below|base 8"):
        parse_number(field)


@given(st.binary(min_size=100, max_size=100), st.integers(0, 511), st.integers(1, 255))
def test_a_sum_is_right_until_a_byte_changes(name: bytes, at: int, change: int) -> None:
    header = bytearray(tarfile.TarInfo("x").tobuf(tarfile.USTAR_FORMAT))
    header[:100] = name
    header[148:156] = b"        "
    header[148:156] = b"%06o\0 " % sum(header)
    assert has_right_sum(bytes(header))
    header[at] = (header[at] + change) % 256
    changed_end_of_sum = 154 <= at < 156
    assert not has_right_sum(bytes(header)) or changed_end_of_sum


def test_sums_of_signed_bytes_are_right_too() -> None:
    header = bytearray(tarfile.TarInfo("é").tobuf(tarfile.USTAR_FORMAT))
    header[148:156] = b"        "
    signed = sum(byte - 256 if byte > 127 else byte for byte in header)
    header[148:156] = b"%06o\0 " % signed
    assert has_right_sum(bytes(header))


def record(key: str, value: str) -> bytes:
    """Return a PAX record with its right length."""
    body = f" {key}={value}\n".encode()
    length = len(body) + 1
    while len(str(length)) + len(body) != length:
        length += 1
    return str(length).encode() + body


@given(st.text(min_size=1, max_size=200).filter(lambda t: "\0" not in t), st.integers(0, 1 << 50))
def test_pax_path_and_size_are_found_among_others(path: str, size: int) -> None:
    path = path.encode("utf-8", "ignore").decode()
    content = record("mtime", "1.5") + record("path", path) + record("size", str(size))
    assert pax_override(content, Override()) == Override(path, size)


def test_pax_without_path_or_size_changes_nothing() -> None:
    before = Override("a", 5)
    assert pax_override(record("mtime", "1700000000.25"), before) is before


@pytest.mark.parametrize(
    "content",
    [
        b"99 path=a\n",
        b"x path=a\n",
        b"10 path=a",
        b"0 path=a\n",
        b"9 size=-1\n",
        b"9 size=1 \n",
        b"9 path=a\n8 \n",
        record("GNU.sparse.major", "1"),
        record("size", "9" * 30),
    ],
)
def test_broken_pax_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"PAX|sparse"):
        pax_override(content, Override())
