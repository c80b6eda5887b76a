"""Walks find what tarfile finds, both scanners the same, and samples are those of webdataset."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import webdataset
from hypothesis import given
from hypothesis import strategies as st
from tars import contents, samples, tar_bytes, words

from shardmill.errors import FormatError
from shardmill.shards.tar import read as tarscan
from shardmill.shards.tar.header import BLOCK, END_OF_TAR, ustar_header
from shardmill.shards.tar.index import IndexRows
from shardmill.shards.tar.read import (
    Grouped,
    TarWalk,
    group_members,
    scan_in_python,
    scan_plain,
    walk_tar,
)
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


def group(names: list[str], *, interleaved: bool = True) -> Grouped:
    """Group members of one byte that lie a kilobyte apart."""
    places = [1024 * n for n in range(len(names))]
    walk = TarWalk(names, places, [at + 512 for at in places], [1] * len(names))
    return group_members(walk, interleaved=interleaved)


def as_dict(grouped: Grouped) -> dict[str, list[str]]:
    """Return the extensions of each sample by key."""
    spans = pairwise(grouped.first)
    found = {key: grouped.exts[start:end] for key, (start, end) in zip(grouped.keys, spans)}
    return {key: found[key] for key in found if key not in dict(grouped.bad)}


@given(samples)
def test_samples_are_grouped_again(named: dict) -> None:
    names = [f"{key}.{ext}" for key, members in named.items() for ext in members]
    assert as_dict(group(names, interleaved=False)) == {k: list(m) for k, m in named.items()}


# A key with an extension that begins with a digit after json would also be an interleaved one.
@given(st.lists(st.tuples(words, st.sampled_from(["jpg", "JPG", "txt", "0.png"])), max_size=8))
def test_stock_webdataset_sees_the_same_samples(pairs: list[tuple[str, str]]) -> None:
    named = [(f"{key}.{ext}", b"x") for key, ext in dict(pairs).items()]
    stream = [{"stream": io.BytesIO(tar_bytes(named)), "url": "x.tar"}]
    files = webdataset.tariterators.tar_file_expander(stream)
    theirs = {
        sample["__key__"]: [ext for ext in sample if not ext.startswith("__")]
        for sample in webdataset.tariterators.group_by_keys(files)
    }
    assert as_dict(group([name for name, _ in named], interleaved=False)) == theirs


def test_the_interleave_rule() -> None:
    names = ["a.json", "a-0.jpg", "a-1.jpg", "a-1-2.png", "b.json", "b.txt", "b-0.mp4", "c-0.jpg"]
    assert as_dict(group(names)) == {
        "a": ["json", "0.jpg", "1.jpg", "1-2.png"],
        "b": ["json", "txt", "0.mp4"],
        "c-0": ["jpg"],
    }
    assert len(as_dict(group(names, interleaved=False))) == 7


def test_a_json_begins_a_sample_of_its_own() -> None:
    names = ["a.json", "a-0.json", "a-0.jpg", "a-0-1.jpg"]
    assert as_dict(group(names)) == {"a": ["json"], "a-0": ["json", "jpg", "1.jpg"]}


def test_a_sample_that_does_not_begin_with_json_takes_no_dashes() -> None:
    assert as_dict(group(["a.jpg", "a.json", "a-0.jpg"])) == {"a": ["jpg", "json"], "a-0": ["jpg"]}


def test_folders_dots_and_capitals() -> None:
    names = ["./d.1/a.b.JPG", "./d.1/a.json", "e/a.jpg"]
    assert as_dict(group(names)) == {"d.1/a": ["b.jpg", "json"], "e/a": ["jpg"]}


def test_what_has_no_key_or_extension_is_passed_over_and_counted() -> None:
    names = [
        "README",
        ".DS_Store",
        "a/._b.jpg",
        "__meta__/x.json",
        "a.jpg",
        "a",
        "a-b",
        "a.txt",
        "",
    ]
    grouped = group(names)
    assert as_dict(grouped) == {"a": ["jpg", "txt"]}
    assert grouped.passed == {"not a sample": 7}
    assert IndexRows.of(grouped).offset == [4 * 1024 + 512, 7 * 1024 + 512]


@pytest.mark.parametrize(
    ("names", "reason", "detail"),
    [
        (["a.jpg", "b.jpg", "a.txt"], "duplicate key", "'a' at byte 2048 was at byte 0 already"),
        (["a.jpg", "a.JPG"], "duplicate member", "a.jpg is at bytes 0 and 1024"),
        (["a.json", "a.0.jpg", "a-0.jpg"], "duplicate member", "bytes 1024 and 2048"),
        (["../a.jpg"], "climbs out of its folder", "'../a' at byte 0"),
        (["b/../../a.jpg"], "climbs out of its folder", "byte 0"),
        (["/etc/a.jpg"], "climbs out of its folder", "byte 0"),
        (["./../a.jpg"], "climbs out of its folder", "byte 0"),
    ],
)
def test_a_sample_that_cannot_be_addressed_is_handed_back(
    names: list[str], reason: str, detail: str
) -> None:
    grouped = group(names)
    (bad,) = grouped.bad
    assert bad[1].reason == reason
    assert detail in bad[1].detail
    assert grouped.num_samples == len(IndexRows.of(grouped)) + 1


def test_a_sample_with_a_link_is_handed_back_and_its_neighbours_are_kept() -> None:
    names = ["README", "a.jpg", "a.txt", "b.jpg", "b.txt", "c.jpg", "LATEST"]
    places = [1024 * n for n in range(len(names))]
    links = {3: "b.jpg is a link", 4: "b.txt is a link", 6: "LATEST is a link"}
    walk = TarWalk(names, places, [at + 512 for at in places], [0] * len(names), links)
    grouped = group_members(walk)
    assert as_dict(grouped) == {"a": ["jpg", "txt"], "c": ["jpg"]}
    ((key, problem),) = grouped.bad
    assert (key, problem.reason, problem.detail) == ("b", "link", "b.jpg is a link")
    assert grouped.passed == {"not a sample": 2}


@given(st.lists(st.text("ab./-_\0json", max_size=12), max_size=12), st.booleans())
def test_every_member_is_accounted_for(names: list[str], interleaved: bool) -> None:
    names = [name.partition("\0")[0] for name in names]
    grouped = group(names, interleaved=interleaved)
    rows = IndexRows.of(grouped)
    in_bad = len(names) - len(rows.offset) - grouped.passed.total()
    assert in_bad >= len(grouped.bad)
    assert in_bad == 0 or grouped.bad
    assert len(as_dict(grouped)) == len(rows)
