"""Do prices tell the time of real steps, and do ranks that share a step finish together?

    python benchmarks/calibrate_gpu.py

Qwen2-1.5B in bf16 with random weights, packs of 16k of documents of very unlike lengths. Prices are
measured by `sm.calibrate`; then the packs of some steps of 64 ranks are trained on, forward and
backward, twice, one after the other on one GPU; the better time counts, since now and then a step
waits for memory whatever its pack is. From their times follows how long ranks would wait for the
slowest, in the order of a plan with prices, and shuffled, which is what NeMo's loader does with its
packs. (Text has no visual tokens, so that a plan without prices has the same order.) Goal: the
slowest of 64 ranks at most 1.02 x the mean.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from made_data import SUPPORT_DIR, write_tokens
from peers import let_torchvision_load
from side_by_side import QUICK, save_report, sized

sys.path.insert(0, str(SUPPORT_DIR))

os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
VOCABULARY = sized(151_936, 512)
CAPACITY = sized(16_384, 128)
RANKS, STEPS = sized(64, 4), 1
# An epoch of fewer has smaller blocks of like packs than a step takes.
NUM_PACKS = sized(1536, 10)
SHAPE: dict[str, Any] = {"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28}
SHAPE |= {"num_attention_heads": 12, "num_key_value_heads": 2, "vocab_size": VOCABULARY}
SHAPE |= {"model_type": "qwen2", "tie_word_embeddings": True}
if QUICK:
    SHAPE |= {"hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2}
DEVICE = "cpu" if QUICK else "cuda"


def make_inputs(folder: Path) -> None:
    """Write tokens of log-normal lengths and the model's config."""
    rng = np.random.default_rng(0)
    lengths: list[int] = []
    while sum(lengths) < (NUM_PACKS - 1) * CAPACITY:
        lengths.append(int(min(CAPACITY, rng.lognormal(np.log(CAPACITY / 30), 1.3)) + 8))
    rows = [
        {
            "key": f"{number:06d}",
            "ids": rng.integers(0, VOCABULARY, min(length, CAPACITY)),
            "loss": np.array([[1, min(length, CAPACITY) - 1]]),
        }
        for number, length in enumerate(lengths)
    ]
    write_tokens(folder / "tokens", [rows], text_size=VOCABULARY)
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(json.dumps(SHAPE))


def pack_times(folder: Path, plan: Any, numbers: list[int]) -> np.ndarray:
    """Return the seconds of forward and backward of these packs."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    import shardmill as sm

    config = AutoConfig.from_pretrained(str(folder / "model"))
    with torch.device(DEVICE):
        model = AutoModelForCausalLM.from_config(
            config, attn_implementation=sm.attention(), dtype=torch.bfloat16
        )
    model.gradient_checkpointing_enable({"use_reentrant": False})
    packs = sm.PackedDataset(plan.path, folder / "tokens")
    collate = sm.Collate("transformers")
    seconds: dict[int, float] = {}
    for number in [*numbers[:2], *numbers, *numbers]:
        batch = collate([packs[number]])
        batch = {n: v.to(DEVICE) if isinstance(v, torch.Tensor) else v for n, v in batch.items()}
        _wait()
        start = time.perf_counter()
        model(**batch).loss.backward()
        _wait()
        took = time.perf_counter() - start
        seconds[number] = min(took, seconds.get(number, took))
    return np.array([seconds[number] for number in numbers])


def _wait() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def section(folder: Path) -> str:
    """Measure and return the table."""
    import shardmill as sm

    make_inputs(folder)
    tokens, prices = folder / "tokens", folder / "prices.json"
    plain = sm.plan(tokens, folder / "plain.plan", capacity=CAPACITY)
    found = sm.calibrate(
        folder / "model", plain.path, tokens, prices, device=DEVICE, steps=sized(16, 8)
    )
    timed = sm.plan(tokens, folder / "timed.plan", capacity=CAPACITY, prices=prices)
    orders = {
        "planned": timed.order(seed=0, epoch=0),
        "shuffled": np.random.default_rng(1).permutation(len(timed)),
    }
    lines = [
        f"| order | slowest / mean of {RANKS} ranks, each step | packs take |",
        "|---|---|---|",
    ]
    for name, order in orders.items():
        # Not the first steps: any of the epoch.
        chosen = order[RANKS : RANKS * (1 + STEPS)]
        seconds = pack_times(folder, timed, chosen.tolist()).reshape(STEPS, RANKS)
        waits = ", ".join(f"{step.max() / step.mean():.3f}" for step in seconds)
        spread = f"{seconds.min():.3f} to {seconds.max():.3f} s"
        lines.append(f"| {name} | {waits} | {spread} |")
    ratio = found.prices.attention / max(found.prices.token, 1e-12)
    facts = (
        f"{found.model} on {found.device}, {len(timed):,} packs of {CAPACITY:,} tokens, attention "
        f"{found.attention}. A token costs {1e6 * found.prices.token:.3g} us, a square of a length "
        f"{ratio:.3g} of a token, a step {1e3 * found.prices.pack:.3g} ms. Of {len(found.steps)} "
        f"steps the typical error is {100 * found.error:.1f} %, the correlation "
        f"{found.correlation:.4f}."
    )
    return f"{facts}\n\n## The slowest over the mean rank, measured\n\n" + "\n".join(lines)


if __name__ == "__main__":
    if DEVICE == "cpu":
        let_torchvision_load()
    with tempfile.TemporaryDirectory() as name:
        save_report(__file__, "Prices and the time of steps", [section(Path(name))])
