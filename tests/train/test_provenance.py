"""What a step was made of is what the loader gave at that step."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from packed_folder import Made
from sample_folder import write_sample_folder

from shardmill.errors import ConfigError, StaleError
from shardmill.model.plan import PackSpec, length_table
from shardmill.model.sample import Document, Origin, Sample, Segment
from shardmill.packing.plan import plan_packs
from shardmill.train.order import EpochNumbers, LoaderState, Schedule, Split
from shardmill.train.plans import OnePlan
from shardmill.train.provenance import open_rows, packs_of_step


def test_documents_of_a_step_lie_where_it_says(made: Made) -> None:
    split = Split(rank=1, world=3, batch_size=2)
    schedule, state = Schedule(lambda epoch: len(made.plan), split), LoaderState()
    for _ in range(30):
        state = schedule.advance(state)
    expected = EpochNumbers(lambda epoch: len(made.plan), partial(OnePlan(made.plan).order, 0)).of(
        schedule.take(state)
    )
    packs = packs_of_step(OnePlan(made.plan), split, LoaderState(), 30, open_rows(made.tokens))
    assert [pack.pack for pack in packs] == expected
    for pack in packs:
        assert pack.epoch == 1
        for row, source in zip(pack.rows, pack.documents):
            raw = Path(source.path).read_bytes()
            ids = raw[source.offset : source.offset + source.num_bytes]
            assert ids == made.rows[row].ids.astype("<u2").tobytes()
            assert source.key == made.rows[row].key
            assert source.origin == made.rows[row].origin


def test_samples_lie_at_their_tar_offsets(tmp_path: Path) -> None:
    samples = [
        Sample(
            key=f"k{n}",
            document=Document((Segment(kind="text", text=f"text {n}"),)),
            origin=Origin(source="s", path="a.jsonl", row=n),
        )
        for n in range(6)
    ]
    folder = write_sample_folder(
        tmp_path / "s", [[(s, {}) for s in samples[:3]], [(s, {}) for s in samples[3:]]]
    )
    table = length_table([5] * 6, shard_names=["000000", "000001"], shard_starts=[0, 3, 6])
    plan = plan_packs(table, PackSpec(capacity=10), loops="plain")
    (pack,) = packs_of_step(OnePlan(plan), Split(), LoaderState(), 1, open_rows(folder), table)
    for row, source in zip(pack.rows, pack.documents):
        content = Path(source.path).read_bytes()[source.offset : source.offset + source.num_bytes]
        assert f"text {row}".encode() in content
        assert source.origin == Origin(source="s", path="a.jsonl", row=row)


def test_an_empty_pack_and_wrong_questions(made: Made, tmp_path: Path) -> None:
    split = Split(rank=3, world=4, remainder="pad")
    last = Schedule(lambda epoch: len(made.plan), split).steps_left(LoaderState()) - 1
    (pack,) = packs_of_step(OnePlan(made.plan), split, LoaderState(), last)
    assert (pack.pack, pack.rows) == (-1, [])
    with pytest.raises(ConfigError, match="from 0"):
        packs_of_step(OnePlan(made.plan), split, LoaderState(), -1)
    other = plan_packs(length_table([5] * 6), PackSpec(capacity=10), loops="plain")
    with pytest.raises(StaleError, match=r"of 6 samples .* has 500"):
        packs_of_step(OnePlan(other), Split(), LoaderState(), 0, open_rows(made.tokens))
