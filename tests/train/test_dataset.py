"""Packs are what was planned, faults become padding, rows are tensors of their own."""

from __future__ import annotations

import pickle
import shutil
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from packed_folder import Made, lengths_of, token_row, write_rows

import shardmill as sm
from shardmill.errors import ConfigError, Damaged, SampleError, StaleError
from shardmill.model.plan import PackSpec, length_table
from shardmill.packing.plan import plan_packs
from shardmill.train.collate import Collate
from shardmill.train.dataset import PackedDataset, RowDataset
from shardmill.train.documents import TokenReader, TrainRow
from shardmill.train.health import TooManyFaults
from shardmill.train.loader import StepLoader
from shardmill.train.order import NO_PACK


class Broken(TokenReader):
    """A reader of which some rows cannot be read."""

    bad: ClassVar[set[int]] = set()

    def read(self, row: int) -> TrainRow:
        if row in self.bad:
            raise SampleError("not an image", f"row {row}")
        return super().read(row)


class Plain:
    """A reader of someone else's rows."""

    def __init__(self, reader: TokenReader) -> None:
        self.read, self.shards = reader.read, reader.shards


def broken(made: Made, bad: set[int]) -> Broken:
    reader = Broken.open(made.tokens)
    reader.bad = bad  # type: ignore[misc]
    return reader


def test_packs_hold_each_row_once_and_equal_the_data(made: Made) -> None:
    packs = PackedDataset(made.plan_path, made.tokens, lengths=made.lengths_path)
    seen = []
    for number in range(len(packs)):
        pack = packs[number].pack
        for row, start, length in zip(pack.samples, pack.layout.starts, pack.layout.lengths):
            assert np.array_equal(pack.input_ids[start : start + length], made.rows[row].ids)
        seen += pack.samples.tolist()
    assert sorted(seen) == list(range(500))
    assert packs.faults() == []


def test_lengths_may_be_the_folder_that_was_planned(made: Made, tmp_path: Path) -> None:
    (tmp_path / "lengths.bin").write_bytes(made.lengths_path.read_bytes())
    packs = PackedDataset(made.plan_path, made.tokens, lengths=str(tmp_path))
    assert packs.table is not None and packs.table.digest == made.table.digest


def test_a_pickled_data_set_is_small_and_gives_the_same(made: Made) -> None:
    packs = PackedDataset(made.plan_path, made.tokens)
    raw = pickle.dumps(packs)
    assert len(raw) < 8000
    again = pickle.loads(raw)
    assert np.array_equal(again[5].pack.input_ids, packs[5].pack.input_ids)
    assert again.digest == packs.digest


def test_an_unreadable_document_becomes_padding_and_is_named(made: Made) -> None:
    whole = PackedDataset(made.plan_path, made.tokens)
    number = 3
    bad = int(made.plan[number][1])
    packs = PackedDataset(made.plan_path, broken(made, {bad}))
    pack = packs[number].pack
    assert bad not in pack.samples
    assert set(pack.samples) == set(whole[number].pack.samples) - {bad}
    (fault,) = packs.faults()
    shard, inside = divmod(bad, 64)
    assert fault.name == f"row {inside} of shard {shard:05d}"
    assert "not an image" in fault.reason
    packs[number]
    assert len(packs.faults()) == 1


def test_beyond_the_budget_the_list_is_told(made: Made) -> None:
    bad = set(made.plan[0].tolist()) | set(made.plan[1].tolist())
    reader = broken(made, bad)
    packs = PackedDataset(made.plan_path, reader, max_faults=len(made.plan[0]))
    assert len(packs[0].pack.samples) == 0
    with pytest.raises(TooManyFaults, match=r"could not be read(.|\n)*of shard(.|\n)*not an image"):
        packs[1]
    none_allowed = PackedDataset(made.plan_path, reader, max_faults=0)
    with pytest.raises(TooManyFaults, match="1 samples could not be read, 0 are allowed"):
        none_allowed[0]


def test_a_shard_that_vanishes_is_named(made: Made, tmp_path: Path) -> None:
    copy = tmp_path / "tokens"
    shutil.copytree(made.tokens, copy)
    packs = PackedDataset(made.plan_path, copy, max_faults=3)
    (copy / "shards" / "00003.bin").unlink()
    with pytest.raises(TooManyFaults, match=r"shard 00003.*00003\.bin"):
        for number in range(len(packs)):
            packs[number]


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 4]))


