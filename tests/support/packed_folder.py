"""A small packed data set: token shards, their lengths and a plan, as files."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from token_folder import write_token_folder

from shardmill.model.plan import LengthTable, PackPlan, PackSpec, length_table
from shardmill.model.sample import Origin
from shardmill.model.tokenrow import TokenRow
from shardmill.packing.plan import plan_packs
from shardmill.shards.plans import write_lengths, write_plan
from shardmill.shards.tokens.shard import token_lengths

PER_SHARD = 64


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
    tokens = write_rows(folder / "tokens", rows)
    table = token_lengths(tokens)
    plan = plan_packs(table, PackSpec(capacity=128, block=16), loops="plain")
    write_plan(folder / "plan.bin", plan)
    write_lengths(folder / "lengths.bin", table)
    return Made(tokens, folder / "plan.bin", folder / "lengths.bin", plan, table, rows)


def token_row(number: int, length: int) -> TokenRow:
    """Return a row whose ids tell its number; all but the first token carry loss."""
    ids = (np.arange(length) + number * 7) % 190 + 5
    loss = np.array([[1, length - 1]] if length > 1 else np.empty((0, 2)), np.int64)
    origin = Origin(source="made", path=f"raw-{number // 50}.jsonl", row=number)
    return TokenRow(key=f"sample-{number:05d}", ids=ids, loss=loss, origin=origin)


def write_rows(folder: Path, rows: list[TokenRow]) -> Path:
    """Write rows as shards of 64; returns the folder."""
    shards = [rows[start : start + PER_SHARD] for start in range(0, len(rows), PER_SHARD)]
    return write_token_folder(folder, shards)


def lengths_of(rows: list[TokenRow]) -> LengthTable:
    """Return the table of these rows."""
    return length_table([len(row.ids) for row in rows])
