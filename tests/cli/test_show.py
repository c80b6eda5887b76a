"""`show` of exports and of foreign tokens: the rows that were exported, as a person reads them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from invoked import invoke
from mixed_folder import Mixed, make_mixed

from shardmill.cli.main import cli
from shardmill.errors import ConfigError

SECOND = "texts-00000001"
HAVING_KEYS = ("hf", "webdataset", "energon", "mds")
FORMATS = (*HAVING_KEYS, "megatron", "litdata", "tensordict,length=512,pad_id=0")


def shown(*words: object) -> list[Any]:
    return [json.loads(line) for line in invoke("show", *words, "--json").stdout.splitlines()]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Mixed:
    return make_mixed(tmp_path_factory.mktemp("mixed"), 8)


@pytest.mark.parametrize("format", FORMATS)
def test_an_export_shows_the_rows_that_it_was_made_from(place: Path, format: str) -> None:
    out = place / "out"
    invoke("export", place / "tokens", out, "--format", format, "--workers", 0)
    told, was_told = (invoke("show", place / n, "--sample", 3).output for n in ("out", "tokens"))
    text = was_told.splitlines()[-1].strip()
    assert text and text in told
    rows = shown(place / "tokens", "--count", 100)
    records = shown(out, "--count", 100)
    ids = [[token for document in r["documents"] for token in document["ids"]] for r in records]
    assert ids == [row["ids"] for row in rows]
    if format in HAVING_KEYS:
        assert shown(out, "--sample", SECOND) == records[1:2]
    else:
        with pytest.raises(ConfigError, match=f"no record has the key or number {SECOND!r}"):
            shown(out, "--sample", SECOND)


def test_loss_is_shown_only_by_formats_that_hold_it(place: Path) -> None:
    for format, said in (("hf", "learned"), ("megatron", "0 visual\n")):
        invoke("export", place / "tokens", place / format, "--format", format, "--workers", 0)
        assert said in invoke("show", place / format, "--sample", 0).output
    (record,) = shown(place / "megatron", "--sample", 0)
    assert record["documents"][0]["loss"] == []


def test_codes_media_and_documents_are_told(mixed: Mixed, tmp_path: Path) -> None:
    flags = ("--workers", 0, "--max-skip-rate", 1)
    format = f"mds,samples={mixed.samples}"
    invoke("export", mixed.tokens, tmp_path / "mds", "--format", format, *flags)
    told = invoke("show", tmp_path / "mds", "--sample", 2).output
    assert "codes 1   1,024: " in told and "medium 1  xxh3 " in told
    assert "[image 1.jpg: 1 x 32 x 32, 1024 tokens]" in told
    invoke("export", mixed.packs, tmp_path / "hf", "--format", "hf", *flags)
    assert max(len(pack["documents"]) for pack in shown(tmp_path / "hf", "--count", 99)) > 1
    assert "  mixed-00000004: 10 tokens" in invoke("show", tmp_path / "hf", "--count", 99).output


def test_text_and_codes_of_rows_without_tokens_are_told(mixed: Mixed, tmp_path: Path) -> None:
    words = (mixed.pairs, tmp_path / "out", "--format", "liquid", "--codes", mixed.codes)
    invoke("export", *words, "--workers", 0, "--max-skip-rate", 1)
    text, pair = shown(tmp_path / "out", "--count", 2)
    assert (len(text["codes"]), len(pair["codes"][0])) == (0, 1024)
    told = invoke("show", tmp_path / "out", "--count", 2).output
    assert text["text"].strip() in told and pair["text"].strip() in told


def test_without_the_tokenizer_ids_are_shown(place: Path) -> None:
    invoke("export", place / "tokens", place / "out", "--format", "megatron", "--workers", 0)
    ids = shown(place / "out", "--sample", 1)[0]["documents"][0]["ids"]
    shutil.rmtree(place / "tokens")
    told = invoke("show", place / "out", "--sample", 1)
    assert "shown as ids: " in told.stderr
    assert " ".join(map(str, ids[1:9])) in told.stdout


def test_foreign_tokens_are_shown_and_other_folders_refused(place: Path) -> None:
    """What lies in `shards` is a Megatron data set by itself."""
    rows = shown(place / "tokens", "--sample", 0, "--sample", 4)
    records = shown(place / "tokens" / "shards", "--sample", 0, "--sample", 4)
    for row, record in zip(rows, records, strict=True):
        assert np.array_equal(record["documents"][0]["ids"], row["ids"])
    (place / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"cannot tell what .*empty holds"):
        invoke("show", place / "empty")


def test_an_export_of_samples_shows_samples(place: Path) -> None:
    invoke("export", place / "shards", place / "out", "--format", "webdataset", "--workers", 0)
    assert shown(place / "out", "--sample", SECOND) == shown(place / "shards", "--sample", SECOND)


def test_tokens_without_some_are_still_decoded(place: Path) -> None:
    keys = ("--keys", place / "keys.txt", "--workers", 0)
    invoke("remove", place / "tokens", place / "less", *keys)
    (row,) = shown(place / "tokens", "--sample", 2)
    (same,) = shown(place / "less", "--sample", 1)
    assert same["key"] == row["key"] and same["runs"] == row["runs"]


def test_a_text_cannot_command_the_terminal(tmp_path: Path) -> None:
    text = "\x1b]0;owned\x07\x1b[2Jred\x9b31m\u202egpj\x1b[31mcolour"
    (tmp_path / "rows.jsonl").write_text(json.dumps({"text": text}))
    ingest = ["ingest", str(tmp_path / "rows.jsonl"), str(tmp_path / "out"), "--workers", "0"]
    assert CliRunner().invoke(cli, ingest).exit_code == 0
    shown = CliRunner().invoke(cli, ["show", str(tmp_path / "out")], color=True).output
    assert r"\u001b]0;owned\u0007\u001b[2Jred\u009b31m\u202egpj" in shown
    assert "\x1b[31mcolour" in shown
    plain = CliRunner().invoke(cli, ["show", str(tmp_path / "out"), "--json"]).output
    assert json.dumps(text)[1:-1] in json.dumps(json.loads(plain))
