from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest
from web_server import serving

from shardmill.errors import FormatError, SampleError
from shardmill.sources.source import Row
from shardmill.sources.tars import TarSource, row_fields, tar_stem


def write_tar(path: Path, members: list[tuple[str, bytes]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def pairs(first: int, count: int) -> list[tuple[str, bytes]]:
    return [
        member
        for n in range(first, first + count)
        for member in ((f"{n:04d}.jpg", b"J%d" % n), (f"{n:04d}.txt", b"image %d" % n))
    ]


def read_all(source: TarSource, per_shard: int | None = None) -> list[Row]:
    with source.open() as read:
        return [row for part in source.parts(per_shard) for row in read(part.input)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(3):
        write_tar(tmp_path / f"cc-{number:04d}.tar", pairs(10 * number, 10))
    return tmp_path


@pytest.mark.parametrize("pattern", ["cc-{0000..0002}.tar", "cc-*.tar", ""])
def test_a_tar_is_a_part_and_its_samples_are_rows(folder: Path, pattern: str) -> None:
    source = TarSource(tars=(f"{folder}/{pattern}",), name="cc")
    assert [part.num_rows for part in source.parts(None)] == [None] * 3
    rows = read_all(source)
    assert [row.fields["text"] for row in rows] == [f"image {n}" for n in range(30)]
    assert rows[12].key == "cc-0001/0012"
    assert (rows[12].origin.path, rows[12].origin.row) == ("cc-0001.tar", "0012")
    assert rows[12].media["jpg"] == b"J12"


def test_a_sample_of_links_is_a_row_that_says_so(tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / f"{number}.txt").write_text(f"text {number}")
    (tmp_path / "0.jpg").write_bytes(b"J")
    (tmp_path / "1.jpg").hardlink_to(tmp_path / "0.jpg")
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name in ("0.jpg", "0.txt", "1.jpg", "1.txt"):
            tar.add(tmp_path / name, arcname=name)
    good, bad = read_all(TarSource(tars=(str(tmp_path / "a.tar"),)))
    assert (good.key, good.media["jpg"]) == ("a/0", b"J")
    assert (bad.key, bad.problem and bad.problem.reason) == ("a/1", "link")
    assert "'1.jpg' at byte 4096 is a link to '0.jpg'" in str(bad.problem)


@pytest.mark.parametrize("per_shard", [1, 3, 10, 100])
def test_tars_are_cut_when_asked(folder: Path, per_shard: int) -> None:
    source = TarSource(tars=(str(folder),))
    parts = list(source.parts(per_shard))
    assert sum(part.num_rows or 0 for part in parts) == 30
    assert [r.key for r in read_all(source, per_shard)] == [r.key for r in read_all(source)]


def test_tars_of_one_name_in_two_folders_do_not_share_keys(tmp_path: Path) -> None:
    for folder in ("x", "y"):
        write_tar(tmp_path / folder / "a.tar", pairs(0, 2))
    rows = read_all(TarSource(tars=(f"{tmp_path}/x/a.tar", f"{tmp_path}/y/a.tar")))
    assert len({row.key for row in rows}) == 4


def test_the_interleave_rule_joins_what_follows_a_json(tmp_path: Path) -> None:
    turns = {"conversations": [{"from": "human", "value": "<video>"}], "videos": ["000.mp4"]}
    members = [
        ("000.json", json.dumps(turns).encode()),
        ("000.mp4", b"V"),
        ("001.json", b'{"caption": "frames"}'),
        ("001-0.jpg", b"a"),
        ("001-1.jpg", b"b"),
    ]
    first, second = read_all(TarSource(tars=(str(write_tar(tmp_path / "a.tar", members)),)))
    assert first.fields == turns
    assert first.media["000.mp4"] == b"V"
    assert second.fields == {"caption": "frames", "images": ["0.jpg", "1.jpg"]}


@pytest.mark.parametrize("per_shard", [None, 2])
def test_samples_that_cannot_be_used_are_rows_with_their_problem(
    tmp_path: Path, per_shard: int | None
) -> None:
    members = [
        *pairs(0, 2),
        ("0000.jpg", b"again"),
        ("../../up.jpg", b"x"),
        ("0005.txt", b"\xff"),
        ("0006.jpg", b""),
    ]
    source = TarSource(tars=(str(write_tar(tmp_path / "a.tar", members)),))
    rows = read_all(source, per_shard)
    reasons = sorted(row.problem.reason for row in rows if row.problem)
    assert reasons == ["climbs out of its folder", "duplicate key", "not UTF-8"]
    assert len(rows) == 6


def test_a_sample_that_is_too_large_is_a_reject(folder: Path) -> None:
    rows = read_all(TarSource(tars=(str(folder),), max_sample_bytes=100))
    assert all(row.problem and row.problem.reason == "too large" for row in rows)


def test_a_tar_that_was_cut_off_stops_with_the_offset(folder: Path) -> None:
    path = folder / "cc-0001.tar"
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(FormatError, match=r"cc-0001\.tar") as error:
        read_all(TarSource(tars=(str(folder),)))
    assert error.value.offset is not None


def test_a_tar_that_changes_after_it_was_listed_stops_the_reader(folder: Path) -> None:
    source = TarSource(tars=(str(folder),))
    part = next(source.parts(None))
    write_tar(folder / "cc-0000.tar", pairs(0, 31))
    with source.open() as read, pytest.raises(FormatError, match="was changed after it was listed"):
        list(read(part.input))


def test_the_fingerprint_sees_a_changed_tar(folder: Path) -> None:
    source = TarSource(tars=(str(folder),))
    before = dict(source.inputs())
    write_tar(folder / "cc-0001.tar", pairs(0, 11))
    after = dict(source.inputs())
    assert [key for key in before if before[key] != after[key]] == [f"{folder}/cc-0001.tar"]


def test_tars_on_the_web_are_read_by_range(folder: Path) -> None:
    files = {f"{n}.tar": (folder / f"cc-{n:04d}.tar").read_bytes() for n in range(3)}
    with serving(files) as url:
        source = TarSource(tars=(f"{url}/{{0..2}}.tar",))
        sizes = [size for size, _ in source.inputs().values()]
        assert sizes == [len(content) for content in files.values()]
        rows = read_all(source, 4)
    assert [row.fields["text"] for row in rows] == [f"image {n}" for n in range(30)]
    assert (rows[12].key, rows[12].origin.path) == ("1/0012", "1.tar")
    assert bytes(rows[12].media["jpg"]) == b"J12"


def test_stems() -> None:
    assert tar_stem("a.b.tar") == "a.b"
    assert tar_stem("a.tar.gz") is None
    assert tar_stem(".a.tar") is None


def members(**given: bytes | dict) -> dict[str, memoryview]:
    return {
        name.replace("_", "."): memoryview(
            json.dumps(content).encode() if isinstance(content, dict) else content
        )
        for name, content in given.items()
    }


def test_a_caption_pair() -> None:
    fields, media = row_fields("x/1", members(jpg=b"J", txt=b"a cat\n", json={"url": "u", "w": 3}))
    assert fields == {"image": "jpg", "text": "a cat\n", "url": "u", "w": 3}
    assert media["jpg"] == media["1.jpg"] == media["x/1.jpg"] == b"J"


def test_several_media_are_a_list_in_the_order_of_their_numbers() -> None:
    given = {f"{n}.jpg": memoryview(bytes([n])) for n in (0, 1, 10, 11, 2)}
    fields, media = row_fields("k", given)
    assert fields == {"images": ["0.jpg", "1.jpg", "2.jpg", "10.jpg", "11.jpg"]}
    assert media["k-10.jpg"] == bytes([10])


def test_a_json_may_name_the_members() -> None:
    for name in ("000-0.mp4", "0.mp4", "a/000-0.mp4", "000-0"):
        fields, media = row_fields("a/000", members(**{"json": {"videos": [name]}, "0_mp4": b"V"}))
        assert fields == {"videos": [name]}
        assert media[name] == b"V"


def test_members_stand_in_for_files_that_a_json_names() -> None:
    row = {"image": "coco/1.jpg", "conversations": []}
    assert row_fields("k", members(json=row, jpg=b"J"))[0] == {"image": "jpg", "conversations": []}
    assert row_fields("k", members(json=row))[0] == row


def test_own_documents_are_left_alone() -> None:
    row = {"segments": [{"image": "0.jpg"}, {"image": "1.jpg"}]}
    fields, _ = row_fields("k", members(**{"json": row, "0_jpg": b"a", "1_jpg": b"b"}))
    assert fields == row


def test_numbers_without_end_are_texts() -> None:
    digits = "9" * 5000
    fields, _ = row_fields(
        "k", {"cls": memoryview(digits.encode()), f"{digits}.jpg": memoryview(b"x")}
    )
    assert fields["cls"] == digits and fields["image"] == f"{digits}.jpg"


def test_other_members() -> None:
    given = members(cls=b"17\n", html=b"<p>", npy=b"\x93NUMPY", index=b"x", txt=b"")
    assert row_fields("k", given)[0] == {
        "cls": 17,
        "html": "<p>",
        "index": "x",
        "other_members": ["npy"],
        "text": "",
    }


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (members(txt=b"\xff"), "not UTF-8"),
        (members(json=b""), "not JSON"),
        (members(json=b"[]"), "row is not an object"),
    ],
)
def test_bad_members_are_rejects(given: dict[str, memoryview], reason: str) -> None:
    with pytest.raises(SampleError) as error:
        row_fields("k", given)
    assert error.value.reason == reason
