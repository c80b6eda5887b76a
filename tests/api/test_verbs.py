"""Verbs as functions: what they take, what they return, and what they raise."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

import shardmill as sm
from shardmill.api.running import RunFailed
from shardmill.errors import ConfigError, StaleError
from shardmill.running.local import Local
from shardmill.sources.filters import TextLength

NUM_ROWS = 6


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    lines = (json.dumps({"text": "word " * (n + 1), "vq": [n, 1, 2, 3]}) for n in range(NUM_ROWS))
    Path("rows.jsonl").write_text("\n".join(lines))
    return "rows.jsonl"


@pytest.mark.parametrize(
    "filter",
    [
        "text_length,min_chars=16",
        {"kind": "text_length", "min_chars": 16},
        TextLength(min_chars=16),
        [TextLength(min_chars=16)],
    ],
)
def test_a_plugin_is_a_string_a_table_or_an_object(rows: str, filter: object) -> None:
    assert sm.ingest(rows, "out", filter=filter, workers=0).counts == (NUM_ROWS, 3)


def test_a_place_is_a_path_or_what_a_verb_returned(rows: str) -> None:
    shards = sm.ingest([Path(rows)], Path("shards"), workers=0)
    codes = sm.codes(shards, "codes", from_="vq", workers=0)
    tokens = sm.tokenize("shards", "tokens", workers=0)
    plan = sm.plan(tokens, "packs.plan", capacity=16)
    packs = sm.pack(tokens, plan, "packs", workers=0)
    assert len(codes) == len(tokens) == NUM_ROWS and len(packs) == len(plan)
    assert sm.diff(shards, "shards").changed == 0
    assert sm.check(packs, workers=0).sound


def test_codes_are_taken_from_the_folder_that_is_given(rows: str) -> None:
    shards = sm.ingest(rows, "shards", workers=0)
    codes = sm.codes(shards, "codes", from_="vq", workers=0)
    space = {"num_codes": 8192, "added": ["boi", "eoi"]}
    given = (codes, "codes", Path("codes"), "shards,folder=codes")
    stages = [
        sm.tokenize(
            shards, f"tokens-{n}", template="interleaved", codes=one, space=space, workers=0
        ).spec.codes
        for n, one in enumerate(given)
    ]
    assert {Path(stage.folder).name for stage in stages} == {"codes"}


def test_running_again_does_nothing_and_other_settings_are_refused(rows: str) -> None:
    first = sm.ingest(rows, "out", workers=0, on=Local())
    assert first.report is not None and first.report.num_done == 1
    again = sm.ingest(rows, "out", workers=0)
    assert again.report is not None and again.report.num_done == 0
    with pytest.raises(StaleError, match="limit"):
        sm.ingest(rows, "out", limit=2, workers=0)


def test_failed_units_are_raised_with_their_report(rows: str) -> None:
    Path(rows).write_text('{"text": "good"}\n{"text": \n')
    with pytest.raises(RunFailed, match="1 unit of out failed") as caught:
        sm.ingest(rows, "out", shape="text", max_skip_rate=0.0, workers=0)
    assert [unit for unit, _ in caught.value.report.failures] == ["000000"]
    assert isinstance(caught.value, sm.ShardmillError)


def test_functions_are_quiet_unless_asked(rows: str, capfd: pytest.CaptureFixture[str]) -> None:
    made = sm.ingest(rows, "out", workers=0)
    assert capfd.readouterr() == ("", "")
    (made.path / "shards" / "000000.tar").unlink()
    report = sm.check("out", repair=True, workers=0)
    assert report.sound and report.repaired is not None and report.repaired.num_done == 1
    assert capfd.readouterr() == ("", "")


def test_what_workers_inherit_is_put_back(rows: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDMILL_THREADS", "7")
    before = dict(os.environ)
    sm.ingest(rows, "out", per_host=3, workers=0)
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: sm.ingest("rows.jsonl", "out", part="3"), "must look like 3/8"),
        (lambda: sm.ingest("rows.jsonl", "out", max_media_bytes="big"), "is not a size"),
        (lambda: sm.ingest(".", "out"), "lies inside of the input"),
        (lambda: sm.filter(["a", "b"], "out"), "one path"),  # type: ignore[arg-type]
        (lambda: sm.frames("rows.jsonl", "out", clip="1"), "START,END"),
        (lambda: sm.codes("rows.jsonl", "out"), "give the weights"),
        (lambda: sm.measure("rows.jsonl", "out", model="llava"), "estimate"),
        (lambda: sm.check("rows.jsonl", same="x", ignore="colour"), "no aspect 'colour'"),
    ],
)
@pytest.mark.usefixtures("rows")
def test_mistakes_are_named(call: object, told: str) -> None:
    assert callable(call)
    with pytest.raises(ConfigError, match=told):
        call()


def test_plan_takes_the_numbers_of_the_user(tmp_path: Path) -> None:
    plan = sm.plan(np.array([5, 3, 4, 8]), tmp_path / "a.plan", capacity=8)
    assert sorted(sorted(plan[k].tolist()) for k in range(len(plan))) == [[0, 1], [2], [3]]
    columns = {"num_tokens": [5, 3], "num_visual": [2, 0], "source": [0, 1]}
    named = sm.plan({**columns, "source_names": ["a", "b"]}, tmp_path / "b.plan", capacity=8)
    assert [share.num_visual for share in named.report.sources] == [2, 0]
    for wrong, said in (
        ({"tokens": [1]}, "no column 'tokens': use num_tokens"),
        ({"num_visual": [1]}, "need the column 'num_tokens'"),
        ([1.5], "whole numbers"),
        ([0], "at least 1"),
    ):
        with pytest.raises(sm.ShardmillError, match=said):
            sm.plan(wrong, tmp_path / "c.plan", capacity=8)
    assert not (tmp_path / "c.plan").exists()
