from __future__ import annotations

import base64
import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from make_media import clip, encode, image, pixels
from sample_folder import write_sample_folder

from shardmill.errors import ConfigError
from shardmill.model.codec import digest, from_plain, to_plain
from shardmill.model.manifest import Manifest, group_stats
from shardmill.model.sample import Document, MediaSize, Sample, Segment
from shardmill.model.stage import Unit
from shardmill.running.runner import run_stage
from shardmill.shards.samples import open_shard
from shardmill.shards.tar.index import open_tar_index
from shardmill.sources.filters import TextLength
from shardmill.sources.guess import first_rows, shape_of, source_from_input
from shardmill.sources.shapes.general import PairShape
from shardmill.sources.tables import TableSource
from shardmill.stages.ingest import Ingest, ShardNames, open_earlier, taken_as


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(8):
        (folder / f"{number}.jpg").write_bytes(photo(number))
    return folder


def photo(number: int) -> bytes:
    return image("JPEG", 40 + number, 30, number)


def write_lines(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def ingest_of(*inputs: object, **options: Any) -> Ingest:
    source = source_from_input([str(given) for given in inputs])
    return Ingest(source=source, shape=options.pop("shape", None) or shape_of(source), **options)


def run(stage: Ingest, out: Path, *, workers: int = 0, max_skip_rate: float = 0.0) -> Manifest:
    report = run_stage(stage, out, workers=workers, max_skip_rate=max_skip_rate)
    assert report.manifest is not None, report
    return report.manifest


def samples_of(out: Path, manifest: Manifest) -> list[Sample]:
    found = []
    for shard in manifest.shards:
        tar, idx = (out / shard.files[role].path for role in ("tar", "idx"))
        with open_shard(str(tar), idx) as opened:
            found += [keep(sample) for sample in opened]
    return found


def keep(sample: Sample) -> Sample:
    media = {name: bytes(content) for name, content in sample.media.items()}
    return Sample(
        key=sample.key,
        document=sample.document,
        media=media,
        origin=sample.origin,
        extra=sample.extra,
    )


def rejects_of(out: Path) -> dict[str, tuple[str, str]]:
    lines = [line for path in sorted((out / "rejects").iterdir()) for line in path.open("rb")]
    found = [orjson.loads(line) for line in lines]
    return {reject["key"]: (reject["reason"], reject["detail"]) for reject in found}


def said(sample: Sample) -> list[Any]:
    return [s.text if s.kind == "text" else sample.media[s.media] for s in sample.document.segments]


def test_pairs_become_shards_with_sizes_in_the_index(tmp_path: Path, photos: Path) -> None:
    rows = [{"image": f"photos/{n}.jpg", "caption": f"image {n}", "id": n} for n in range(8)]
    table = write_lines(tmp_path / "pairs.jsonl", rows)
    manifest = run(ingest_of(table, per_shard=3), tmp_path / "out")
    assert [(s.name, s.num_samples) for s in manifest.shards] == [
        ("000000", 3),
        ("000001", 3),
        ("000002", 2),
    ]
    samples = samples_of(tmp_path / "out", manifest)
    assert [said(sample) for sample in samples] == [[photo(n), f"image {n}"] for n in range(8)]
    assert samples[5].key == "pairs-00000005"
    assert samples[5].extra == {"id": 5}
    index = open_tar_index(tmp_path / "out" / manifest.shards[1].files["idx"].path)
    assert sorted(index.column("width").tolist())[-3:] == [43, 44, 45]
    assert dict(manifest.stats) == {
        "samples|with images": 8,
        "media|images": 8,
        "source|pairs": 8,
        "columns|image: image": 8,
        "columns|caption: text": 8,
        "columns|id: extra": 8,
        "text chars|<=8": 8,
        "text chars|sum": 56,
        "pixels|<=2048": 8,
        "pixels|sum": sum((40 + n) * 30 for n in range(8)),
    }


@pytest.mark.parametrize(
    ("row", "options", "message"),
    [
        ({"image": "gone.jpg", "text": "x"}, {}, r"missing file: .*gone.jpg.*--media-root"),
        ({"image": "rows.jsonl", "text": "x"}, {}, "not an image: rows.jsonl"),
        ({"image": "/etc/hosts", "text": "x"}, {}, "--allow /etc"),
        ({"image": "photos/0.jpg", "captions": ["a", "b"]}, {}, "pair,several=first"),
        ({"text": "x"}, {"key": "id"}, "--key id"),
        ({"text": "x", "id": "7"}, {"key": "id"}, "'7' is the key of more than one row"),
    ],
)
def test_what_would_be_in_vain_is_said_before_the_work(
    tmp_path: Path, photos: Path, row: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    table = write_lines(tmp_path / "rows.jsonl", [row] * 3)
    stage = ingest_of(table, **options)
    with pytest.raises(ConfigError, match=message):
        stage.check(first_rows(stage.source))
    good = write_lines(tmp_path / "rows.jsonl", [{"image": "http://x/a.jpg", "text": "x"}])
    stage = ingest_of(good)
    stage.check(first_rows(stage.source))  # nothing is downloaded


def test_trimming_is_an_option(tmp_path: Path) -> None:
    turns = [{"from": "human", "value": " a \n"}, {"from": "gpt", "value": "\tb"}]
    table = write_lines(tmp_path / "rows.jsonl", [{"conversations": turns}])
    for trim, expected in ((False, [" a \n", "\tb"]), (True, ["a", "b"])):
        out = tmp_path / f"out-{trim}"
        manifest = run(ingest_of(table, trim=trim), out)
        assert [said(sample) for sample in samples_of(out, manifest)] == [expected]


def test_extra_columns_are_kept_and_new_content_is_a_reject(tmp_path: Path, photos: Path) -> None:
    row = {"image": "photos/0.jpg", "text": "x"}
    rows = [{**row, "caption": "y"}, {**row, "caption": "", "answer": "z"}]
    table = write_lines(tmp_path / "rows.jsonl", rows)
    stage = ingest_of(table, shape=PairShape(), extra=("caption",))
    manifest = run(stage, tmp_path / "out", max_skip_rate=1)
    (sample,) = samples_of(tmp_path / "out", manifest)
    assert said(sample) == [photo(0), "x"] and sample.extra == {"caption": "y"}
    assert manifest.skipped == {"content used by nothing": 1}
    taken = taken_as(manifest.stage, manifest.stats)
    assert taken is not None and taken.shape == "pair"
    assert taken.columns == {
        "caption": {"extra": 1},
        "image": {"image": 1},
        "text": {"text": 1},
    }


def test_names_of_columns_without_end_are_not_counted_one_by_one(tmp_path: Path) -> None:
    rows = [{"text": "x", **{f"c{n}-{m}": 1 for m in range(200)}} for n in range(4)]
    stage = ingest_of(write_lines(tmp_path / "rows.jsonl", rows))
    stats = run(stage, tmp_path / "out").stats
    assert sum(name.startswith("columns|") for name in stats) == 257
    assert stats["columns|others: extra"] == 4 * 200 + 1 - 256


def test_members_of_tars_that_are_no_samples_are_counted(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "raw.tar", "w") as tar:
        for kind, name in ((tarfile.DIRTYPE, "a"), (tarfile.REGTYPE, "LICENSE")):
            member = tarfile.TarInfo(name)
            member.type = kind
            tar.addfile(member)
        for key in ("a/1", "a/2"):
            member = tarfile.TarInfo(f"{key}.txt")
            member.size = 2
            tar.addfile(member, io.BytesIO(b"hi"))
    manifest = run(ingest_of(tmp_path / "raw.tar"), tmp_path / "out")
    assert manifest.num_samples == 2
    assert group_stats(manifest.stats)["passed over"] == {"folder": 1, "not a sample": 1}


def in_a_tar(photos: Path) -> list[str]:
    with tarfile.open(photos.parent / "media.tar", "w") as tar:
        tar.add(photos, arcname="p")
    return [f"media.tar::p/{n}.jpg" for n in range(8)]


def in_a_database(photos: Path) -> list[str]:
    database = lmdb.open(str(photos.parent / "media.lmdb"), map_size=1 << 24)
    with database.begin(write=True) as transaction:
        for number in range(8):
            transaction.put(str(number).encode(), photo(number))
    database.close()
    return [f"media.lmdb::{n}" for n in range(8)]


def in_the_row(photos: Path) -> list[str]:
    code = [base64.b64encode(photo(n)).decode() for n in range(8)]
    return [f"data:image/jpeg;base64,{text}" for text in code]


@pytest.mark.parametrize("place", [in_a_tar, in_a_database, in_the_row])
def test_media_come_from_many_places(
    tmp_path: Path, photos: Path, place: Callable[[Path], list[str]]
) -> None:
    rows = [{"image": reference, "text": "t"} for reference in place(photos)]
    table = write_lines(tmp_path / "rows.jsonl", rows)
    manifest = run(ingest_of(table, per_shard=4), tmp_path / "out")
    samples = samples_of(tmp_path / "out", manifest)
    assert [said(sample)[0] for sample in samples] == [photo(n) for n in range(8)]


def test_bytes_in_parquet_as_hugging_face_stores_them(tmp_path: Path) -> None:
    images = [{"bytes": photo(n), "path": f"{n}.jpg"} for n in range(8)]
    table = pa.table({"image": images, "text": [f"t{n}" for n in range(8)]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=3)
    manifest = run(ingest_of(tmp_path / "a.parquet", per_shard=5), tmp_path / "out")
    samples = samples_of(tmp_path / "out", manifest)
    assert [said(sample) for sample in samples] == [[photo(n), f"t{n}"] for n in range(8)]


def test_chats_with_images_and_a_clip(tmp_path: Path, photos: Path) -> None:
    (tmp_path / "clips").mkdir()
    video = clip(tmp_path / "clips" / "a.mp4", codec="libx264")
    turns = [
        {"from": "human", "value": "<image>\n<image>\nCompare, and see <video>"},
        {"from": "gpt", "value": "They differ."},
    ]
    rows = [
        {"image": ["photos/0.jpg", "photos/1.jpg"], "video": "clips/a.mp4", "conversations": turns},
        {"image": "photos/0.jpg", "conversations": turns},
        {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Ho"}]},
    ]
    (tmp_path / "chats.json").write_text(json.dumps(rows))
    stage = ingest_of(tmp_path / "chats.json")
    manifest = run(stage, tmp_path / "out", max_skip_rate=1)
    first, second = samples_of(tmp_path / "out", manifest)
    asked = [photo(0), "\n", photo(1), "\nCompare, and see ", video]
    assert said(first) == [*asked, "They differ."]
    assert list(first.media) == ["0.jpg", "1.jpg", "2.mp4"]
    assert [s.role for s in second.document.segments] == ["user", "assistant"]
    assert manifest.skipped == {"placeholders and media do not match": 1}
    assert manifest.stats["samples|with videos"] == 1
    assert manifest.stats["samples|text only"] == 1


def test_pages_texts_folders_and_a_meta_file(tmp_path: Path, photos: Path) -> None:
    page = {
        "text_list": ["one", "two"],
        "image_info": [{"image_name": "photos/3.jpg", "matched_text_index": 1}],
    }
    pages = write_lines(tmp_path / "pages.jsonl", [page])
    corpus = tmp_path / "corpus" / "deep"
    corpus.mkdir(parents=True)
    (corpus / "a.json.zst").write_bytes(zstandard.compress(b'{"text": "words", "url": "u"}\n'))
    (photos / "0.txt").write_text("a caption")
    chat = {"messages": [{"role": "user", "content": "<image> x"}], "images": ["4.jpg"]}
    write_lines(tmp_path / "chat.jsonl", [chat])
    meta = {"chat": {"file_name": "chat.jsonl", "media_dir": "photos", "sample_ratio": 2}}
    (tmp_path / "meta.json").write_text(json.dumps(meta))

    def first_of(given: Path, out: str) -> Sample:
        return samples_of(tmp_path / out, run(ingest_of(given), tmp_path / out))[0]

    assert said(first_of(pages, "out1")) == ["one", photo(3), "two"]
    assert said(first_of(tmp_path / "corpus", "out2")) == ["words"]
    assert said(first_of(photos, "out3")) == [photo(0), "a caption"]
    assert said(first_of(tmp_path / "meta.json", "out4")) == [photo(4), " x"]


@pytest.mark.parametrize("layout", ["dotted", "dashed"])
def test_our_own_shards_come_back_as_they_were(tmp_path: Path, photos: Path, layout: Any) -> None:
    rows = [
        {"images": [f"photos/{n}.jpg", "photos/0.jpg"], "text": f"t{n}", "id": n} for n in range(8)
    ]
    table = write_lines(tmp_path / "rows.jsonl", rows)
    first = run(ingest_of(table, per_shard=4, layout=layout), tmp_path / "one")
    second = run(ingest_of(tmp_path / "one"), tmp_path / "two")
    before, after = samples_of(tmp_path / "one", first), samples_of(tmp_path / "two", second)
    assert [s.document for s in after] == [s.document for s in before]
    assert [(s.media, s.origin, s.extra) for s in after] == [
        (s.media, s.origin, s.extra) for s in before
    ]
    assert [s.key for s in after][:2] == ["000000/rows-00000000", "000000/rows-00000001"]


def bad_rows(folder: Path) -> dict[str, Any]:
    """Return rows by the reason for which each of them must be rejected."""
    (folder / "text.jpg").write_text("I am not an image")
    (folder / "empty.jpg").write_bytes(b"")
    (folder / "clip.mp4").write_bytes(photo(0))
    deep: Any = 1
    for _ in range(300):
        deep = [deep]
    good = "photos/0.jpg"
    return {
        "missing file": {"image": "gone.jpg", "text": "t"},
        "not an image": {"image": "text.jpg", "text": "t"},
        "empty file": {"image": "empty.jpg", "text": "t"},
        "not a video": {"video": "clip.mp4", "text": "t"},
        "path not allowed": {"image": "../x.jpg", "text": "t"},
        "missing field": {"image": None, "text": "t"},
        "text is not text": {"image": good, "text": 5},
        "nested too deep": {"image": good, "text": "t", "more": deep},
        "row is not an object": [1, 2],
        "too large": {"image": "large.jpg", "text": "t"},
        "not a file": {"image": "photos", "text": "t"},
    }


def test_every_bad_row_is_a_reject_with_its_reason(tmp_path: Path, photos: Path) -> None:
    rows = bad_rows(tmp_path)
    with (tmp_path / "large.jpg").open("wb") as file:
        file.truncate(1 << 40)
    table = write_lines(tmp_path / "rows.jsonl", [{"image": "photos/1.jpg"}, *rows.values()])
    with table.open("ab") as file:
        file.write(b'not json\n{"image": "photos/1.jpg", "text": "caf\xe9"}\n')
        file.write(b'{"image": "photos/1.jpg", "text": "' + b"x" * 200_000 + b'"}')
    stage = Ingest(
        source=TableSource(files=(str(table),), max_row_bytes=100_000), shape=PairShape()
    )
    manifest = run(stage, tmp_path / "out", max_skip_rate=1)
    expected = [*rows, "not JSON", "not UTF-8", "row too long"]
    found = rejects_of(tmp_path / "out")
    assert {key: reason for key, (reason, _) in found.items()} == {
        f"rows-{number:08d}": reason for number, reason in enumerate(expected, 1)
    }
    assert (manifest.num_in, manifest.num_kept) == (len(expected) + 1, 1)
    assert found["rows-00000012"][1].startswith("row 13 at byte ")
    assert manifest.stats["missing|text"] == 1


def test_a_bad_row_stops_the_run_unless_skips_are_allowed(tmp_path: Path, photos: Path) -> None:
    table = write_lines(tmp_path / "a.jsonl", [{"image": "gone.jpg", "text": "t"}])
    report = run_stage(ingest_of(table), tmp_path / "out", workers=0)
    assert report.manifest is None


def test_filters_leave_out_what_the_user_does_not_want(tmp_path: Path, photos: Path) -> None:
    rows = [{"image": "photos/1.jpg", "text": "x" * n} for n in range(1, 6)]
    table = write_lines(tmp_path / "a.jsonl", rows)
    stage = ingest_of(table, filters=(TextLength(min_chars=3),))
    manifest = run(stage, tmp_path / "out")
    assert (manifest.num_kept, manifest.skipped) == (3, {"text too short": 2})


def test_keys_of_the_user_and_their_duplicates(tmp_path: Path, photos: Path) -> None:
    rows = [{"image": "photos/1.jpg", "id": key} for key in ("a.1", "b", "b", "/c", None)]
    table = write_lines(tmp_path / "a.jsonl", [*rows, {"image": "photos/1.jpg"}])
    manifest = run(ingest_of(table, key="id"), tmp_path / "out", max_skip_rate=1)
    assert [s.key for s in samples_of(tmp_path / "out", manifest)] == ["a_1", "b"]
    assert manifest.skipped == {"bad key": 2, "duplicate key": 1, "missing field": 1}


def test_a_key_may_not_come_again_in_another_shard_of_its_unit(
    tmp_path: Path, photos: Path
) -> None:
    rows = [{"image": f"photos/{n}.jpg", "id": n % 5} for n in range(8)]
    table = write_lines(tmp_path / "a.jsonl", rows)
    stage = ingest_of(table, key="id", max_shard_bytes=8_000)
    manifest = run(stage, tmp_path / "out", max_skip_rate=1)
    assert len(manifest.shards) > 2
    assert manifest.skipped == {"duplicate key": 3}


@pytest.mark.parametrize(
    ("limit", "counts"), [(0, []), (3, [3]), (4, [4]), (5, [4, 1]), (99, [4, 4])]
)
def test_a_limit_takes_the_first_rows(
    tmp_path: Path, photos: Path, limit: int, counts: list[int]
) -> None:
    rows = [{"image": f"photos/{n}.jpg", "text": "t"} for n in range(8)]
    table = write_lines(tmp_path / "a.jsonl", rows)
    manifest = run(ingest_of(table, per_shard=4, limit=limit), tmp_path / "out")
    assert [shard.num_samples for shard in manifest.shards] == counts
    shards = tmp_path / "out" / "shards"
    if limit == 5:
        again = run(ingest_of(shards, limit=2), tmp_path / "again")
        assert again.num_samples == 2


def test_a_byte_limit_splits_a_unit(tmp_path: Path, photos: Path) -> None:
    rows = [{"image": f"photos/{n}.jpg", "text": "t"} for n in range(8)]
    table = write_lines(tmp_path / "a.jsonl", rows)
    manifest = run(ingest_of(table, max_shard_bytes=12_000), tmp_path / "out")
    assert [shard.name for shard in manifest.shards][:2] == ["000000", "000000-001"]
    assert sum(shard.num_samples for shard in manifest.shards) == 8
    assert all(shard.files["tar"].num_bytes <= 12_000 for shard in manifest.shards)


def test_names_of_the_video_pipeline(tmp_path: Path, photos: Path) -> None:
    rows = [{"image": f"photos/{n}.jpg", "text": "t"} for n in range(8)]
    table = write_lines(tmp_path / "a.jsonl", rows)
    name = "shard-{machine}-{start}-{end}-{tar}.tar"
    manifest = run(ingest_of(table, name=name, machine=3, per_shard=5), tmp_path / "out")
    assert [shard.name for shard in manifest.shards] == ["shard-3-0-5-0", "shard-3-5-8-0"]


def test_two_runs_with_other_workers_give_the_same_bytes(tmp_path: Path, photos: Path) -> None:
    rows = [{"image": f"photos/{n % 8}.jpg", "text": f"t{n}"} for n in range(40)]
    rows[7]["image"] = "gone.jpg"
    table = write_lines(tmp_path / "a.jsonl", rows)
    for out, workers in (("one", 0), ("two", 2)):
        run(ingest_of(table, per_shard=6), tmp_path / out, workers=workers, max_skip_rate=1)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def contents(out: Path) -> dict[str, bytes]:
    folders = ("shards", "receipts", "rejects")
    files = [path for folder in folders for path in (out / folder).iterdir()]
    return {path.name: path.read_bytes() for path in [*files, out / "manifest.json"]}


def test_a_spec_survives_being_stored(tmp_path: Path, photos: Path) -> None:
    stage = ingest_of(photos, filters=(TextLength(min_chars=3),), limit=7)
    assert digest(from_plain(to_plain(stage))) == digest(stage)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"per_shard": 0}, "per_shard must be at least 1"),
        ({"max_shard_bytes": -1}, "max_shard_bytes must be at least 1"),
        ({"limit": -1}, "limit must be at least 0"),
        ({"name": "all"}, "must use {unit} or {start}"),
    ],
)
def test_settings_are_checked(photos: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ingest_of(photos, **options)


def test_an_image_that_is_turned_is_stored_as_it_is_shown(tmp_path: Path) -> None:
    from PIL import Image

    exif = Image.Exif()
    exif[274] = 6
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.jpg").write_bytes(encode("JPEG", pixels(50, 20), exif=exif))
    manifest = run(ingest_of(folder), tmp_path / "out")
    index = open_tar_index(tmp_path / "out" / manifest.shards[0].files["idx"].path)
    assert (index.column("width").max(), index.column("height").max()) == (20, 50)


def test_a_huge_line_does_not_fill_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with path.open("wb") as file:
        file.write(b'{"text": "before"}\n{"text": "')
        file.seek(1 << 30, io.SEEK_CUR)
        file.write(b'"}\n{"text": "after"}\n')
    program = (
        "import resource, sys\n"
        "from shardmill.sources.tables import TableSource\n"
        "source = TableSource(files=(sys.argv[1],), max_row_bytes=1 << 20)\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "with source.open() as read:\n"
        "    rows = [row for part in source.parts(10) for row in read(part.input)]\n"
        "grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before\n"
        "print(len(rows), rows[1].problem.reason, rows[2].fields['text'], grown)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True
    )
    count, *words, grown_kb = done.stdout.split()
    assert [count, *words] == ["3", "row", "too", "long", "after"]
    assert int(grown_kb) < 64 * 1024


PHOTO = image("JPEG", 40, 30, 1)


def make(number: int) -> tuple[Sample, dict[str, MediaSize]]:
    shown = Segment(kind="image", media="jpg")
    said = Segment(kind="text", text=f"number {number}")
    sample = Sample(key=f"k{number}", document=Document((shown, said)), media={"jpg": PHOTO})
    return sample, {"jpg": MediaSize(width=40, height=30)}


def files_of(folder: Path) -> list[dict[str, Path]]:
    shards = sorted((folder / "shards").glob("*.tar"))
    return [{"tar": tar, "idx": tar.with_suffix(".idx")} for tar in shards]


def test_samples_of_all_shards_are_found(tmp_path: Path) -> None:
    folder = write_sample_folder(tmp_path / "out", [[make(0), make(1)], [make(2)]])
    with open_earlier(files_of(folder)) as find:
        for number in range(3):
            found = find(f"k{number}")
            assert found is not None
            sample, sizes = make(number)
            assert found.sample.document == sample.document
            assert bytes(found.sample.media["jpg"]) == PHOTO
            assert found.sizes["jpg"] == sizes["jpg"]
        assert find("k3") is None


def test_what_is_damaged_or_gone_is_not_found(tmp_path: Path) -> None:
    folder = write_sample_folder(tmp_path / "out", [[make(0), make(1)], [make(2)]])
    files = files_of(folder)
    content = bytearray(files[0]["tar"].read_bytes())
    content[content.index(PHOTO) + len(PHOTO) // 2] ^= 0xFF
    files[0]["tar"].write_bytes(content)
    files[1]["tar"].unlink()
    with open_earlier([*files, {"idx": files[0]["idx"]}]) as find:
        assert find("k0") is None and find("k2") is None
        assert find("k1") is not None
    with open_earlier(()) as find:
        assert find("k1") is None


def names(pattern: str, count: int = 3) -> list[str]:
    unit = Unit(name="000042", input={"start": 500}, num_samples=100)
    return [ShardNames(pattern).of_unit(unit, machine=7)(split) for split in range(count)]


def test_patterns() -> None:
    assert names("{unit:06d}") == ["000042", "000042-001", "000042-002"]
    assert names("cc-{unit}-{tar:02d}.tar") == ["cc-42-00", "cc-42-01", "cc-42-02"]
    assert names("shard-{machine}-{start}-{end}-{tar}.tar", 1) == ["shard-7-500-600-0"]


def test_names_of_splits_sort_in_order() -> None:
    assert names("{unit:06d}", 30) == sorted(names("{unit:06d}", 30))


def test_rows_are_counted_only_if_they_are_named() -> None:
    assert ShardNames("{start}-{end}").needs_range
    assert not ShardNames("{unit}").needs_range


@pytest.mark.parametrize(
    "pattern",
    ["", "x", "{machine}", "{unit}/x", "../{unit}", ".{unit}", "{unit", "{unit!q}"]
    + ["{user}-{unit}", "{}", "{unit.real.__class__}", "{unit:s}"],
)
def test_what_would_not_do_as_a_file_name_is_refused(pattern: str) -> None:
    with pytest.raises(ConfigError, match="name "):
        ShardNames(pattern)
