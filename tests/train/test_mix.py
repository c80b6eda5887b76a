"""A mix keeps its weights everywhere, repeats nothing, and can change its weights on the way."""

from __future__ import annotations

from collections import Counter
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

from packed_folder import Made

import shardmill as sm
from shardmill.cli.main import cli
from shardmill.errors import ConfigError, StaleError
from shardmill.model.plan import PackSpec
from shardmill.packing.plan import plan_packs
from shardmill.train.dataset import PackedDataset
from shardmill.train.documents import TokenReader, TrainPack
from shardmill.train.loader import StepLoader
from shardmill.train.mix import SOURCE_BITS, WINDOW, Interleaving, Mix, MixSource, apportion

WEIGHTS = {"a": 3.0, "b": 1.0}


def numbers_of(packs: list[TrainPack]) -> list[int]:
    return [pack.number for pack in packs]


@pytest.fixture(scope="module")
def mix(made: Made) -> Mix:
    reader = TokenReader.open(made.tokens)
    small = plan_packs(made.table, PackSpec(capacity=600), loops="plain")
    sources = {"a": PackedDataset(made.plan_path, reader), "b": PackedDataset(small, reader)}
    return Mix(sources, WEIGHTS)


def steps(sampler: Any, count: int) -> list[list[int]]:
    batches = iter(sampler)
    return [next(batches) for _ in range(count)]


# Weights that stand still, move, jump, begin late and end early, many sources and few.
SCHEDULES: dict[str, dict[str, Any]] = {
    "constant": {"weights": {"a": 0.5, "b": 0.3, "c": 0.2}},
    "line": {"weights": {"a": [(0, 3), (100, 1)], "b": 1}, "packs_per_step": 8},
    "jumps": {
        "weights": {"a": 1, "b": [(0, 0), (50, 0), (50, 2)], "c": [(10, 1), (60, 0)]},
        "packs_per_step": 8,
    },
    "runs": {
        "weights": {"a": [(0, 1), (40, 1), (40, 0), (300, 1)], "b": [(20, 1), (80, 9)]},
        "packs_per_step": 12,
        "run": 4,
    },
    "many": {
        "weights": {
            f"{n:03}": [(0, n % 3), (7, 2), (9, n % 2 + 0.1), (9, 1), (10, 1 + n)]
            for n in range(99)
        },
        "packs_per_step": 16,
    },
}


