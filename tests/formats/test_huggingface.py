"""Hugging Face data sets of tokens and packs, opened by `datasets` itself."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from lossy_export import lossy_export
from mixed_folder import Mixed
from token_folder import write_token_folder

from shardmill.errors import ConfigError, FormatError
from shardmill.formats import rows
from shardmill.formats.huggingface import (
    HuggingFaceFormat,
    describe_arrow,
    describe_files,
    schema_of,
    sequence,
    value,
    write_table,
)
from shardmill.model.codec import build
from shardmill.model.manifest import FileEntry, Manifest, ShardEntry
from shardmill.model.plan import PackSpec
from shardmill.model.space import TokenSpace
from shardmill.model.tokenrow import MediaSpan, TokenRow, mask_of, modality_of
from shardmill.packing.build import num_stored_packs, stored_rows
from shardmill.packing.plan import plan_packs
from shardmill.plugins import FORMATS
from shardmill.running.runner import run_stage
from shardmill.shards.plans import write_plan
from shardmill.shards.tokens.shard import open_tokens, token_lengths
from shardmill.stages.pack import Materialize

SPACE = TokenSpace(text_size=32_000, added=("image",), num_codes=16_384)
ALL = ("keys", "input_ids", "loss_mask", "labels", "modality", "lengths")


def make_row(number: int) -> TokenRow:
    length = 6 + number * 5 % 17
    kind = ("image", "video")[number % 2]
    image = MediaSpan(name="x", kind=kind, position=1, num_tokens=3)
    loss = np.array([[0, 1], [2, length - 2]]) if number % 3 else np.empty((0, 2), np.int64)
    return TokenRow(
        key=f"web-{number:04d}",
        ids=(np.arange(length) * 211 + number) % SPACE.size,
        loss=loss,
        media=(image,) if number % 4 == 0 or number == 7 else (),
    )


ROWS = [make_row(number) for number in range(30)]


@pytest.fixture(autouse=True)
def many_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a table have more than one batch."""
    monkeypatch.setattr(rows.token_batches, "__defaults__", (30, rows.MAX_ROWS))


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    return write_token_folder(tmp_path / "tokens", [ROWS[:13], ROWS[13:]], SPACE)


def run(folder: Path, out: Path, num_shards: int | None = None, **fields: Any) -> Path:
    stage = lossy_export(
        input_dir=folder, format=HuggingFaceFormat(**fields), num_shards=num_shards
    )
    report = run_stage(stage, out, workers=0)
    assert not report.failures and report.complete, report.failures
    return out


def expected(row: TokenRow) -> dict[str, Any]:
    ids = row.ids.tolist()
    mask = mask_of(row.loss, len(ids)).astype(int).tolist()
    return {
        "keys": [row.key],
        "input_ids": ids,
        "loss_mask": mask,
        "labels": [token if on else -100 for token, on in zip(ids, mask)],
        "modality": modality_of(row.media, len(ids)).tolist(),
        "lengths": [len(ids)],
    }


@pytest.mark.parametrize("num_shards", [None, 1, 7])
def test_an_arrow_folder_is_loaded_from_disk(
    tokens: Path, tmp_path: Path, num_shards: int | None
) -> None:
    out = run(tokens, tmp_path / "out", num_shards, columns=ALL)
    found = datasets.load_from_disk(str(out))
    assert list(found) == [expected(row) for row in ROWS]
    assert found.features["input_ids"] == datasets.Sequence(datasets.Value("uint16"))
    assert found.features["keys"] == datasets.Sequence(datasets.Value("string"))
    state = json.loads((out / "state.json").read_text())
    assert len(state["_data_files"]) == (num_shards or 2)


def test_it_streams(tokens: Path, tmp_path: Path) -> None:
    found = datasets.load_from_disk(str(run(tokens, tmp_path / "out", 4)))
    stream = found.to_iterable_dataset(num_shards=2).shuffle(seed=1, buffer_size=8)
    assert sorted(row["keys"][0] for row in stream) == [row.key for row in ROWS]


