"""Liquid's rows, read by `datasets` and as Liquid's own trainer reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from coded_folder import codes_of, make_pair, make_text, store_coded
from lossy_export import lossy_export
from mixed_folder import Mixed

import shardmill as sm
from shardmill.errors import ConfigError
from shardmill.formats.adapters import liquid
from shardmill.formats.adapters.liquid import LiquidFormat, LiquidPairsFormat
from shardmill.model.sample import Document, Sample, Segment
from shardmill.running.runner import run_stage
from shardmill.shards.ledger import open_manifest
from shardmill.stages.check.folder import check_folder

SAMPLES = [
    make_text(f"t{n}", f"Text {n}\nover “two” lines.") if n % 4 == 3 else make_pair(f"p{n}", f"{n}")
    for n in range(18)
]


def run(
    folders: tuple[Path, Path | None], out: Path, num_shards: int | None = None, **fields: Any
) -> Path:
    samples, codes = folders
    stage = lossy_export(
        input_dir=samples, codes_dir=codes, format=LiquidFormat(**fields), num_shards=num_shards
    )
    report = run_stage(stage, out, workers=0, max_skip_rate=1.0)
    assert not report.failures and report.complete, report.failures
    return out


def expected(sample: Sample) -> dict[str, Any]:
    text, is_pair = sample.document.text, bool(sample.media)
    return {
        "data_type": "image_text" if is_pair else "text_pretrain",
        "text": text,
        "length": len(text) + 4 * 1024 * is_pair,
        "vqcode_512": json.dumps(codes_of(sample.key).reshape(-1).tolist()) if is_pair else "no",
        "vqcode_multi768": "no",
        "width": "no",
        "height": "no",
    }


@pytest.fixture(autouse=True)
def many_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a table have more than one batch."""
    monkeypatch.setattr(liquid, "ROWS_AT_ONCE", 2)


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    return store_coded(tmp_path, SAMPLES, per_shard=5)


@pytest.mark.parametrize("num_shards", [None, 3])
def test_an_arrow_folder_has_the_rows_of_liquid(
    folders: tuple[Path, Path], tmp_path: Path, num_shards: int | None
) -> None:
    found = datasets.load_from_disk(str(run(folders, tmp_path / "out", num_shards)))
    assert list(found) == [expected(sample) for sample in SAMPLES]
    assert found.features["length"] == datasets.Value("int64")
    assert all(
        found.features[name] == datasets.Value("string")
        for name in found.column_names
        if name != "length"
    )


@pytest.mark.parametrize("files", ["parquet", "jsonl"])
def test_other_files_have_the_same_rows(
    folders: tuple[Path, Path], tmp_path: Path, files: str
) -> None:
    out = run(folders, tmp_path / "out", 2, files=files)
    found = datasets.load_dataset(str(out), split="train", cache_dir=str(tmp_path / "cache"))
    assert list(found) == [expected(sample) for sample in SAMPLES]


