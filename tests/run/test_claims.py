"""Claims: one task a try, numbers that only grow, and a maker that can be told."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path

import pytest

from shardmill.run.claims import FREE, Claims


def test_of_many_that_claim_one_gets_it(tmp_path: Path) -> None:
    rivals = [Claims(tmp_path, f"{i:016x}") for i in range(16)]
    with ThreadPoolExecutor(16) as pool:
        for number in (1, 2, 3):
            won = list(pool.map(Claims.take, rivals, repeat("a.b"), repeat(number)))
            assert sum(won) == 1
            assert rivals[0].owner("a.b", number) == rivals[won.index(True)].token
    assert rivals[0].latest() == {"a.b": 3}


def test_only_its_maker_frees_a_claim(tmp_path: Path) -> None:
    mine, other = Claims(tmp_path, "1" * 16), Claims(tmp_path, "2" * 16)
    assert mine.take("u", 1)
    other.free("u", 1)
    assert mine.owner("u", 1) == mine.token
    mine.free("u", 1)
    assert other.owner("u", 1) == FREE
    assert other.take("u", 2) and not mine.take("u", 2)


def test_tries_that_were_given_back_are_no_deaths(tmp_path: Path) -> None:
    claims = Claims(tmp_path, "1" * 16)
    for number in range(1, 6):
        claims.take("u", number)
    for number in (2, 4):
        claims.free("u", number)
    assert claims.num_deaths("u", 5) == 3


@pytest.mark.parametrize("content", [b"", b"../../etc", b"\xff\xfe", b"a" * 99, b"a/b"])
def test_what_no_task_wrote_has_no_owner(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "u.1").write_bytes(content)
    assert Claims(tmp_path, "1" * 16).owner("u", 1) == ""


def test_a_folder_that_is_gone_has_no_claims_and_takes_none(tmp_path: Path) -> None:
    claims = Claims(tmp_path / "gone", "1" * 16)
    assert claims.latest() == {} and not claims.take("u", 1)
    claims.free("u", 1)


def test_names_with_dots_and_strange_files(tmp_path: Path) -> None:
    claims = Claims(tmp_path, "1" * 16)
    assert claims.take("shard.v2.007", 1) and claims.take("shard.v2", 11)
    (tmp_path / "README").touch()
    (tmp_path / ".nfs0001").touch()
    assert {"shard.v2.007": 1, "shard.v2": 11}.items() <= claims.latest().items()
