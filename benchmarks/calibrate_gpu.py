"""Do prices tell the time of real steps, and do ranks that share a step finish together?

    python benchmarks/calibrate_gpu.py

Qwen2-1.5B in bf16 with random weights, packs of 16k of documents of very unlike lengths. Prices are
measured by `sm.calibrate`; then every pack is trained on once, forward and backward, on one GPU.
From these times follows how long the ranks of each step would wait for the slowest, in the order of
a plan with prices, of one without, and shuffled, which is what NeMo's loader does with its packs.
Goal: the slowest of 64 ranks at most 1.02 x the mean.
"""

from __future__ import annotations

import json
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

VOCABULARY = sized(151_936, 512)
CAPACITY = sized(16_384, 128)
RANKS = (4, 8) if QUICK else (8, 64)
NUM_PACKS = sized(256, 10)
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


def pack_times(folder: Path, plan: Any) -> np.ndarray:
    """Return the seconds of forward and backward of each pack."""
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
    seconds = np.zeros(len(packs))
    for number in [0, 1, *range(len(packs))]:
        batch = collate([packs[number]])
        batch = {n: v.to(DEVICE) if isinstance(v, torch.Tensor) else v for n, v in batch.items()}
        _wait()
        start = time.perf_counter()
        model(**batch).loss.backward()
        _wait()
        seconds[number] = time.perf_counter() - start
    return seconds


def _wait() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def waits(seconds: np.ndarray, order: np.ndarray, ranks: int) -> float:
    """Return the mean over steps of the slowest over the mean rank."""
    steps = seconds[order[: len(order) // ranks * ranks]].reshape(-1, ranks)
    return float((steps.max(axis=1) / steps.mean(axis=1)).mean())


def section(folder: Path) -> str:
    """Measure and return the table."""
    import shardmill as sm

    make_inputs(folder)
    tokens, prices = folder / "tokens", folder / "prices.json"
    plain = sm.plan(tokens, folder / "plain.plan", capacity=CAPACITY)
    found = sm.calibrate(
        folder / "model", plain.path, tokens, prices, device=DEVICE, steps=sized(32, 8)
    )
    timed = sm.plan(tokens, folder / "timed.plan", capacity=CAPACITY, prices=prices)
    seconds = pack_times(folder, timed)
    told = timed.report.seconds
    orders = {
        "planned with prices": timed.order(seed=0, epoch=0),
        "planned without prices": plain.order(seed=0, epoch=0),
        "shuffled": np.random.default_rng(1).permutation(len(seconds)),
    }
    lines = [
        f"| order | {' | '.join(f'{ranks} ranks' for ranks in RANKS)} |",
        f"|---|{'---:|' * len(RANKS)}",
        *(
            f"| {name} | " + " | ".join(f"{waits(seconds, order, n):.3f}" for n in RANKS) + " |"
            for name, order in orders.items()
        ),
    ]
    ratio = found.prices.attention / max(found.prices.token, 1e-12)
    facts = (
        f"{found.model} on {found.device}, {len(seconds)} packs of {CAPACITY:,} tokens, attention "
        f"{found.attention}. A token costs {1e6 * found.prices.token:.3g} us, a square of a length "
        f"{ratio:.3g} of a token, a step {1e3 * found.prices.pack:.3g} ms. Of {len(found.steps)} "
        f"steps the typical error is {100 * found.error:.1f} %, the correlation "
        f"{found.correlation:.4f}. All packs were told to take {told:.1f} s and took "
        f"{seconds.sum():.1f} s; packs take {seconds.min():.2f} to {seconds.max():.2f} s."
    )
    return f"{facts}\n\n## The slowest over the mean rank, measured\n\n" + "\n".join(lines)


if __name__ == "__main__":
    if DEVICE == "cpu":
        let_torchvision_load()
    with tempfile.TemporaryDirectory() as name:
        save_report(__file__, "Prices and the time of steps", [section(Path(name))])
