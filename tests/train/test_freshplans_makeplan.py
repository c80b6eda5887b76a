"""The maker of a plan: the same plan as in process, and gone with whoever started it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from packed_folder import Made

from shardmill.errors import StaleError
from shardmill.pack.plan import plan_packs
from shardmill.shards.lengths import token_lengths
from shardmill.shards.plans import open_plan, write_plan
from shardmill.train.freshplans import make_plan


def start(*words: str | Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "shardmill.train.freshplans", *map(str, words)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)


def test_a_process_makes_the_plan_of_an_epoch(made: Made, tmp_path: Path) -> None:
    assert start(made.plan_path, made.lengths_path, "2", tmp_path / "x.plan").wait(120) == 0
    expected = plan_packs(made.table, replace(made.plan.spec, epoch=2))
    assert np.array_equal(open_plan(tmp_path / "x.plan").members, expected.members)


def test_lengths_may_be_those_of_token_shards(made: Made, tmp_path: Path) -> None:
    spec, table = made.plan.spec, token_lengths(made.tokens)
    write_plan(tmp_path / "first.plan", plan_packs(table, spec))
    make_plan(tmp_path / "first.plan", made.tokens, 3, tmp_path / "x.plan")
    expected = plan_packs(table, replace(spec, epoch=3))
    assert np.array_equal(open_plan(tmp_path / "x.plan").members, expected.members)
    with pytest.raises(StaleError, match="other lengths"):
        make_plan(made.plan_path, made.tokens, 3, tmp_path / "y.plan")


def test_it_ends_when_its_input_does(tmp_path: Path) -> None:
    pipe = tmp_path / "never.plan"
    os.mkfifo(pipe)  # whoever opens it waits
    maker = start(pipe, tmp_path, "1", tmp_path / "x.plan")
    assert maker.stdin is not None
    maker.stdin.close()
    assert maker.wait(120) == 1
