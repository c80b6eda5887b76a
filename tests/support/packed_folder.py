"""A small packed data set: token shards, their lengths and a plan, as files."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from token_folder import lengths_of, token_row, write_token_folder

from shardmill.io.lengths import write_lengths
from shardmill.io.plans import write_plan
from shardmill.model.lengths import LengthTable
from shardmill.model.plan import PackPlan, PackSpec
from shardmill.model.tokenrow import TokenRow
from shardmill.pack.plan import plan_packs


@dataclass(frozen=True)
class Made:
    """Files of a data set, and what is in them."""

    tokens: Path
    plan_path: Path
    lengths_path: Path
    plan: PackPlan
    table: LengthTable
    rows: list[TokenRow]


def make_packed(folder: Path) -> Made:
    """Return 500 token rows in 8 shards, packed to 128 tokens."""
    rng = random.Random(0)
    rows = [token_row(number, rng.randint(1, 60)) for number in range(500)]
    table = lengths_of(rows)
    plan = plan_packs(table, PackSpec(capacity=128, block=16), engine="plain")
    write_plan(folder / "plan.bin", plan)
    write_lengths(folder / "lengths.bin", table)
    tokens = write_token_folder(folder / "tokens", rows)
    return Made(tokens, folder / "plan.bin", folder / "lengths.bin", plan, table, rows)
