"""The walk: it finds what Python's tarfile finds, and answers damage with our errors only."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tars import contents, samples, tar_bytes

from shardmill.errors import FormatError
from shardmill.shards.tar import read as tarscan
from shardmill.shards.tar.header import BLOCK, END_OF_TAR, ustar_header
from shardmill.shards.tar.read import TarWalk, walk_tar
from shardmill.storage.blob import open_blob

FORMATS = {
    "ustar": tarfile.USTAR_FORMAT,
    "gnu": tarfile.GNU_FORMAT,
    "pax": tarfile.PAX_FORMAT,
}


@pytest.fixture(params=["compiled", "python"])
def scanner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run a test with the compiled scanner and without it."""
    if request.param == "python":
        monkeypatch.setattr(tarscan, "_tarscan", None)
    elif tarscan._tarscan is None:
        pytest.skip("the compiled scanner is not built")
    yield


def walk_bytes(data: bytes) -> TarWalk:
    """Walk a tar that is given as bytes."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        blob = open_blob(file.name)
        try:
            return walk_tar(blob)
        finally:
            blob.close()


def found(data: bytes) -> list[tuple[str, bytes]]:
    """Return (name, content) of what the walk finds."""
    walk = walk_bytes(data)
    places = zip(walk.names, walk.offsets, walk.sizes, strict=True)
    return [(name, data[offset : offset + size]) for name, offset, size in places]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.usefixtures("scanner")
@given(
    st.lists(st.tuples(st.text("ab/é.-", min_size=1, max_size=220), contents), max_size=6).map(
        lambda pairs: [(n, c) for n, c in pairs if n.strip("/") == n]
    )
)
def test_it_finds_what_tarfile_wrote(format: str, named: list[tuple[str, bytes]]) -> None:
    try:
        data = tar_bytes(named, FORMATS[format], mtime=1700000000.5 if format == "pax" else 5)
    except ValueError:  # ustar cannot hold the name
        return
    assert found(data) == named


@pytest.mark.usefixtures("scanner")
@pytest.mark.parametrize("flags", [[], ["--format=posix"], ["--format=gnu"], ["--format=v7"]])
def test_it_finds_what_tar_wrote(tmp_path: Path, flags: list[str]) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    names = ["a.jpg", "b.json", "c é.txt", "n" * 80 + ".jpg"]
    for name in names:
        (folder / name).write_bytes(name.encode() * 50)
    (folder / "link.jpg").symlink_to("a.jpg")
    command = ["tar", *flags, "--sort=name", "-cf", str(tmp_path / "x.tar"), "-C", str(folder), "."]
    if shutil.which("tar") is None:
        pytest.skip("no tar here")
    subprocess.run(command, check=True)
    data = (tmp_path / "x.tar").read_bytes()
    contents = [*((f"./{name}", name.encode() * 50) for name in names), ("./link.jpg", b"")]
    assert found(data) == sorted(contents)
    walk = walk_bytes(data)
    assert walk.passed == {"folder": 1}
    ((number, link),) = walk.links.items()
    assert walk.names[number] == "./link.jpg"
    assert "is a link to 'a.jpg': write the tar with --dereference" in link


@pytest.mark.usefixtures("scanner")
@pytest.mark.parametrize("format", FORMATS)
def test_a_hard_link_says_what_it_names(format: str) -> None:
    target = "d/" + "t" * (40 if format == "ustar" else 150) + ".jpg"
    link = tarfile.TarInfo("b.jpg")
    link.type, link.linkname = tarfile.LNKTYPE, target
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=FORMATS[format]) as tar:
        tar.addfile(tarfile.TarInfo(target))
        tar.addfile(link)
        tar.addfile(tarfile.TarInfo("c.jpg"))
    walk = walk_bytes(out.getvalue())
    assert walk.names == [target, "b.jpg", "c.jpg"]
    assert list(walk.links) == [1]
    assert f"is a link to {target!r}: write the tar with --hard-dereference" in walk.links[1]


def test_a_sparse_file_of_gnu_tar_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "hole").open("wb") as file:
        file.truncate(1 << 20)
        file.seek(1 << 20)
        file.write(b"end")
    for format in ("gnu", "posix"):
        tar = tmp_path / f"{format}.tar"
        command = ["tar", "--sparse", f"--format={format}", "-cf", str(tar)]
        subprocess.run([*command, "-C", str(tmp_path), "hole"], check=True)
        with pytest.raises(FormatError, match="sparse"):
            walk_bytes(tar.read_bytes())


@pytest.mark.usefixtures("scanner")
def test_starts_are_the_first_headers_of_members() -> None:
    data = tar_bytes([("a", b"1"), ("b", b"22")], tarfile.PAX_FORMAT, mtime=0.5)
    walk = walk_bytes(data)
    assert walk.starts == [0, 4 * BLOCK]
    assert walk.offsets == [3 * BLOCK, 7 * BLOCK]
    assert walk.end == 8 * BLOCK


@pytest.mark.usefixtures("scanner")
def test_a_global_path_names_what_follows() -> None:
    out = io.BytesIO()
    with tarfile.open(
        fileobj=out, mode="w", format=tarfile.PAX_FORMAT, pax_headers={"path": "all.jpg"}
    ) as tar:
        tar.addfile(tarfile.TarInfo("a.jpg"))
    assert walk_bytes(out.getvalue()).names == ["all.jpg"]


@pytest.mark.usefixtures("scanner")
@pytest.mark.parametrize("kind", [b"1", b"2"])
def test_nothing_follows_a_link(kind: bytes) -> None:
    # A link may state the size of what it points at.
    data = ustar_header(b"x", b"", 700, kind) + ustar_header(b"y.jpg", b"", 0, b"0") + END_OF_TAR
    walk = walk_bytes(data)
    assert (walk.names, walk.sizes, list(walk.links)) == (["x", "y.jpg"], [0, 0], [0])


@pytest.mark.usefixtures("scanner")
@pytest.mark.parametrize("kind", [b"3", b"4", b"5", b"6"])
def test_what_is_no_file_is_passed_over_and_counted(kind: bytes) -> None:
    data = ustar_header(b"x", b"", 700, kind) + ustar_header(b"y.jpg", b"", 0, b"0") + END_OF_TAR
    walk = walk_bytes(data)
    assert walk.names == ["y.jpg"]
    assert walk.passed.total() == 1


@pytest.mark.usefixtures("scanner")
def test_empty_tars_and_empty_members_are_fine() -> None:
    assert walk_bytes(END_OF_TAR).names == []
    assert walk_bytes(bytes(10240)).names == []
    assert found(tar_bytes([("a.txt", b""), ("b.txt", b"")])) == [("a.txt", b""), ("b.txt", b"")]


@pytest.mark.usefixtures("scanner")
@pytest.mark.parametrize("size", [1, 512, 1 << 32, (8 << 30) - 1])
def test_a_size_beyond_the_file_is_refused(size: int) -> None:
    with pytest.raises(FormatError, match="cut off") as caught:
        walk_bytes(ustar_header(b"big.jpg", b"", size, b"0"))
    assert (caught.value.member, caught.value.offset) == ("big.jpg", 0)


@pytest.mark.parametrize("size", [b"\x80" + bytes(3) + b"\x7f" * 8, b"\xff" * 12])
def test_absurd_binary_sizes_are_refused(size: bytes) -> None:
    header = bytearray(ustar_header(b"big.jpg", b"", 0, b"0"))
    header[124:136] = size
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    with pytest.raises(FormatError, match=r"big\.jpg"):
        walk_bytes(bytes(header) + END_OF_TAR)


def test_an_absurd_extended_header_is_refused() -> None:
    for size in (2 << 20, 1 << 32):
        with pytest.raises(FormatError, match="extended header"):
            walk_bytes(ustar_header(b"x", b"", size, b"x") + bytes(4 << 20))


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "without the zero blocks"),
        (b"\x1f\x8b" + bytes(600), "gzipped"),
        (b"GIF89a" + bytes(600), "not a tar"),
        (b"x" * 100, "only 100 bytes"),
        (END_OF_TAR + tar_bytes([("a", b"1")]), "several tars"),
        (bytes(3 << 20), "several tars"),
        (ustar_header(b"x", b"", 0, b"x") + END_OF_TAR, "between"),
        (ustar_header(b"x", b"", 0, b"M") + END_OF_TAR, "volume"),
    ],
)
def test_what_is_no_tar_is_refused_with_the_reason(data: bytes, problem: str) -> None:
    with pytest.raises(FormatError, match=problem):
        walk_bytes(data)


@pytest.mark.usefixtures("scanner")
@pytest.mark.parametrize("format", FORMATS)
def test_a_tar_cut_anywhere_is_refused_or_whole(format: str) -> None:
    named = [
        ("a.json", b"{}"),
        ("a.jpg", b"x" * 1300),
        ("d" * 60 + "/" + "n" * 60, b""),
        ("b.jpg", b"y"),
    ]
    data = tar_bytes(named, FORMATS[format], mtime=0.5 if format == "pax" else 0)
    end = walk_bytes(data).end
    for cut in [*range(0, len(data), BLOCK), *range(1, len(data), 509)]:
        if cut >= end + BLOCK:  # one zero block is there: nothing is lost
            assert found(data[:cut]) == named
        else:
            with pytest.raises(FormatError) as caught:
                walk_bytes(data[:cut])
            assert caught.value.offset is not None
            assert caught.value.offset <= cut


@given(samples, st.lists(st.tuples(st.integers(0, 1 << 16), st.binary(min_size=1, max_size=8))))
def test_damage_gives_our_errors_only_and_both_scanners_agree(named: dict, damage: list) -> None:
    data = bytearray(
        tar_bytes(
            [(f"{key}.{ext}", c) for key, members in named.items() for ext, c in members.items()],
            tarfile.PAX_FORMAT,
            mtime=0.5,
        )
    )
    for at, patch in damage:
        at %= len(data)
        data[at : at + len(patch)] = patch[: len(data) - at]
    assert outcome(bytes(data), compiled=True) == outcome(bytes(data), compiled=False)


def outcome(data: bytes, *, compiled: bool) -> object:
    """Return what a walk finds, or how it fails."""
    with pytest.MonkeyPatch.context() as patch:
        if not compiled:
            patch.setattr(tarscan, "_tarscan", None)
        try:
            walk = walk_bytes(data)
            return (
                walk.names,
                walk.starts,
                walk.offsets,
                walk.sizes,
                walk.links,
                walk.passed,
                walk.end,
            )
        except FormatError as error:
            return error.problem, error.member, error.offset
