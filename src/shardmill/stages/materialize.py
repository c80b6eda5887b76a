"""Materialize: the packs of a plan become shards on disk, in the order in which they are trained.

"megatron" writes token shards, "tar" writes WebDataset tars; `packwrite` states their content.
Every document keeps its own begin and end tokens. The tokens written are the tokens planned, or the
unit fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import xxhash

from shardmill.errors import ConfigError, UnitFailed
from shardmill.io.plans import open_plan
from shardmill.io.receipts import open_manifest
from shardmill.io.sampleset import open_samples
from shardmill.io.tokenlengths import token_lengths
from shardmill.io.tokenset import TokenSet, open_token_set
from shardmill.model.codec import Plain
from shardmill.model.lengths import LengthTable
from shardmill.model.plan import PackPlan
from shardmill.model.space import TokenSpace
from shardmill.model.stage import Draft, Tally, Unit, Work
from shardmill.model.tokenrow import TokenRow
from shardmill.pack.build import cut_row
from shardmill.pack.order import EpochOrder
from shardmill.stages.packwrite import NumberedPacks, tar_writer, write_tokens
from shardmill.stages.samplefiles import fingerprint_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Materialize:
    """The spec of packs on disk; `seed` and `epoch` choose the order of the packs.

    `samples_dir` is the folder of sample shards from which pictures are copied into tars.
    """

    version: ClassVar[int] = 2

    tokens_dir: Path
    plan_path: Path
    format: Literal["megatron", "tar"] = "megatron"
    samples_dir: Path | None = None
    packs_per_shard: int = 1000
    seed: int = 0
    epoch: int = 0

    def __post_init__(self) -> None:
        if self.packs_per_shard < 1:
            raise ConfigError(f"packs_per_shard must be at least 1, got {self.packs_per_shard}")
        if self.samples_dir is not None and self.format != "tar":
            raise ConfigError("samples_dir is for tars: Megatron's files hold no pictures")

    def units(self) -> Iterator[Unit]:
        """Yield a unit for each range of packs; it names plan and tokens by their content."""
        plan = open_plan(self.plan_path)
        plan.check_table(token_lengths(self.tokens_dir))
        tokens = open_manifest(self.tokens_dir)
        state = xxhash.xxh3_64((tokens.units_digest + tokens.stage_digest).encode())
        for array in (plan.members, plan.starts, plan.balanced, plan.cut_lengths):
            state.update(np.ascontiguousarray(array).view(np.uint8).data)
        for number, start in enumerate(range(0, len(plan), self.packs_per_shard)):
            stop = min(start + self.packs_per_shard, len(plan))
            made_of: dict[str, Plain] = {"start": start, "stop": stop, "content": state.hexdigest()}
            yield Unit(name=f"{number:05d}", input=made_of, num_samples=stop - start)

    @contextmanager
    def open(self) -> Iterator[Work]:
        """Map plan, tokens and samples, once a process."""
        tokens = open_token_set(self.tokens_dir, open_manifest(self.tokens_dir))
        plan, table = open_plan(self.plan_path), token_lengths(self.tokens_dir)
        plan.check_table(table)
        order = EpochOrder(plan, seed=self.seed, epoch=self.epoch)
        samples = None if self.samples_dir is None else open_samples(self.samples_dir)
        write = write_tokens if self.format == "megatron" else tar_writer(samples)

        def work(unit: Unit, draft: Draft, tally: Tally) -> None:
            first, last = unit.input["start"], unit.input["stop"]
            assert isinstance(first, int) and isinstance(last, int)
            packs = order.packs(np.arange(first, last))
            rows = (_rows(plan, table, tokens, int(pack)) for pack in packs)
            write(NumberedPacks(first, rows), _space(tokens), unit, draft, tally)

        yield work

    def inputs(self) -> Mapping[str, Any]:
        """Return the fingerprints of the plan and of the manifests."""
        paths = [self.plan_path, self.tokens_dir / "manifest.json"]
        if self.samples_dir is not None:
            paths.append(self.samples_dir / "manifest.json")
        return fingerprint_of(paths)


def _rows(plan: PackPlan, table: LengthTable, tokens: TokenSet, pack: int) -> list[TokenRow]:
    numbers = plan[pack]
    planned = plan.lengths_of(numbers, table).tolist()
    rows = [cut_row(tokens[number], n) for number, n in zip(numbers.tolist(), planned)]
    if [len(row.ids) for row in rows] != planned:
        raise UnitFailed(f"pack {pack} has other lengths than planned: {planned}")
    return rows


def _space(tokens: TokenSet) -> TokenSpace:
    space = tokens.space
    assert space is not None, "a plan with packs has rows, and rows have a space"
    return space
