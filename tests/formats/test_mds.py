"""MDS shards: images, sizes, and what the format has no place for."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from lossy_export import lossy_export
from mixed_folder import Mixed
from token_folder import SPACE, write_token_folder

from shardmill.errors import FormatError
from shardmill.formats import mds
from shardmill.formats.mds import MdsFormat, MdsReader
from shardmill.model.space import TokenSpace
from shardmill.model.tokenrow import TokenRow
from shardmill.running.runner import run_stage
from shardmill.shards.ledger import open_manifest


@pytest.mark.parametrize("length", [1, 255, 256, 65_535, 65_536, 70_000])
def test_arrays_of_every_size_come_back(tmp_path: Path, length: int) -> None:
    space = TokenSpace(text_size=100_000)
    rows = [TokenRow(key="k", ids=np.arange(length), loss=np.array([[0, 1]]))]
    tokens = write_token_folder(tmp_path / "tokens", [rows, []], space)
    assert run_stage(
        lossy_export(input_dir=tokens, format=MdsFormat()), tmp_path / "out", workers=0
    )
    reader = MdsReader(dir=str(tmp_path / "out"), space=space)
    (part,) = reader.parts()
    (record,) = reader.read(part.input)
    assert np.array_equal(record.ids(), np.arange(length))


def test_videos_and_other_images_are_rejects(mixed: Mixed, tmp_path: Path) -> None:
    stage = lossy_export(input_dir=mixed.tokens, format=MdsFormat(samples=mixed.samples))
    report = run_stage(stage, tmp_path / "out", workers=0, max_skip_rate=1)
    assert report.complete
    manifest = open_manifest(tmp_path / "out")
    assert manifest.skipped == {"not a JPEG": 2}
    assert manifest.num_kept == 6
    # The room that rejected samples leave in the head of a shard is no sample.
    reader = MdsReader(dir=str(tmp_path / "out"), space=TokenSpace(text_size=1 << 20))
    found = [record for part in reader.parts() for record in reader.read(part.input)]
    kept = [row for row in mixed.rows if all(span.name.endswith("jpg") for span in row.media)]
    assert [record.ids().tolist() for record in found] == [row.ids.tolist() for row in kept]


def test_a_shard_too_large_for_the_format_is_refused(
    mixed: Mixed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mds, "MAX_BYTES", 1000)
    report = run_stage(
        lossy_export(input_dir=mixed.tokens, format=MdsFormat()), tmp_path / "o", workers=0
    )
    assert "cut the rows with --shards" in str(report.failures)


@pytest.fixture
def reader(tmp_path: Path) -> MdsReader:
    rows = [TokenRow(key=f"k{n}", ids=np.arange(n + 1)) for n in range(3)]
    tokens = write_token_folder(tmp_path / "tokens", [rows])
    run_stage(lossy_export(input_dir=tokens, format=MdsFormat()), tmp_path / "out", workers=0)
    return MdsReader(dir=str(tmp_path / "out"), space=SPACE)


def test_a_shard_that_was_cut_off_is_named(reader: MdsReader) -> None:
    path = Path(reader.dir) / "shards" / "00000.mds"
    raw = path.read_bytes()
    (part,) = reader.parts()
    for length, message in ((len(raw) - 1, "cut off"), (10, "does not hold the 3 samples")):
        path.write_bytes(raw[:length])
        with pytest.raises(FormatError, match=message):
            list(reader.read(part.input))


def test_a_sample_whose_columns_do_not_fit_has_a_problem(reader: MdsReader) -> None:
    path = Path(reader.dir) / "shards" / "00000.mds"
    raw = bytearray(path.read_bytes())
    start = int.from_bytes(raw[4:8], "little")
    raw[start] += 1
    path.write_bytes(raw)
    (part,) = reader.parts()
    first, *others = reader.read(part.input)
    assert first.problem is not None
    assert [record.problem for record in others] == [None, None]


def test_another_version_is_refused(reader: MdsReader) -> None:
    (Path(reader.dir) / "index.json").write_text(json.dumps({"version": 3, "shards": []}))
    with pytest.raises(FormatError, match="version 2"):
        list(reader.parts())
