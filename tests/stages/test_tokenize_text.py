"""Plain text goes straight to token shards: every document, every token, at batch speed."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from samples_for_tests import store_samples

import shardmill.stages.tokenize as module
from shardmill.errors import ConfigError
from shardmill.model.manifest import Manifest
from shardmill.model.sample import Document, Origin, Sample, Segment
from shardmill.model.space import TokenSpace
from shardmill.running.runner import run_stage
from shardmill.shards.ledger import open_manifest
from shardmill.shards.tokens.shard import TokenDataset, open_tokens
from shardmill.stages.tokenize import Tokenize, TokenizeText, surround
from shardmill.tokens.templates.template import PlainText
from shardmill.tokens.text.sentencepiece import SentencePieceText
from shardmill.tokens.text.tokenizer import Ragged, ragged

BUNDLED = SentencePieceText(path=Path("bundled"))
SPACE = TokenSpace(text_size=32_768)


def write_table(path: Path, rows: list[Any]) -> None:
    raw = "".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows).encode()
    packers = {".zst": zstandard.compress, ".gz": gzip.compress}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(packers.get(path.suffix, bytes)(raw))


def stage_of(folder: Path, **changes: Any) -> TokenizeText:
    return replace(TokenizeText(files=(str(folder),), tokenizer=BUNDLED, space=SPACE), **changes)


def tokenize(stage: Any, out: Path, rate: float = 1.0) -> tuple[Manifest, TokenDataset]:
    report = run_stage(stage, out, workers=0, retries=0, max_skip_rate=rate)
    assert not report.failures, report.failures
    manifest = open_manifest(out)
    return manifest, open_tokens(out, manifest)


TEXTS = ["Hello world", "", "日本語 <s>", "a\x00b", "long " * 500, "😀"]


@pytest.mark.parametrize(
    ("suffix", "batch_documents"), [("jsonl", 1), ("jsonl.zst", 2), ("jsonl.gz", 4096)]
)
def test_rows_are_those_of_the_reference(
    tmp_path: Path, suffix: str, batch_documents: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BATCH_TEXTS", batch_documents)
    write_table(tmp_path / "in" / f"web.{suffix}", [{"text": text, "url": "x"} for text in TEXTS])
    _, tokens = tokenize(stage_of(tmp_path / "in", template=PlainText(bos=True)), tmp_path / "out")
    reference = SentencePieceText(path=Path("bundled"), engine="reference").load()
    for number, (row, text) in enumerate(zip(tokens, TEXTS, strict=True)):
        assert row.ids.tolist() == [1, *reference.encode(text).tolist(), 2]
        assert row.loss.tolist() == [[0, len(row.ids)]]
        assert row.key == f"web-{number:08d}"
        assert row.origin == Origin(source="text", path=f"web.{suffix}", row=number)


def test_the_long_way_round_gives_the_same_rows(tmp_path: Path) -> None:
    write_table(tmp_path / "in" / "web.jsonl", [{"text": text} for text in TEXTS])
    _, fast = tokenize(stage_of(tmp_path / "in", block_size=7), tmp_path / "fast")
    samples = [
        Sample(
            key=f"web-{number:08d}",
            document=Document((Segment(kind="text", text=text),)),
            origin=Origin(source="text", path="web.jsonl", row=number),
        )
        for number, text in enumerate(TEXTS)
    ]
    folder = store_samples(tmp_path / "samples", samples, 100)
    slow_stage = Tokenize(
        input_dir=folder, tokenizer=BUNDLED, template=PlainText(), space=SPACE, block_size=7
    )
    _, slow = tokenize(slow_stage, tmp_path / "slow")
    assert len(fast) == len(slow) > len(TEXTS)
    for one, other in zip(fast, slow):
        assert (one.key, one.ids.tolist(), one.loss.tolist(), one.origin, one.continues) == (
            other.key, other.ids.tolist(), other.loss.tolist(), other.origin, other.continues,
        )  # fmt: skip
    stats = [open_manifest(tmp_path / name).stats for name in ("fast", "slow")]
    assert stats[0] == {name: n for name, n in stats[1].items() if name != "visual tokens"}


def test_bad_rows_are_rejects(tmp_path: Path) -> None:
    rows = [
        {"text": "good"},
        "{broken",
        {"text": 7},
        {"other": "x"},
        '{"text": "\\ud800"}',
        "[1]",
        "",
        {"text": "also good"},
    ]
    write_table(tmp_path / "in" / "web.jsonl", rows)
    manifest, tokens = tokenize(stage_of(tmp_path / "in"), tmp_path / "out")
    assert [row.key for row in tokens] == ["web-00000000", "web-00000007"]
    assert manifest.num_in == 7
    assert sum(manifest.skipped.values()) == 5
    assert manifest.skipped["missing field"] == 2
    assert manifest.skipped["row is not an object"] == 1


class PanicException(BaseException):
    """What a panic of Rust is to Python."""


@pytest.mark.parametrize("error", [RuntimeError, PanicException])
@pytest.mark.parametrize("is_text", [True, False])
def test_a_text_that_the_tokenizer_stumbles_over_costs_its_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException], is_text: bool
) -> None:
    whole = BUNDLED.load()

    def stumble(texts: Sequence[str]) -> Ragged:
        if any("poison" in text for text in texts):
            raise error("index out of bounds")
        return whole.encode_batch(texts)

    monkeypatch.setattr(module, "load_once", lambda _: replace(whole, encode_batch=stumble))
    texts = ["good", "poison", "also good"]
    stage: Any = stage_of(tmp_path / "in")
    if is_text:
        write_table(tmp_path / "in" / "web.jsonl", [{"text": text} for text in texts])
    else:
        documents = [Document((Segment(kind="text", text=text),)) for text in texts]
        samples = [Sample(key=f"web-{n:08d}", document=d) for n, d in enumerate(documents)]
        folder = store_samples(tmp_path / "samples", samples, 100)
        stage = Tokenize(input_dir=folder, tokenizer=BUNDLED, space=SPACE, template=PlainText())
    manifest, tokens = tokenize(stage, tmp_path / "out")
    assert [row.key for row in tokens] == ["web-00000000", "web-00000002"]
    assert manifest.skipped == {"refused by the tokenizer": 1}


def test_rows_without_tokens_or_too_long_are_rejects(tmp_path: Path) -> None:
    write_table(tmp_path / "in" / "web.jsonl", [{"text": text} for text in TEXTS])
    stage = stage_of(tmp_path / "in", template=PlainText(eos=False), max_length=100)
    manifest, tokens = tokenize(stage, tmp_path / "out")
    assert manifest.skipped == {"no tokens": 1, "too long": 1}
    assert [row.key[-1] for row in tokens] == ["0", "2", "3", "5"]


@pytest.mark.parametrize("per_shard", [None, 2])
@pytest.mark.parametrize("limit", [None, 0, 2, 3, 5, 9, 10])
def test_files_keep_their_order_and_the_limit_counts_over_all(
    tmp_path: Path, per_shard: int | None, limit: int | None
) -> None:
    for name in ("b", "a/c", "a/b"):
        write_table(tmp_path / "in" / f"{name}.jsonl", [{"body": name}, "bad", "", {"body": name}])
    stage = stage_of(tmp_path / "in", text_field="body", limit=limit, per_shard=per_shard)
    manifest, tokens = tokenize(stage, tmp_path / "out")
    rows = [(name, number) for name in ("b", "a/b", "a/c") for number in (0, 1, 3)][:limit]
    assert manifest.num_in == len(rows)
    assert [row.key for row in tokens] == [f"{name}-{n:08d}" for name, n in rows if n != 1]


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.zst", "jsonl.gz"])
def test_a_large_file_can_be_cut_into_units(tmp_path: Path, suffix: str) -> None:
    rows = ["", *({"text": f"{text} {n}"} for n in range(5) for text in TEXTS), "bad"]
    write_table(tmp_path / "in" / f"web.{suffix}", rows)
    whole = stage_of(tmp_path / "in")
    _, expected = tokenize(whole, tmp_path / "whole")
    report = run_stage(replace(whole, per_shard=7), tmp_path / "cut", workers=2, max_skip_rate=1.0)
    assert report.complete
    manifest = open_manifest(tmp_path / "cut")
    found = open_tokens(tmp_path / "cut", manifest)
    assert len(manifest.shards) == 5
    assert [(row.key, row.ids.tolist(), row.origin) for row in found] == [
        (row.key, row.ids.tolist(), row.origin) for row in expected
    ]
    assert manifest.num_in == open_manifest(tmp_path / "whole").num_in == 31


def test_a_file_that_was_cut_off_fails_its_unit(tmp_path: Path) -> None:
    path = tmp_path / "in" / "web.jsonl.zst"
    write_table(path, [{"text": "x" * 1000}] * 50)
    path.write_bytes(path.read_bytes()[:-10])
    report = run_stage(stage_of(tmp_path / "in"), tmp_path / "out", workers=0, retries=0)
    assert "middle of its compressed data" in report.failures[0][1]


lists = st.lists(st.lists(st.integers(10, 99), max_size=4), max_size=6)


def test_what_holds_no_lines_of_json_is_refused_before_the_work(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    with pytest.raises(ConfigError, match="there are no tables of text in"):
        list(stage_of(folder).units())
    for name in ("a.parquet", "b.csv.gz"):
        (folder / name).write_bytes(b"PAR1")
        with pytest.raises(ConfigError, match="does not hold lines of JSON: ingest it first"):
            list(stage_of(folder).units())
        (folder / name).unlink()


@given(lists, st.lists(st.integers(0, 9), max_size=2), st.lists(st.integers(0, 9), max_size=2))
def test_surrounding_puts_the_same_ids_around_each_list(
    texts: list[list[int]], first: list[int], last: list[int]
) -> None:
    found = surround(ragged(texts), first, last)
    assert [ids.tolist() for ids in found] == [[*first, *text, *last] for text in texts]
    assert found.bounds.dtype == np.int64


@pytest.mark.parametrize("change", [{"max_length": 0}, {"per_shard": 0}, {"limit": -1}])
def test_numbers_that_cannot_be_are_errors(tmp_path: Path, change: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        stage_of(tmp_path, **change)
