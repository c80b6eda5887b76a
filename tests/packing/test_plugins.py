"""Packers and balancers from outside plan, order and train like the built-in ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from packed_folder import Made, make_packed

from shardmill.cli.main import cli
from shardmill.errors import ConfigError
from shardmill.model.plan import PackSpec, length_table
from shardmill.packing.balance import Costs
from shardmill.packing.fit import Fit, Room
from shardmill.packing.loops import Histogram, Loops, Packs, Patterns
from shardmill.packing.order import EpochOrder
from shardmill.packing.plan import plan_packs
from shardmill.shards.plans import open_plan

HERE = "shardmill_outside"


@dataclass(frozen=True, slots=True, kw_only=True)
class NextFit:
    """Fills one pack after another, in rising order; `wrong` breaks a law on purpose."""

    leave_free: int = 0
    wrong: str = ""

    def fit(self, histogram: Histogram, room: Room) -> Fit:
        lengths = np.repeat(np.arange(len(histogram)), histogram).tolist()
        packs = list(self._packs(lengths[1:] if self.wrong == "loses" else lengths, room))
        if self.wrong == "overfills":
            packs = [[length for pack in packs for length in pack]]
        return Fit(Patterns.of(packs))

    def _packs(self, lengths: list[int], room: Room) -> Iterator[list[int]]:
        pack: list[int] = []
        for length in lengths:
            is_full = sum(pack) + length > room.capacity - self.leave_free
            if pack and (is_full or len(pack) == room.max_documents):
                yield pack
                pack = []
            pack.append(length)
        if pack:
            yield pack


@dataclass(frozen=True, slots=True, kw_only=True)
class Cheapest:
    """The cheapest first."""

    twice: bool = False

    def order(self, visual: Costs, cost: Costs, *, block: int, key: int, loops: Loops) -> Packs:
        order = np.argsort(cost, kind="stable")
        return order[[0, *range(len(order) - 1)]] if self.twice else order


@pytest.fixture(autouse=True)
def _outside(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    from types import SimpleNamespace

    module = SimpleNamespace(NextFit=NextFit, Cheapest=Cheapest)
    monkeypatch.setitem(sys.modules, HERE, module)  # type: ignore[misc]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_packed(tmp_path_factory.mktemp("plugins"))


def test_an_outside_method_plans_orders_and_trains(made: Made, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from shardmill.train.loader import loader

    path = tmp_path / "packs.plan"
    words = ["plan", made.tokens, path, "--capacity", 128]
    words += ["--method", f"{HERE}:NextFit,leave_free=8", "--balance", f"{HERE}:Cheapest"]
    told = CliRunner().invoke(cli, list(map(str, words)))
    assert told.exit_code == 0, told.output
    assert f"{HERE}:NextFit" in told.output
    plan = open_plan(path)
    assert (plan.spec.method, plan.spec.balance) == tuple(map(str, (words[6], words[8])))
    assert sorted(plan.members.tolist()) == list(range(len(made.rows)))
    tokens = [made.table.num_tokens[plan[pack]].sum() for pack in range(len(plan))]
    assert max(tokens) <= 120 < 128
    squares = [(made.table.num_tokens[plan[k]].astype(int) ** 2).sum() for k in plan.balanced]
    assert squares == sorted(squares)
    order = EpochOrder(plan, seed=1, epoch=0).all_packs()
    batches = list(loader(path, made.tokens, seed=1, collate=lambda packs: packs[0].number))
    assert batches == order.tolist()


def test_a_plan_opens_without_the_plugin(made: Made, tmp_path: Path) -> None:
    from shardmill.shards.plans import write_plan

    spec = PackSpec(capacity=128, method="no_such_module:Packer")
    with pytest.raises(ConfigError, match="no_such_module"):
        plan_packs(made.table, spec)
    from dataclasses import replace

    write_plan(tmp_path / "x.plan", replace(made.plan, spec=spec))
    assert open_plan(tmp_path / "x.plan").spec == spec


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"method": f"{HERE}:NextFit,wrong=loses"}, "put length 1 0 times, there are 1"),
        ({"method": f"{HERE}:NextFit,wrong=overfills"}, "put 15 units in a pack of 6"),
        ({"balance": f"{HERE}:Cheapest,twice=true"}, "does not list each pack once"),
        ({"method": f"{HERE}:NextFit,colour=red"}, "no field 'colour'"),
    ],
)
def test_what_breaks_a_law_is_refused(fields: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        plan_packs(length_table(np.arange(1, 6)), PackSpec(capacity=6, **fields))