def test_rows_are_what_the_packing_script_makes_of_jsonl(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    """The script loads jsonl, shuffles and saves: with the same features as our Arrow folder."""
    lines = run(folders, tmp_path / "jsonl", files="jsonl")
    files = sorted(map(str, (lines / "shards").glob("*.jsonl")))
    theirs = datasets.load_dataset(
        "json", data_files=files, split="train", cache_dir=str(tmp_path / "cache")
    )
    theirs = theirs.shuffle(seed=42)
    theirs.save_to_disk(str(tmp_path / "packed"), num_shards=4)
    ours = datasets.load_from_disk(str(run(folders, tmp_path / "arrow")))
    both = datasets.concatenate_datasets([datasets.load_from_disk(str(tmp_path / "packed")), ours])
    assert len(both) == 2 * len(SAMPLES)
    stream = both.shuffle(seed=42).to_iterable_dataset(num_shards=2)
    assert sum(row["data_type"] == "text_pretrain" for row in stream) == 8


@pytest.mark.parametrize("num_shards", [None, 5])
def test_rows_are_shuffled_as_the_packing_script_does(
    tmp_path: Path, num_shards: int | None
) -> None:
    """A row whose image was left out when codes were made is none of those that are shuffled."""
    folders = store_coded(tmp_path, SAMPLES, per_shard=5, without=["p4", "p8"])
    reject = {"key": "p8", "reason": "aspect ratio", "detail": "3:1", "filtered": True}
    (folders[1] / "rejects").mkdir()
    for shard, key in zip(open_manifest(folders[0]).shards, ("p4", "p8")):
        line = json.dumps({**reject, "key": key}) + "\n"
        (folders[1] / "rejects" / f"{shard.name}.jsonl").write_text(line)
    plain = datasets.load_from_disk(str(run(folders, tmp_path / "plain")))
    assert len(plain) == len(SAMPLES) - 2
    out = run(folders, tmp_path / "out", num_shards, shuffle=42)
    assert list(datasets.load_from_disk(str(out))) == list(plain.shuffle(seed=42))
    assert list(plain) != list(plain.shuffle(seed=42))
    assert open_manifest(out).skipped == {"no image codes": 2}
    assert check_folder(out).sound


def test_a_folder_that_was_trained_on_is_ingested_again(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    """The trainer shuffles, and `datasets` leaves the order beside the rows."""
    out = run(folders, tmp_path / "out", 3)
    list(datasets.load_from_disk(str(out)).shuffle(seed=42))
    assert list((out / "shards").glob("cache-*.arrow"))
    sm.ingest(out, tmp_path / "back", shape="liquid", workers=0)
    codes = sm.codes(tmp_path / "back", tmp_path / "codes", from_="vqcode_512", workers=0)
    again = run((tmp_path / "back", codes.path), tmp_path / "again")
    assert list(datasets.load_from_disk(str(again))) == [expected(s) for s in SAMPLES]


def test_the_trainer_finds_its_codes(folders: tuple[Path, Path], tmp_path: Path) -> None:
    found = datasets.load_from_disk(str(run(folders, tmp_path / "out")))
    for row, sample in zip(found, SAMPLES):
        if row["data_type"] == "image_text":
            codes = json.loads(row["vqcode_512"])
            assert len(codes) == 1024 and codes == codes_of(sample.key).reshape(-1).tolist()


def test_other_sizes_go_to_the_column_of_many_sizes(tmp_path: Path) -> None:
    folders = store_coded(tmp_path, SAMPLES, per_shard=9, size=(24, 40))
    found = datasets.load_from_disk(str(run(folders, tmp_path / "out", column="vqcode_multi768")))
    pair = found[0]
    assert (pair["width"], pair["height"], pair["vqcode_512"]) == ("640", "384", "no")
    assert json.loads(pair["vqcode_multi768"]) == codes_of("p0", 24, 40).reshape(-1).tolist()
    assert found[3]["vqcode_multi768"] == found[3]["width"] == "no"
    run(folders, tmp_path / "square")
    manifest = open_manifest(tmp_path / "square")
    assert manifest.skipped == {"not 512 x 512 pixels": 14} and manifest.num_kept == 4


def test_what_is_no_pair_is_counted(tmp_path: Path) -> None:
    video = Sample(
        key="v",
        document=Document((Segment(kind="video", media="mp4"), Segment(kind="text", text="x"))),
        media={"mp4": b"moov"},
    )
    two = Sample(
        key="two",
        document=Document(tuple(Segment(kind="image", media=f"{i}.jpg") for i in range(2))),
        media={"0.jpg": b"a", "1.jpg": b"b"},
    )
    samples = [*SAMPLES[:4], two, make_pair("lost", "no codes")]
    folders = store_coded(tmp_path, samples, per_shard=4, without=["lost"])
    run(folders, tmp_path / "out")
    assert open_manifest(tmp_path / "out").skipped == {
        "no image codes": 1,
        "not one image and text": 1,
    }
    folders = store_coded(tmp_path / "more", [video], per_shard=1, without=["v"])
    run(folders, tmp_path / "video")
    assert open_manifest(tmp_path / "video").num_kept == 0


def test_texts_need_no_codes_and_images_do(folders: tuple[Path, Path], tmp_path: Path) -> None:
    found = datasets.load_from_disk(str(run((folders[0], None), tmp_path / "texts")))
    texts = [sample for sample in SAMPLES if not sample.media]
    assert list(found) == [expected(sample) for sample in texts]
    skipped = open_manifest(tmp_path / "texts").skipped
    assert skipped == {"no image codes": len(SAMPLES) - len(texts)}
    with pytest.raises(ConfigError, match="holds no codes"):
        run((folders[0], folders[0]), tmp_path / "out")


PAIR_SAMPLES = [
    make_text(f"t{n}", f"Text {n}") if n % 4 == 3 else make_pair(f"p{n}", f"{n}", bytes([n] * 9))
    for n in range(10)
]


def run_pairs(out: Path, **fields: Any) -> list[dict[str, Any]]:
    stage = lossy_export(format=LiquidPairsFormat(), **fields)
    report = run_stage(stage, out, workers=0)
    assert not report.failures and report.complete, report.failures
    paths = [out / shard.files["jsonl"].path for shard in open_manifest(out).shards]
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def test_codes_are_lists_of_numbers(tmp_path: Path) -> None:
    samples, codes = store_coded(tmp_path, PAIR_SAMPLES, per_shard=4)
    rows = run_pairs(tmp_path / "out", input_dir=samples, codes_dir=codes)
    for row, sample in zip(rows, PAIR_SAMPLES, strict=True):
        wanted: dict[str, Any] = {"data_type": "text_pretrain", "text": sample.document.text}
        if sample.media:
            wanted["data_type"] = "image_text"
            wanted["vq_code"] = codes_of(sample.key).reshape(-1).tolist()
        assert row == wanted
    found = datasets.load_dataset(
        str(tmp_path / "out"), split="train", cache_dir=str(tmp_path / "cache")
    )
    assert len(found) == 10


def test_images_lie_beside_the_lines(tmp_path: Path) -> None:
    samples, _ = store_coded(tmp_path, PAIR_SAMPLES, per_shard=4)
    rows = run_pairs(tmp_path / "out", input_dir=samples, num_shards=2)
    for row, sample in zip(rows, PAIR_SAMPLES, strict=True):
        if sample.media:
            image = tmp_path / "out" / "shards" / row["image_path"]
            assert image.read_bytes() == sample.media["jpg"]
        else:
            assert "image_path" not in row
    assert check_folder(tmp_path / "out").sound


def test_shuffled_lines_have_their_images(tmp_path: Path) -> None:
    samples, _ = store_coded(tmp_path, PAIR_SAMPLES, per_shard=4)
    stage = lossy_export(format=LiquidPairsFormat(shuffle=7), input_dir=samples)
    assert run_stage(stage, tmp_path / "out", workers=0).complete
    lines = (tmp_path / "out" / "shards").glob("*.jsonl")
    rows = [json.loads(line) for path in sorted(lines) for line in path.read_text().splitlines()]
    order = np.random.default_rng(7).permutation(len(PAIR_SAMPLES))
    for row, number in zip(rows, order, strict=True):
        sample = PAIR_SAMPLES[number]
        assert row["text"] == sample.document.text
        if sample.media:
            image = tmp_path / "out" / "shards" / row["image_path"]
            assert image.read_bytes() == sample.media["jpg"]


def test_rows_of_liquid_have_codes_or_none(mixed: Mixed, tmp_path: Path) -> None:
    out = run((mixed.pairs, mixed.codes), tmp_path / "o", files="jsonl")
    reader = LiquidFormat(files="jsonl").open(out, None)
    found = [record for part in reader.parts() for record in reader.read(part.input)]
    assert [len(record.codes) for record in found] == [0, 1, 0, 1]