def test_two_exports_concatenate(tokens: Path, tmp_path: Path) -> None:
    first, second = (
        datasets.load_from_disk(str(run(tokens, tmp_path / name))) for name in ("a", "b")
    )
    assert len(datasets.concatenate_datasets([first, second])) == 60


def test_parquet_is_loaded_by_its_folder(tokens: Path, tmp_path: Path) -> None:
    out = run(tokens, tmp_path / "out", 3, files="parquet", columns=ALL)
    options: dict[str, Any] = {"split": "train", "cache_dir": str(tmp_path / "cache")}
    found = datasets.load_dataset(str(out), **options)
    assert list(found) == [expected(row) for row in ROWS]
    assert found.features["labels"] == datasets.Sequence(datasets.Value("int32"))
    stream = datasets.load_dataset(str(out), streaming=True, **options)
    assert [row["keys"] for row in stream] == [[row.key] for row in ROWS]


def test_a_pack_is_a_row_that_knows_its_documents(tokens: Path, tmp_path: Path) -> None:
    plan = plan_packs(token_lengths(tokens), PackSpec(capacity=64))
    write_plan(tmp_path / "packs.plan", plan)
    packing = Materialize(tokens_dir=tokens, plan_path=tmp_path / "packs.plan", packs_per_shard=2)
    assert run_stage(packing, tmp_path / "packs", workers=0).complete
    found = datasets.load_from_disk(str(run(tmp_path / "packs", tmp_path / "out", 3)))
    packs = open_tokens(tmp_path / "packs")
    stored = [
        stored_rows(packs.shard(shard), pack)
        for shard in range(len(packs.entries))
        for pack in range(num_stored_packs(packs.shard(shard)))
    ]
    assert len(found) == len(plan) == len(stored)
    for row, documents in zip(found, stored):
        assert row["keys"] == [document.key for document in documents]
        assert row["lengths"] == [len(document.ids) for document in documents]
        assert row["input_ids"] == np.concatenate([d.ids for d in documents]).tolist()
        assert row["loss_mask"] == [m for d in documents for m in expected(d)["loss_mask"]]


@pytest.mark.parametrize("files", ["arrow", "parquet"])
def test_a_shard_without_rows_is_no_problem(tmp_path: Path, files: str) -> None:
    tokens = write_token_folder(tmp_path / "tokens", [[], ROWS[:3], []], SPACE)
    out = str(run(tokens, tmp_path / "out", files=files))
    if files == "arrow":
        found = datasets.load_from_disk(out)
    else:
        found = datasets.load_dataset(out, split="train", cache_dir=str(tmp_path / "cache"))
    assert [row["keys"] for row in found] == [[row.key] for row in ROWS[:3]]


def test_keys_that_are_not_utf8_are_refused(tmp_path: Path) -> None:
    rows = [replace(ROWS[0], key="caf\udce9")]  # as surrogateescape reads b"caf\xe9"
    tokens = write_token_folder(tmp_path / "tokens", [rows], SPACE)
    stage = lossy_export(input_dir=tokens, format=HuggingFaceFormat())
    report = run_stage(stage, tmp_path / "out", workers=0)
    assert "00000.spans: a key is not UTF-8" in str(report.failures)


def test_nothing_can_be_loaded_before_all_is_done(tokens: Path, tmp_path: Path) -> None:
    stage = lossy_export(input_dir=tokens, format=HuggingFaceFormat())
    assert not run_stage(stage, tmp_path / "out", workers=0, part=(1, 2)).complete
    with pytest.raises(FileNotFoundError):
        datasets.load_from_disk(str(tmp_path / "out"))
    assert run_stage(stage, tmp_path / "out", workers=0).complete
    assert len(datasets.load_from_disk(str(tmp_path / "out"))) == 30


def test_unknown_columns_are_refused() -> None:
    with pytest.raises(ConfigError, match="columns are some of keys, input_ids"):
        HuggingFaceFormat(columns=("ids",))
    with pytest.raises(ConfigError, match="each once"):
        HuggingFaceFormat(columns=("keys", "keys"))


