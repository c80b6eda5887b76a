from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from token_folder import write_token_folder

from shardmill.model.space import TokenSpace
from shardmill.model.tokenrow import MediaSpan, TokenRow
from shardmill.pack.build import as_pack
from shardmill.shards.tokens.shard import TokenShard, open_token_shard, open_tokens
from shardmill.shards.tokens.write import TokenWriter
from shardmill.stages.check import tokens as checktokens
from shardmill.stages.check.findings import Limits
from shardmill.stages.check.tokens import check_token_shard

SPACE = TokenSpace(text_size=100, added=("patch",))
IMAGE = MediaSpan(name="jpg", kind="image", position=1, num_tokens=4, grid=(1, 2, 2))


def row(number: int, *, stray: bool = False) -> TokenRow:
    ids = np.array([1, 100, 100, 100, 100, *range(number % 7), 100 if stray else 2])
    return TokenRow(key=f"k{number}", ids=ids, loss=np.array([[len(ids) - 1, 1]]), media=(IMAGE,))


def shard_of(tmp_path: Path, rows: list[TokenRow]) -> TokenShard:
    folder = write_token_folder(tmp_path / "tokens", [rows], SPACE)
    return open_tokens(folder).shard(0)


def test_counts_add_up(tmp_path: Path) -> None:
    rows = [row(number) for number in range(20)]
    findings = check_token_shard(shard_of(tmp_path, rows), Limits())
    assert findings.counts == {
        "rows": 20,
        "tokens": sum(len(row.ids) for row in rows),
        "loss tokens": 20,
        "visual tokens": 80,
        "media": 20,
    }
    assert findings.faults == []


@pytest.mark.parametrize("at_once", [1, 10, 1 << 22])
def test_faults_are_named_however_the_shard_is_cut(
    tmp_path: Path, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checktokens, "TOKENS_AT_ONCE", at_once)
    rows = [row(number, stray=number in (3, 17)) for number in range(20)]
    findings = check_token_shard(shard_of(tmp_path, rows), Limits())
    assert [fault.key for fault in findings.faults] == ["k3", "k17"]
    assert all("placeholders outside" in fault.what for fault in findings.faults)


def test_rows_and_packs_are_measured_by_the_limit(tmp_path: Path) -> None:
    rows = [row(number) for number in range(6)]
    findings = check_token_shard(shard_of(tmp_path, rows), Limits(max_tokens=9))
    assert [fault.key for fault in findings.faults] == ["k4", "k5"]
    paths = {role: tmp_path / f"packs.{role}" for role in ("bin", "idx", "spans")}
    with TokenWriter(lambda role: paths[role], SPACE, {"packs": True}) as writer:
        for pack in (rows[:2], rows[2:5], rows[5:]):
            for one in as_pack(pack):
                writer.append(one)
    findings = check_token_shard(open_token_shard(paths), Limits(max_tokens=20))
    assert [(fault.key, fault.what) for fault in findings.faults] == [
        ("k2", "has 27 tokens, more than 20")
    ]
    assert findings.counts["packs"] == 3


def test_many_faults_are_counted_and_the_first_are_listed(tmp_path: Path) -> None:
    findings = check_token_shard(
        shard_of(tmp_path, [row(number, stray=True) for number in range(50)]), Limits()
    )
    assert findings.num_faults == 50 and len(findings.faults) == 20


@pytest.mark.parametrize("name", ["num_visual", "num_fixed"])
def test_columns_that_do_not_add_up_are_named(tmp_path: Path, name: str) -> None:
    shard = shard_of(tmp_path, [row(number) for number in range(4)])
    wrong = {**shard.columns, name: shard.columns[name] + 1}
    findings = check_token_shard(replace(shard, columns=wrong), Limits())
    assert [fault.what for fault in findings.faults] == [
        f"its column {name} does not add up to its media"
    ]