def test_a_flipped_bit_is_noticed_wherever_it_is(made: Made, tmp_path: Path) -> None:
    copy = tmp_path / "tokens"
    shutil.copytree(made.tokens, copy)
    packs = PackedDataset(made.plan_path, copy, verify=1)
    for role in ("bin", "idx", "spans"):
        path = copy / "shards" / f"00003.{role}"
        for at in range(0, path.stat().st_size, 97):
            flip(path, at)
            # As another process would, which has compared nothing yet.
            fresh = pickle.loads(pickle.dumps(packs))
            with pytest.raises(Damaged, match=rf"00003\.{role}.*shardmill check"):
                for number in range(len(fresh)):
                    fresh[number]
            flip(path, at)
    flip(copy / "shards" / "00003.bin", 200)
    with pytest.raises(
        Damaged, match=r"00003\.bin: the bytes 0 to \d+ .* row \d+ is there, at byte"
    ):
        list(sm.loader(made.plan_path, copy, verify=1, workers=1, collate="torch"))
    assert len(list(sm.loader(made.plan_path, copy, collate="torch"))) == len(packs)


def test_the_share_of_rows_that_are_verified(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    monkeypatch.setattr(TokenReader, "verify", lambda self, row: seen.append(row))
    for share, wanted in ((0.0, 0), (0.01, 5), (0.1, 50), (1.0, 500)):
        packs = PackedDataset(made.plan_path, made.tokens, verify=share)
        for number in range(len(packs)):
            packs[number]
        assert len(seen) == pytest.approx(wanted, abs=1)
        seen.clear()
    for bad in (-0.1, 1.5, float("nan")):
        with pytest.raises(ConfigError, match="verify is a share of the rows"):
            PackedDataset(made.plan_path, made.tokens, verify=bad)
    with pytest.raises(ConfigError, match="no checksums to compare"):
        PackedDataset(made.plan, Plain(TokenReader.open(made.tokens)), verify=0.5)


def test_a_length_that_was_not_planned_is_a_fault(made: Made, tmp_path: Path) -> None:
    rows = [*made.rows]
    rows[7] = token_row(7, len(rows[7].ids) + 1)
    other = write_rows(tmp_path / "tokens", rows)
    packs = PackedDataset(made.plan_path, other, lengths=made.lengths_path)
    for number in range(len(packs)):
        assert 7 not in packs[number].pack.samples
    (fault,) = packs.faults()
    assert fault.row == 7
    assert "not as long as planned" in fault.reason


def test_estimates_need_only_fit(made: Made) -> None:
    guess = length_table([len(row.ids) + 3 for row in made.rows], exact=False)
    plan = plan_packs(guess, PackSpec(capacity=128, headroom=0.0), loops="plain")
    packs = PackedDataset(plan, TokenReader.open(made.tokens), lengths=guess)
    seen = [row for number in range(len(packs)) for row in packs[number].pack.samples.tolist()]
    assert sorted(seen) == list(range(500))
    low = length_table([max(1, len(row.ids) // 2) for row in made.rows], exact=False)
    plan = plan_packs(low, PackSpec(capacity=128, headroom=0.0), loops="plain")
    packs = PackedDataset(plan, TokenReader.open(made.tokens), lengths=low, max_faults=500)
    assert all(len(packs[n].pack.input_ids) <= 128 for n in range(len(packs)))
    assert packs.faults()
    assert all("longer than its estimate" in fault.reason for fault in packs.faults())


def test_planned_cuts_are_made(made: Made) -> None:
    plan = plan_packs(made.table, PackSpec(capacity=40, overlong="cut"), loops="plain")
    for lengths in (None, made.table):
        packs = PackedDataset(plan, TokenReader.open(made.tokens), lengths=lengths)
        longest = max(len(packs[n].pack.input_ids) for n in range(len(packs)))
        assert longest == 40
        assert packs.faults() == []


def test_the_alignment_of_the_plan_is_used(made: Made) -> None:
    plan = plan_packs(made.table, PackSpec(capacity=128, alignment=8), loops="plain")
    packs = PackedDataset(plan, TokenReader.open(made.tokens), pad_id=1)
    assert all((packs[n].pack.layout.padded % 8 == 0).all() for n in range(len(packs)))


def test_plans_of_other_data_are_refused(made: Made, tmp_path: Path) -> None:
    few = write_rows(tmp_path / "few", made.rows[:100])
    with pytest.raises(ConfigError, match="packs 500 samples, the data has 100"):
        PackedDataset(made.plan_path, few)
    other = lengths_of([*made.rows[:-1], token_row(1, 60 - len(made.rows[-1].ids) + 1)])
    with pytest.raises(StaleError, match="made from other lengths"):
        PackedDataset(made.plan_path, made.tokens, lengths=other)


def test_a_plan_of_other_tokens_with_as_many_rows_is_refused(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [token_row(number, 61 - len(row.ids)) for number, row in enumerate(made.rows)]
    other = write_rows(tmp_path / "other", rows)
    for data in (other, TokenReader.open(other), sm.open(other)):
        with pytest.raises(StaleError, match=r"500 samples .*other has 500 .*shardmill plan .*128"):
            sm.loader(made.plan_path, data)
    reads = []
    monkeypatch.setattr("shardmill.shards.tokens.shard.token_lengths", reads.append)
    packs = PackedDataset(made.plan_path, made.tokens)  # known on this machine by now
    pickle.loads(pickle.dumps(packs))
    assert reads == []


def test_documents_that_do_not_fit_are_left_out(made: Made) -> None:
    small = replace(made.plan, spec=replace(made.plan.spec, capacity=64))
    packs = PackedDataset(small, made.tokens, max_faults=1000)
    assert all(len(packs[number].pack.input_ids) <= 64 for number in range(len(packs)))
    assert {fault.reason.partition(":")[0] for fault in packs.faults()} == {
        "does not fit into its pack"
    }


def test_a_processor_needs_the_lengths_that_were_measured(made: Made, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give their folder as lengths"):
        sm.loader(made.plan_path, tmp_path, processor="model")


def test_the_empty_pack(made: Made) -> None:
    empty = PackedDataset(made.plan_path, made.tokens)[NO_PACK]
    assert empty.number == NO_PACK
    assert len(empty.pack.input_ids) == 0
    plan = replace(made.plan)
    with pytest.raises(IndexError):
        PackedDataset(plan, TokenReader.open(made.tokens))[len(plan)]


def test_rows_are_copies_of_the_ids(made: Made) -> None:
    rows = pickle.loads(pickle.dumps(RowDataset(made.tokens)))
    assert len(rows) == 500
    for number in (0, 63, 64, 499):
        assert rows[number].dtype == torch.int32
        assert np.array_equal(rows[number].numpy(), made.rows[number].ids)
    rows[0][:] = 0
    assert np.array_equal(rows[0].numpy(), made.rows[0].ids)
    assert RowDataset(made.tokens, torch.int64)[3].dtype == torch.int64
    for outside in (-1, 500):
        with pytest.raises(IndexError):
            rows[outside]


def test_batches_of_like_length_waste_little(made: Made) -> None:
    longest = int(made.table.num_tokens.max())
    plan = plan_packs(made.table, PackSpec(capacity=longest, max_documents=1, block=32))
    packs = PackedDataset(plan, TokenReader.open(made.tokens))
    assert len(packs) == len(made.rows)
    sampler = packs.sampler(batch_size=16, remainder="pad")
    loader = StepLoader(packs, sampler, collate_fn=Collate("nemo-thd"))
    real = total = 0
    for batch in loader:
        assert batch["seq_lens"].shape[1] == 1
        real += int(batch["seq_lens"].sum())
        total += batch["input_ids"].numel()
    assert real == sum(len(row.ids) for row in made.rows)
    shuffled = torch.from_numpy(made.table.num_tokens[:496].reshape(-1, 16).copy())
    blind = int(shuffled.sum()) / int(shuffled.max(dim=1).values.sum() * 16)
    assert real / total > 0.9 > blind


def test_options_that_need_files_are_refused_without_them(made: Made, tmp_path: Path) -> None:
    reader = TokenReader.open(made.tokens)
    for options, words in (
        ({"epoch_plans": tmp_path / "plans"}, "another process"),
        ({"images": tmp_path}, "not a reader"),
        ({"staged_dir": tmp_path / "near"}, "give the folder"),
    ):
        with pytest.raises(ConfigError, match=words):
            PackedDataset(made.plan_path, reader, **options)
    with pytest.raises(ConfigError, match="another process"):
        PackedDataset(made.plan, made.tokens, epoch_plans=tmp_path / "plans")
    with pytest.raises(ConfigError, match="makes pixels itself"):
        PackedDataset(made.plan_path, made.tokens, images=tmp_path, processor=tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_loader_takes_what_the_data_set_takes(made: Made, tmp_path: Path) -> None:
    options = {"epoch_plans": tmp_path / "plans", "staged_dir": tmp_path / "near"}
    loader = sm.loader(
        made.plan_path, made.tokens, lengths=made.lengths_path, collate="torch", **options
    )
    assert isinstance(loader.dataset, PackedDataset)
    assert loader.dataset.staging is not None
    with loader.dataset.staging:
        assert sum(1 for _ in loader) == len(loader)
        assert loader.dataset.staging.wait(60)
    with pytest.raises(ConfigError, match="made already"):
        sm.loader(loader.dataset, epoch_plans=tmp_path / "plans")
