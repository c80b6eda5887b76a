"""Building one packed sample of 32k tokens: python benchmarks/build_pack.py

Goal: 10 times as fast as NeMo's list-based builder, on the same 23 samples with images. This
measures the drop-in for NeMo's module, and the internal builder of packs behind it.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import packers
from side_by_side import Contest, Work, save_report, sized

sys.path.insert(0, str(packers.SUPPORT_DIR))
from packing_lengths import draw

CAPACITY, NUM_PACKS = 32768, sized(20, 2)


def _samples(with_positions: bool) -> list[dict[str, Any]]:
    import torch

    samples, room = [], CAPACITY
    lengths, visual = draw("vlm", 8192, 200)
    for length, num_visual in zip(lengths.tolist(), visual.tolist()):
        if length > room:
            break
        room -= length
        ids = torch.arange(length + 1)
        sample = {
            "input_ids": ids,
            "labels": ids.clone(),
            "attention_mask": torch.ones_like(ids),
            "mm_token_type_ids": torch.zeros_like(ids),
        }
        if num_visual:
            sample |= {
                "pixel_values": torch.zeros(4, 1176),
                "image_grid_thw": torch.tensor([[1, 2, 2]]),
            }
        if with_positions:
            sample["position_ids"] = ids.expand(3, -1).clone()
        samples.append(sample)
    return samples


def _building(module: Any, mrope: bool) -> Work:
    shifted = [module._shift_sample(sample, mrope) for sample in _samples(mrope)]

    def work() -> int:
        for _ in range(NUM_PACKS):
            module._build_packed_vlm_sample(shifted, CAPACITY, 0, mrope)
        return NUM_PACKS

    return work


def shardmill(mrope: bool) -> Work:
    """The drop-in, from the same torch samples to the same dict."""
    import shardmill.neat_packing as module

    return _building(module, mrope)


def nemo(mrope: bool) -> Work:
    """NeMo's own builder."""
    return _building(packers.nemo_module(), mrope)


def shardmill_rows() -> Work:
    """Our builder from token rows: ids, labels, masks, positions and cu_seqlens."""
    from shardmill.model.tokenrow import TokenRow
    from shardmill.packing.build import BuildSpec, build_pack

    rows = [
        TokenRow(key="k", ids=s["input_ids"].numpy()[1:], loss=np.array([[0, 100]]))
        for s in _samples(False)
    ]
    spec = BuildSpec(size=CAPACITY)

    def work() -> int:
        for _ in range(NUM_PACKS):
            pack = build_pack(rows, spec)
            pack.labels(), pack.index_mask(), pack.layout.cu_seqlens()
        return NUM_PACKS

    return work


def check_equal() -> str:
    """Build the same packs with both and compare every key."""
    import torch

    import shardmill.neat_packing as ours

    theirs = packers.nemo_module()
    for mrope in (False, True):
        samples = [ours._shift_sample(sample, mrope) for sample in _samples(mrope)]
        for alignment in (1,) if mrope else (1, 8):
            one, two = (
                module._build_packed_vlm_sample(samples, CAPACITY, 7, mrope, alignment)
                for module in (ours, theirs)
            )
            assert one.keys() == two.keys()
            for key, value in two.items():
                if isinstance(value, torch.Tensor):
                    assert one[key].dtype == value.dtype, key
                    assert torch.equal(one[key], value), key
                else:
                    assert one[key] == value, key
    return "Both builders gave equal keys, dtypes and values, with mRoPE and with alignment."


def main() -> None:
    sections = []
    for mrope in (False, True):
        contest = Contest(f"mRoPE {mrope}", unit="pack")
        contest.add("shardmill drop-in", __file__, "shardmill", mrope=mrope)
        contest.add("NeMo", __file__, "nemo", mrope=mrope)
        if not mrope:
            contest.add("shardmill from token rows", __file__, "shardmill_rows")
        table = contest.run(sized(5, 1)).table(than="NeMo")
        sections.append(f"## {'Three-axis' if mrope else 'Plain'} positions\n\n{table}")
    save_report(__file__, "Building a pack", [*sections, check_equal()])


if __name__ == "__main__":
    main()