def export(source: Path, out: Path, codes_dir: Path | None = None, **plain: Any) -> Path:
    stage = lossy_export(input_dir=source, format=build(FORMATS, plain), codes_dir=codes_dir)
    assert run_stage(stage, out, workers=0).complete
    return out


@pytest.mark.parametrize("files", ["arrow", "parquet"])
def test_labels_tell_what_is_learned(mixed: Mixed, tmp_path: Path, files: str) -> None:
    columns = ("input_ids", "labels", "modality")
    out = export(mixed.tokens, tmp_path / "o", kind="hf", files=files, columns=list(columns))
    reader = HuggingFaceFormat(files=files, columns=columns).open(out, None)
    assert reader.holds() == {"tokens", "loss", "modality", "packs"}
    found = [record for part in reader.parts() for record in reader.read(part.input)]
    for row, record in zip(mixed.rows, found, strict=True):
        assert record.ids().tolist() == row.ids.tolist()
        assert record.rows[0].loss.tolist() == row.loss.tolist()
        kinds = [(s.kind, s.position, s.num_tokens) for s in record.rows[0].media]
        assert kinds == [(s.kind, s.position, s.num_tokens) for s in row.media]


def test_a_table_that_was_cut_off_is_named(mixed: Mixed, tmp_path: Path) -> None:
    out = export(mixed.tokens, tmp_path / "o", kind="hf", columns=["input_ids"])
    path = out / "shards" / "00000.arrow"
    path.write_bytes(path.read_bytes()[:-100])
    reader = HuggingFaceFormat(columns=("input_ids",)).open(out, None)
    with pytest.raises(FormatError, match=r"00000\.arrow: cannot be read"):
        list(reader.parts())


FEATURES = {"key": value("string"), "ids": sequence("uint16"), "mask": sequence("uint8")}
TABLE_ROWS: dict[str, list[Any]] = {
    "key": ["a", "b", "c"],
    "ids": [[1, 65_535], [], [7] * 500],
    "mask": [[0, 1], [], [1] * 500],
}


def write(path: Path, kind: Any) -> None:
    schema = schema_of(FEATURES)
    batch = pa.record_batch([pa.array(TABLE_ROWS[f.name], f.type) for f in schema], schema=schema)
    write_table(path, kind, schema, [batch.slice(0, 2), batch.slice(2)])


def manifest_of(names: list[str]) -> Manifest:
    shards = [ShardEntry(n, 3, {"arrow": FileEntry(f"shards/{n}.arrow", 1, "")}) for n in names]
    return Manifest(
        content="export",
        stage={},
        stage_digest="",
        units_digest="0123456789abcdef0123",
        num_in=3,
        num_kept=3,
        skipped={},
        stats={},
        shards=tuple(shards),
    )


def test_an_arrow_folder_is_described_as_datasets_does(tmp_path: Path) -> None:
    (tmp_path / "shards").mkdir()
    write(tmp_path / "shards" / "00000.arrow", "arrow")
    describe_arrow(tmp_path, manifest_of(["00000"]), FEATURES)
    ours = datasets.load_from_disk(str(tmp_path))
    assert ours.to_dict() == TABLE_ROWS
    ours.save_to_disk(str(tmp_path / "theirs"))
    for name in ("state.json", "dataset_info.json"):
        mine = json.loads((tmp_path / name).read_text())
        theirs = json.loads((tmp_path / "theirs" / name).read_text())
        assert mine.keys() == theirs.keys()


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_the_same_rows_are_the_same_bytes(tmp_path: Path, kind: str) -> None:
    for name in ("a", "b"):
        write(tmp_path / name, kind)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_parquet_holds_the_rows(tmp_path: Path) -> None:
    write(tmp_path / "x.parquet", "parquet")
    assert pyarrow.parquet.read_table(tmp_path / "x.parquet").to_pydict() == TABLE_ROWS


def test_the_card_names_the_files(tmp_path: Path) -> None:
    describe_files(tmp_path, "parquet")
    assert "    path: shards/*.parquet\n" in (tmp_path / "README.md").read_text()
