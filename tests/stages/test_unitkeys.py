"""What units are known by: a change of the input changes the units that read it, and no others."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from make_media import image
from tars import tar_bytes

from shardmill.model.manifest import receipt_digest
from shardmill.model.stage import ContentKeyed, Stage
from shardmill.running.runner import run_stage
from shardmill.shards.commit import checksum_read
from shardmill.sources.filters import TextLength
from shardmill.sources.guess import shape_of, source_from_input
from shardmill.sources.shapes.general import MessagesShape
from shardmill.stages.adopt import AdoptCodes, AdoptTokens
from shardmill.stages.codes import EncodeImages
from shardmill.stages.export import ExportShards
from shardmill.stages.filter import FilterSamples
from shardmill.stages.frames import SampleFrames
from shardmill.stages.index import IndexTars
from shardmill.stages.ingest import Ingest
from shardmill.stages.measure import Measure
from shardmill.stages.pack import Materialize
from shardmill.stages.remove import RemoveSamples
from shardmill.stages.tokenize import Tokenize, TokenizeText

Make = Callable[[Path, str], Stage]


def ingest_of(place: Path) -> Ingest:
    source = source_from_input([str(place)])
    return Ingest(source=source, shape=shape_of(source), per_shard=1)


def write_table(folder: Path, second: str) -> Stage:
    rows = [{"text": "first"}, {"text": second}, {"text": "third"}]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return ingest_of(folder / "rows.jsonl")


def write_folder(folder: Path, second: str) -> Stage:
    album = folder / "album"
    album.mkdir(exist_ok=True)
    for name, text in (("a", "first"), ("b", second), ("c", "third")):
        write_if_other(album / f"{name}.jpg", image())
        write_if_other(album / f"{name}.txt", text.encode())
    return ingest_of(album)


def write_tars(folder: Path, second: str) -> Stage:
    _write_tars(folder / "raw", second)
    return ingest_of(folder / "raw")


def index_tars(folder: Path, second: str) -> Stage:
    _write_tars(folder / "raw", second)
    return IndexTars(tars=(str(folder / "raw"),))


def filter_shards(folder: Path, second: str) -> Stage:
    out = folder / f"shards-{second}"
    run_stage(write_table(folder, second), out, workers=0)
    (folder / "shards").unlink(missing_ok=True)
    (folder / "shards").symlink_to(out)
    return FilterSamples(input_dir=folder / "shards", filters=(TextLength(),))


def _write_tars(folder: Path, second: str) -> None:
    folder.mkdir(exist_ok=True)
    for number, text in enumerate(("first", second, "third")):
        members = [("k.jpg", image()), ("k.txt", text.encode())]
        write_if_other(folder / f"{number}.tar", tar_bytes(members))


def write_if_other(path: Path, content: bytes) -> None:
    if not path.exists() or path.read_bytes() != content:
        path.write_bytes(content)


def known_by(stage: Stage) -> list[tuple[str, str]]:
    """Return what a receipt has of each unit: its digest, and a checksum of what it reads."""
    return [(receipt_digest("stage", u), checksum_read(stage, u)) for u in stage.units()]


@pytest.mark.parametrize("make", [write_table, write_folder, write_tars, filter_shards])
def test_an_edit_of_the_same_size_changes_one_unit(tmp_path: Path, make: Make) -> None:
    before = make(tmp_path, "second")
    old = known_by(before)
    after = make(tmp_path, "SECOND")
    assert before == after
    assert [a == b for a, b in zip(old, known_by(after))] == [True, False, True]
    assert isinstance(after, ContentKeyed) and after.units_name_content()


def test_an_index_is_known_by_the_headers_of_its_tars(tmp_path: Path) -> None:
    """It reads no more: members of the same sizes have the same index."""
    old = known_by(index_tars(tmp_path, "second"))
    assert known_by(index_tars(tmp_path, "SECOND")) == old
    new = known_by(index_tars(tmp_path, "the second"))
    assert [a == b for a, b in zip(old, new)] == [True, False, True]


def test_what_a_meta_file_says_about_rows_is_part_of_their_units(tmp_path: Path) -> None:
    row = {"conversations": [{"from": "human", "value": "hi"}]}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    (tmp_path / "photos").mkdir()
    digests = set()
    for more in ({}, {"media_dir": "photos"}, {"columns": {"messages": "turns"}}):
        (tmp_path / "meta.json").write_text(json.dumps({"a": {"file_name": "rows.jsonl", **more}}))
        source = source_from_input([str(tmp_path / "meta.json")])
        stage = Ingest(source=source, shape=MessagesShape())
        digests |= {unit.digest for unit in stage.units()}
    assert len(digests) == 3


def test_tars_that_lie_elsewhere_are_not_known_by_content(tmp_path: Path) -> None:
    """Two tars with members of the same sizes have the same index."""
    run_stage(index_tars(tmp_path, "second"), tmp_path / "index", workers=0)
    stage = FilterSamples(input_dir=tmp_path / "index", filters=(TextLength(),))
    assert not stage.units_name_content()
    checksums = [unit.digest for unit in stage.units()]
    run_stage(index_tars(tmp_path, "SECOND"), tmp_path / "index-2", workers=0)
    other = replace(stage, input_dir=tmp_path / "index-2")
    assert [unit.digest for unit in other.units()] == checksums


def test_every_stage_says_whether_it_knows() -> None:
    of_samples = (FilterSamples, SampleFrames, EncodeImages, Measure, Tokenize)
    of_raw = (Ingest, IndexTars, TokenizeText, AdoptTokens)
    assert all(hasattr(stage, "units_name_content") for stage in (*of_samples, *of_raw))
    refusing = (AdoptCodes, Materialize, ExportShards, RemoveSamples)
    assert not any(hasattr(stage, "units_name_content") for stage in refusing)