def expected_weight(points: Any, step: int) -> float:
    """Return the weight at a step as the documentation says it: straight lines, jumps."""
    if isinstance(points, int | float):
        return float(points)
    before = [point for point in points if point[0] <= step]
    after = [point for point in points if point[0] > step]
    if not before or not after:
        return float((before or after[:1])[-1][1])
    (left, low), (right, high) = before[-1], after[0]
    return low + (high - low) * (step - left) / (right - left)


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_stretch_has_the_shares_of_its_schedule(name: str) -> None:
    given = SCHEDULES[name]
    mixed, run, num = Interleaving(**given), given.get("run", 1), 3 * WINDOW
    per_step = given.get("packs_per_step", 1)
    found = [mixed.at(place) for place in range(num)]
    sources = np.array([source for source, _ in found])
    for source in range(len(mixed.names)):
        counts = [count for at, count in found if at == source]
        assert counts == list(range(len(counts)))
    weights = np.array(
        [
            [expected_weight(points, step) for points in given["weights"].values()]
            for step in range(-(-num // per_step))
        ]
    )
    shares = (weights / weights.sum(axis=1, keepdims=True)).repeat(per_step, axis=0)[:num]
    assert (shares[np.arange(num), sources] > 0).all()  # a source of weight 0 does not come
    realised = np.cumsum(sources[:, None] == np.arange(len(mixed.names)), axis=0)
    assert np.abs(realised - np.cumsum(shares, axis=0)).max() < 2 * run
    for place in (0, 1, per_step, 400, 401, 4096, 5000, num - 1):
        assert (
            mixed.taken(place) == np.bincount(sources[:place], minlength=shares.shape[1]).tolist()
        )
        at = weights[place // per_step]
        assert np.allclose(list(mixed.weights_at(place).values()), at)


def test_a_long_schedule_costs_no_more() -> None:
    mixed = Interleaving({"a": [(0, 1), (10**6, 3)], "b": 1}, packs_per_step=512)
    end = 512 * 10**6
    # The integral of the share (1 + 2s) / (2 + 2s) over the line is 1 - ln(2) / 2.
    assert mixed.taken(end)[0] / end == pytest.approx(1 - np.log(2) / 2, abs=1e-5)
    assert mixed.taken(10**12)[0] / 10**12 == pytest.approx(0.75, abs=1e-3)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.one_of(st.just(0.0), st.floats(1e-6, 1e6)), min_size=1, max_size=20),
    st.integers(1, 100),
)
def test_whole_numbers_add_up(parts: list[float], total: int) -> None:
    exact = np.array(parts)
    if not exact.sum():
        return
    exact *= total / exact.sum()
    counts = apportion(exact, total)
    assert counts.sum() == total and not counts[exact == 0].any()
    assert np.abs(counts - exact).max() <= 1


@pytest.mark.parametrize("run", [1, 4])
def test_ranks_share_the_stream_and_sources_run_through_epochs(mix: Mix, run: int) -> None:
    mix = Mix(mix.sources, WEIGHTS, run=run)
    per_rank = [steps(mix.sampler(rank=r, world=2, batch_size=2), 100) for r in range(2)]
    seen = [n for a, b in zip(*per_rank) for n in [*a, *b]]
    size = len(mix.sources["a"])
    of_a = [n for n in seen if not n >> SOURCE_BITS]
    assert abs(len(of_a) - 300) <= run
    first_epoch = of_a[:size]
    assert sorted(first_epoch) == list(range(size))
    of_b = Counter(n for n in seen if n >> SOURCE_BITS)
    assert max(of_b.values()) - min(of_b.values()) <= 1


def test_resume_is_exact_on_other_ranks(mix: Mix) -> None:
    whole = [n for batch in steps(mix.sampler(), 120) for n in batch]
    loader = StepLoader(mix, mix.sampler(batch_size=4), collate_fn=numbers_of)
    batches = iter(loader)
    got = [n for _ in range(10) for n in next(batches)]
    later = mix.sampler(batch_size=2)
    later.load_state_dict(loader.state_dict())
    got += [n for batch in steps(later, 40) for n in batch]
    assert got == whole
    with pytest.raises(TypeError, match="no length"):
        len(loader)
    with pytest.raises(ConfigError, match="no epochs"):
        loader.begin_epoch(1)


@pytest.mark.parametrize("run", [1, 3])
def test_new_weights_repeat_nothing(mix: Mix, run: int) -> None:
    size = len(mix.sources["a"])
    first = Mix(mix.sources, WEIGHTS, run=run).sampler()
    seen = [n for batch in steps(first, 50) for n in batch]
    state = first.start
    for _ in range(50):
        state = first.advance(state)
    plain = first.to_plain(state)
    assert sum(one["packs"] for one in plain["taken"].values()) == 50
    later = Mix(mix.sources, {"a": 1.0, "b": 9.0}, run=run).sampler()
    later.load_state_dict(plain)
    seen += [n for batch in steps(later, 200) for n in batch]
    for source, size_of in enumerate((size, len(mix) - size)):
        part = [n for n in seen if n >> SOURCE_BITS == source]
        epochs = [part[i : i + size_of] for i in range(0, len(part), size_of)]
        assert all(len(set(epoch)) == len(epoch) for epoch in epochs)


def test_a_source_may_go_and_come_back(mix: Mix) -> None:
    alone = Mix({"a": mix.sources["a"]}, {"a": 1.0})
    both = mix.sampler()
    state = both.start
    for _ in range(40):
        state = both.advance(state)
    without = alone.sampler()
    without.load_state_dict(both.to_plain(state))
    kept = without.to_plain(without.advance(without.start))
    assert {name: one["packs"] for name, one in kept["taken"].items()} == {"a": 31, "b": 10}
    again = mix.sampler()
    again.load_state_dict(kept)
    assert again.to_plain(again.start)["taken"] == kept["taken"]


def test_the_order_in_which_sources_are_given_changes_nothing(mix: Mix) -> None:
    evenly = {"a": 1.0, "b": 1.0}
    one, other = (Mix({n: mix.sources[n] for n in names}, evenly) for names in ("ab", "ba"))
    state = one.sampler().advance(one.sampler().start)
    resumed = other.sampler()
    resumed.load_state_dict(one.sampler().to_plain(state))
    assert steps(resumed, 9) == steps(one.sampler(), 10)[1:]


def test_a_damaged_state_is_refused(mix: Mix) -> None:
    sampler = mix.sampler()
    plain = sampler.to_plain(sampler.start)
    bad: list[dict[str, Any]] = [{**plain, n: None} for n in plain if n != "packs_per_step"]
    bad += [{n: v for n, v in plain.items() if n != name} for name in plain]
    bad += [{**plain, "mixed": -1}, {**plain, "mixed": 3}, {**plain, "run": True}]
    for packs, consumed in (("3", 3), (3, 3), (-3, 0), (0, -1), (0, 999)):
        reached = {"packs": packs, "epoch": 0, "consumed": consumed}
        bad.append({**plain, "taken": {**plain["taken"], "a": reached}})
    for state in bad:
        with pytest.raises(ConfigError):
            sampler.load_state_dict(state)


def test_what_cannot_be_mixed(mix: Mix, made: Made) -> None:
    for weights in ({"a": 1.0}, {"a": 1.0, "b": 0.0}, {"a": 1.0, "b": float("nan")}):
        with pytest.raises(ConfigError):
            Mix(mix.sources, weights).sampler()
    wrong: list[tuple[Any, dict[str, int], str]] = [
        ([(0, 1), (5, 2)], {}, "give packs_per_step"),
        ([(0, 1), (5, 2)], {"packs_per_step": 6, "run": 4}, r"a multiple of run \(4\), got 6"),
        ([(5, 1), (0, 2)], {"packs_per_step": 4}, "count from 0 and grow"),
        ([(-5, 1), (0, 2)], {"packs_per_step": 4}, "count from 0 and grow"),
        ([(5, 1), (5, 2), (5, 3)], {"packs_per_step": 4}, "two points at one are a jump"),
        ([(0, 1), (5, -2)], {"packs_per_step": 4}, "not negative"),
        ([(0, 0), (5, 0)], {"packs_per_step": 4}, "never comes"),
        ([(0.5, 1), (5, 2)], {"packs_per_step": 4}, "a number or a list of"),
        ([1, 2], {"packs_per_step": 4}, "a number or a list of"),
        ([], {}, "a number or a list of"),
    ]
    for points, more, message in wrong:
        with pytest.raises(ConfigError, match=message):
            Mix(mix.sources, {"a": 1.0, "b": points}, **more)
    with pytest.raises(ConfigError, match="at step 5 no source has a weight above 0"):
        gone = [(0, 1), (5, 0), (9, 0), (9, 1)]
        Mix(mix.sources, {"a": gone, "b": gone}, packs_per_step=4)
    with pytest.raises(ConfigError, match="at least one source"):
        Mix({}, {})
    plain = mix.sampler().to_plain(mix.sampler().start)
    with pytest.raises(StaleError, match="seed"):
        mix.sampler(seed=1).load_state_dict(plain)
    swapped = Mix({"a": mix.sources["b"], "b": mix.sources["a"]}, WEIGHTS)
    with pytest.raises(
        StaleError, match=r"source 'a': this state packs by another plan \(checksum"
    ):
        swapped.sampler().load_state_dict(plain)
    with pytest.raises(ConfigError, match="not the state of a mix"):
        mix.sampler().load_state_dict({})


MOVING = {"a": [(0, 4), (12, 1)], "b": [(0, 0), (3, 0), (3, 2)]}


def write_mix(folder: Path, made: Made, **more: Any) -> Path:
    """Write a mix of two plans of the same tokens, the second with a plan for each epoch."""
    small = folder / "small.plan"
    sm.plan(made.tokens, small, capacity=250)
    points = {name: [[*point] for point in found] for name, found in MOVING.items()}
    lines = {
        "a": f'plan = "{made.plan_path}"\ndata = "{made.tokens}"\nweight = {points["a"]}',
        "b": f'plan = "small.plan"\ndata = "{made.tokens}"\nweight = {points["b"]}\n'
        f'lengths = "{made.lengths_path}"\nepoch_plans = "plans"',
    }
    path = folder / "mix.toml"
    tables = [f"[mix.sources.{name}]\n{text}\n" for name, text in lines.items()]
    path.write_text("\n".join(["[mix]\npacks_per_step = 8\n", *tables]))
    return path


def ids_of(packs: list[TrainPack]) -> list[tuple[int, bytes]]:
    return [(one.number, one.pack.input_ids.tobytes()) for one in packs]


def draw(batches: Any, count: int) -> list[Any]:
    return [batch for _, batch in zip(range(count), batches)]


def test_a_schedule_resumes_on_other_ranks_and_workers_byte_for_byte(
    made: Made, tmp_path: Path
) -> None:
    path = write_mix(tmp_path, made)
    given: dict[str, Any] = {"collate": ids_of, "seed": 5}
    num_steps = 40  # through several epochs of the smaller source, each with a plan of its own
    whole = [
        one for batch in draw(sm.loader(path, batch_size=8, **given), num_steps) for one in batch
    ]
    assert max(n >> 32 & 0xFFFFFF for n, _ in whole if n >> SOURCE_BITS) >= 2
    got, state = [], None
    for world, batch_size, count, workers in (
        (1, 8, 5, 0),
        (4, 2, 9, 0),
        (2, 1, 50, 1),
        (8, 1, 11, 0),
    ):
        ranks = []
        for rank in range(world):
            loader = sm.loader(
                path, rank=rank, world=world, batch_size=batch_size, workers=workers, **given
            )
            if state is not None:
                loader.load_state_dict(orjson.loads(orjson.dumps(state)))
            ranks.append(draw(loader, count))
        for steps_of_ranks in zip(*ranks):
            # Rank r takes every `world`-th pack of a step from the r-th on.
            got += [batch[k] for k in range(batch_size) for batch in steps_of_ranks]
        state = loader.state_dict()
    assert got == whole[: len(got)] and len(got) >= 300
    taken = {name: one["packs"] for name, one in state["taken"].items()}
    of_b = sum(number >> SOURCE_BITS for number, _ in got)
    assert taken == {"a": len(got) - of_b, "b": of_b}


def test_fresh_plans_serve_every_row_once_an_epoch(made: Made, tmp_path: Path) -> None:
    mix = Mix.open(write_mix(tmp_path, made))
    fresh, rows = mix.sources["b"].plans, {}
    for batch in steps(mix.sampler(), 250):
        for number in batch:
            if number >> SOURCE_BITS:
                plan, place = fresh.find(number & ((1 << SOURCE_BITS) - 1))
                rows.setdefault(plan.spec.epoch, []).append(plan[place].tolist())
    everything = [row for packs in rows[0] for row in packs]
    assert sorted(everything) == list(range(len(made.rows)))
    assert sorted(row for packs in rows[1] for row in packs) == sorted(everything)
    assert sorted(map(sorted, rows[0])) != sorted(map(sorted, rows[1]))


def test_other_weights_on_resume_are_said(mix: Mix, caplog: pytest.LogCaptureFixture) -> None:
    first = Mix(mix.sources, MOVING, packs_per_step=8).sampler()
    plain = first.to_plain(first.advance(first.start, 30))
    Mix(mix.sources, MOVING, packs_per_step=8).sampler().load_state_dict(plain)
    assert not caplog.records
    later = Mix(mix.sources, {"a": 1, "b": 1}).sampler()
    later.load_state_dict(plain)
    assert "other weights, packs_per_step: from pack 30 on" in caplog.text
    assert later.to_plain(later.start)["taken"] == plain["taken"]


def why(path: Path, *words: object) -> Any:
    told = CliRunner().invoke(cli, ["why", str(path), *map(str, words), "--json"])
    assert told.exit_code == 0, told.output
    return orjson.loads(told.output)


def test_why_names_source_and_weight(made: Made, tmp_path: Path) -> None:
    path = write_mix(tmp_path, made)
    words = ("--seed", 5, "--rank", 1, "--world", 2, "--batch-size", 4)
    loader = sm.loader(path, collate=list, seed=5, rank=1, world=2, batch_size=4)
    mix: Any = loader.dataset
    batches = iter(loader)
    for step in range(8):
        batch = next(batches)
        found = why(path, "--step", step, *words)
        assert found["schedule_step"] == step and found["mixed"] == 8 * step
        expected = {name: expected_weight(MOVING[name], step) for name in MOVING}
        assert found["weights"] == pytest.approx(expected)
        assert [one["source"] for one in found["packs"]] == [
            list(mix.sources)[one.number >> SOURCE_BITS] for one in batch
        ]
        for one, served in zip(found["packs"], batch):
            assert one["rows"] == served.pack.samples.tolist()
            assert one["documents"][0]["key"]
        if step == 4:
            state = tmp_path / "state.json"
            state.write_bytes(orjson.dumps(loader.state_dict()))
    assert why(path, "--step", 2, *words, "--state", state)["packs"] == found["packs"]
    told = CliRunner().invoke(cli, ["why", str(path), "--step", "6", *map(str, words)])
    assert "step 6 of the schedule" in told.output and "44.4 %" in told.output
    assert "b: pack" in told.output and "a: pack" in told.output
    for wrong in (["--consumed", "3"], ["--data", str(made.tokens)]):
        told = CliRunner().invoke(cli, ["why", str(path), "--step", "6", *wrong])
        assert told.exit_code == 2 and "is that of a mix" in told.output
    told = CliRunner().invoke(
        cli, ["why", str(made.plan_path), "--step", "6", "--state", str(state)]
    )
    assert told.exit_code == 2 and "--state is for a mix" in told.output


def test_a_file_takes_what_a_data_set_takes() -> None:
    takes = signature(PackedDataset.__init__).parameters.keys() - {"self", "positions"}
    assert signature(MixSource).parameters.keys() - {"weight"} == takes


def test_a_recipe_may_hold_the_mix(made: Made, tmp_path: Path) -> None:
    path = write_mix(tmp_path, made)
    step = f'[[step]]\nverb = "plan"\nin = "{made.tokens}"\nout = "more.plan"\ncapacity = 700\n'
    path.write_text(step + path.read_text())
    sm.run(path)
    assert len(draw(sm.loader(path, collate=numbers_of), 3)) == 3
    whole, points = path.read_text(), "weight = [[0, 4], "
    for wrong, message in (
        (whole.replace(points, f"{points}[0, 4], [0, 4], "), "mix: the weight of 'a'.*are a jump"),
        (whole.replace(points, "wieght = [[0, 4], "), "no field 'wieght'; did you mean 'weight'"),
        (whole.replace("[mix]\n", "[mix]\nstep = 8\n"), "mix has no field 'step'"),
    ):
        path.write_text(wrong)
        for use in (sm.run, Mix.open):
            with pytest.raises(ConfigError, match=message):
                use(path)
    path.write_text(step)
    with pytest.raises(ConfigError, match=r"has no \[mix\]"):
        sm.loader(path, collate=list)
