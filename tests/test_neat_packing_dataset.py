"""The lazily packed data set: documented behaviour, counted drops, a balance that survives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from packing_lengths import draw

from shardmill.errors import ConfigError, StaleError
from shardmill.neat_packing import PackedDatasetWrapper, neat_pack_dataset_vlm
from shardmill.train.health import TooManyFaults


class Samples(torch.utils.data.Dataset):  # type: ignore[misc]
    """Samples of given lengths; some fail a number of times before they can be read."""

    def __init__(self, lengths: list[int], failures: dict[int, int] | None = None) -> None:
        self.lengths, self.failures = lengths, failures or {}

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, number: int) -> dict[str, Any]:
        if self.failures.get(number, 0) > 0:
            self.failures[number] -= 1
            raise OSError("lost connection")
        ids = torch.full((self.lengths[number],), number)
        return {"input_ids": ids, "labels": ids, "attention_mask": torch.ones_like(ids)}


def rows(lengths: list[int], visual: list[int] | None = None) -> list[dict[str, Any]]:
    media = visual or [0] * len(lengths)
    return [
        {
            "_text_tokens": length - tokens,
            "conversation": [{"role": "user", "content": [{"type": "image"}] if tokens else []}],
            "mm_inputs_meta": {"images_meta": [{"n_tokens": tokens}] if tokens else []},
        }
        for length, tokens in zip(lengths, media)
    ]


def test_each_sample_is_in_one_pack_and_packs_are_full() -> None:
    lengths = (draw("vlm", 2048, 2000)[0] + 1).tolist()
    packed = neat_pack_dataset_vlm(Samples(lengths), 2048, ds_raw=rows(lengths))
    assert sorted(number for pack in packed.bins for number in pack) == list(range(2000))
    assert len(packed) <= sum(n - 1 for n in lengths) / 2048 + 2
    one = packed[0]
    assert len(one["input_ids"]) == sum(lengths[number] - 1 for number in packed.bins[0]) <= 2048
    assert not packed.dropped


def test_long_samples_are_dropped_on_request_and_counted() -> None:
    lengths = [5, 40, 6]
    kept = neat_pack_dataset_vlm(Samples(lengths), 16, ds_raw=rows(lengths))
    assert sorted(number for pack in kept.bins for number in pack) == [0, 1, 2]
    less = neat_pack_dataset_vlm(Samples(lengths), 16, ds_raw=rows(lengths), drop_long_samples=True)
    assert sorted(number for pack in less.bins for number in pack) == [0, 2]
    assert less.dropped == {"estimated longer than a pack": 1}


def test_sample_longer_than_its_estimate_is_left_out_and_counted() -> None:
    packed = PackedDatasetWrapper(Samples([5, 14, 30]), [[0, 1], [2]], 16, max_faults=1)
    assert packed[0]["seq_lens"] == [4]
    assert packed[1]["seq_lens"] == packed[1]["seq_lens_padded"] == [0]
    assert packed.dropped == {"longer than planned": 1, "longer than a pack": 1}


def test_packs_of_another_data_set_are_refused() -> None:
    planned = neat_pack_dataset_vlm(Samples([5, 6, 7]), 16)
    for other in (Samples([5, 6]), Samples([7, 6, 5])):
        with pytest.raises(StaleError, match=rf"3 samples .* one of {len(other)}: plan it with"):
            PackedDatasetWrapper(other, planned.bins, 16)
    assert len(PackedDatasetWrapper(planned.inner, planned.bins, 16)) == len(planned)
    assert len(PackedDatasetWrapper(Samples([5, 6, 7]), list(planned.bins), 16)) == len(planned)
    with pytest.raises(ConfigError, match="ds_raw has 2 rows, the data set 3"):
        neat_pack_dataset_vlm(Samples([5, 6, 7]), 16, ds_raw=rows([5, 6]))


def test_data_sets_with_one_fingerprint_are_one() -> None:
    one, same, other = (Samples([5, 6, 7]) for _ in range(3))
    for data, name in ((one, "a"), (same, "a"), (other, "b")):
        data._fingerprint = name  # type: ignore[attr-defined]
    planned = neat_pack_dataset_vlm(one, 16)
    assert len(PackedDatasetWrapper(same, planned.bins, 16)) == len(planned)
    with pytest.raises(StaleError, match="another data set"):
        PackedDatasetWrapper(other, planned.bins, 16)


def test_reading_is_tried_again_and_then_given_up() -> None:
    flaky = PackedDatasetWrapper(Samples([5, 6], {1: 2}), [[0, 1]], 16, max_retries=3)
    assert flaky[0]["seq_lens"] == [4, 5]
    data = Samples([5, 6], {1: 9})
    broken = PackedDatasetWrapper(data, [[0, 1]], 16, max_retries=3, max_faults=1)
    assert broken[0]["seq_lens"] == [4]
    assert broken.dropped == {"cannot be read": 1}
    assert "OSError('lost connection')" in str(broken.faults()[0])


@pytest.mark.parametrize("workers", [0, 2])
def test_faults_of_all_workers_are_counted_in_the_parent(workers: int) -> None:
    lengths = [5 + n % 7 for n in range(60)]
    broken = dict.fromkeys(range(0, 60, 10), 99)
    packed = neat_pack_dataset_vlm(Samples(lengths, broken), 32, ds_raw=rows(lengths), max_faults=6)
    loader = torch.utils.data.DataLoader(packed, num_workers=workers, collate_fn=list)
    for _ in range(2):  # the second epoch meets the same faults again
        ids = torch.cat([pack["input_ids"] for batch in loader for pack in batch])
        assert len(ids) == sum(n - 1 for i, n in enumerate(lengths) if i not in broken)
        assert packed.dropped == {"cannot be read": 6}
    assert {fault.row for fault in packed.faults()} == set(broken)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("size", [3, 600])
def test_data_that_always_fails_stops_with_the_list(workers: int, size: int) -> None:
    lengths = [5] * size
    broken = dict.fromkeys(range(size), 1 << 30)
    packed = neat_pack_dataset_vlm(Samples(lengths, broken), 16, ds_raw=rows(lengths))
    loader = torch.utils.data.DataLoader(packed, num_workers=workers, collate_fn=list)
    with pytest.raises(
        TooManyFaults, match=r"are allowed: .* max_faults\n  sample \d+ .*lost conn"
    ):
        list(loader)
    with pytest.raises(TooManyFaults):  # nothing is measured of it either
        neat_pack_dataset_vlm(Samples(lengths, broken), 16)


def test_failed_collate_is_tried_with_packs_again() -> None:
    packed = PackedDatasetWrapper(Samples([5] * 6), [[n] for n in range(6)], 16)
    seen: list[Any] = []

    def collate(batch: list[dict[str, Any]]) -> list[dict[str, Any]]:
        seen.append(batch)
        if len(seen) < 3:
            raise RuntimeError("unlucky")
        return batch

    done = packed.robust_collate(collate)([packed[0], packed[1]])
    assert len(done) == 2
    assert all("position_ids" in pack for pack in done)
    with pytest.raises(ZeroDivisionError):
        packed.robust_collate(lambda batch: 1 // 0)([packed[0]])


def test_empty_and_full_packs_collate_together_with_mrope() -> None:
    def rope(input_ids: Any) -> Any:
        return torch.arange(input_ids.shape[1]).expand(3, 1, -1), None

    data = Samples([5, 30])
    packed = PackedDatasetWrapper(data, [[0], [1]], 16, get_rope_index=rope, max_faults=1)
    batch = [packed[0], packed[1]]
    positions = [pack["position_ids"] for pack in batch]
    padded = [torch.nn.functional.pad(each, (0, 16 - each.shape[-1])) for each in positions]
    assert torch.stack(padded, dim=1).shape == (3, 2, 16)


def test_headroom_and_alignment_count_in_the_plan() -> None:
    lengths = [6] * 12
    packed = neat_pack_dataset_vlm(
        Samples(lengths), 20, ds_raw=rows(lengths), packing_ratio=0.8, sequence_alignment=8
    )
    assert {len(pack) for pack in packed.bins} == {2}
    assert packed[0]["seq_lens_padded"] == [8, 8]
    with pytest.raises(ConfigError, match="less than sequence_alignment"):
        neat_pack_dataset_vlm(Samples(lengths), 20, packing_ratio=0.1, sequence_alignment=8)


def test_without_raw_rows_samples_are_measured() -> None:
    lengths = [3, 15, 5, 13, 17, 9, 6, 4]
    packed = neat_pack_dataset_vlm(Samples(lengths), 16)
    assert len(packed) == -(-sum(n - 1 for n in lengths) // 16)
    assert sum(len(packed[n]["input_ids"]) for n in range(len(packed))) == sum(lengths) - 8
    assert not packed.dropped
    long = neat_pack_dataset_vlm(Samples(lengths), 8, drop_long_samples=True)
    assert long.dropped == {"estimated longer than a pack": 3}


def test_max_packs_is_not_a_choice_of_the_least_visual() -> None:
    lengths, visual = draw("vlm", 4096, 4000)
    raw = rows(lengths.tolist(), visual.tolist())
    whole = neat_pack_dataset_vlm(Samples(lengths.tolist()), 4096, ds_raw=raw)
    part = neat_pack_dataset_vlm(Samples(lengths.tolist()), 4096, ds_raw=raw, max_packs=200)
    assert len(part) == 200
    mean = [np.mean([visual[pack].sum() for pack in made.bins]) for made in (whole, part)]
    assert mean[1] == pytest.approx(mean[0], rel=0.1)


@pytest.fixture(scope="module")
def large() -> tuple[PackedDatasetWrapper, np.ndarray]:
    lengths, visual = draw("vlm", 4096, 60_000)
    raw = rows(lengths.tolist(), visual.tolist())
    packed = neat_pack_dataset_vlm(Samples(lengths.tolist()), 4096, ds_raw=raw)
    return packed, np.array([visual[pack].sum() for pack in packed.bins])


def factor(cost: np.ndarray, order: np.ndarray, ranks: int) -> float:
    steps = cost[order[: len(order) // ranks * ranks]].reshape(-1, ranks)
    return float((steps.max(axis=1) / np.maximum(1, steps.mean(axis=1))).mean())


def test_neighbouring_packs_are_alike_without_a_curriculum(large: Any) -> None:
    packed, visual = large
    order = np.arange(len(packed))
    assert factor(visual, order, 8) < 1.05
    assert factor(visual, np.random.default_rng(0).permutation(order), 8) > 1.2
    assert abs(np.corrcoef(order, visual)[0, 1]) < 0.25


def test_sampler_shuffles_and_keeps_ranks_alike(large: Any) -> None:
    packed, visual = large
    samplers = [packed.balanced_sampler(num_replicas=8, rank=rank, seed=1) for rank in range(8)]
    epochs = []
    for epoch in (0, 1):
        for sampler in samplers:
            sampler.set_epoch(epoch)
        taken = np.stack([list(sampler) for sampler in samplers], axis=1)
        assert len(taken) == len(samplers[0])
        assert set(taken.ravel()) == set(range(len(packed)))
        assert factor(visual, taken.ravel(), 8) < 1.05
        epochs.append(taken.ravel())
    assert np.mean(epochs[0] == epochs[1]) < 0.1


@pytest.mark.parametrize(("drop_last", "steps"), [(False, 4), (True, 3)])
def test_all_ranks_get_equally_many_packs(drop_last: bool, steps: int) -> None:
    packed = PackedDatasetWrapper(Samples([5] * 10), [[n] for n in range(10)], 16)
    taken = [
        list(packed.balanced_sampler(num_replicas=3, rank=rank, drop_last=drop_last))
        for rank in range(3)
    ]
    assert [len(part) for part in taken] == [steps] * 3
    flat = [number for step in zip(*taken) for number in step]
    assert len(set(flat[:9])) == 9
    with pytest.raises(ConfigError, match="rank must be"):
        packed.balanced_sampler(num_replicas=3, rank=3)


def test_packs_are_built_in_loader_workers() -> None:
    lengths = [5 + n % 7 for n in range(60)]
    packed = neat_pack_dataset_vlm(Samples(lengths), 32, ds_raw=rows(lengths))
    loader = torch.utils.data.DataLoader(
        packed, batch_size=2, num_workers=2, collate_fn=list, sampler=packed.balanced_sampler()
    )
    ids = torch.cat([pack["input_ids"] for batch in loader for pack in batch])
    assert len(ids) == sum(n - 1 for n in lengths)
