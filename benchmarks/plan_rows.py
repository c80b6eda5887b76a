"""Planning from raw rows: python benchmarks/plan_rows.py

`neat_pack_dataset_vlm` and `greedy_knapsack` against NeMo's own, 100,000 rows, each in the first
call of a fresh process, nothing compiled before. Goal: five times as fast, with lengths by the rule
of whichever processor is given.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from typing import Any

import packers
from side_by_side import save_report, sized

sys.path.insert(0, str(packers.SUPPORT_DIR))

NUM = sized(100_000, 2_000)
ROUNDS = sized(5, 1)


def make_rows(kind: str) -> list[dict[str, Any]]:
    """Return rows of two turns, with one medium of known size if asked."""
    rng = random.Random(0)
    rows: list[dict[str, Any]] = []
    for _ in range(NUM):
        asked, told = ("word " * rng.randint(5, 80) for _ in range(2))
        content: list[dict[str, Any]] = [{"type": "text", "text": asked}]
        row: dict[str, Any] = {
            "conversation": [
                {"role": "user", "content": content},
                {"role": "assistant", "content": [{"type": "text", "text": told}]},
            ]
        }
        if kind != "text":
            content.insert(0, {"type": kind, kind: "a"})
            size = [rng.randint(200, 1200), rng.randint(200, 1200)]
            if kind == "video":
                size = [rng.randint(50, 900), *size, 25.0, 36.0]  # type: ignore[list-item]
            row["mm_inputs_meta"] = {f"{kind}s_meta": [size]}
        rows.append(row)
    return rows


def first_call(who: str, kind: str, family: str) -> None:
    """Print the CPU seconds of the first call in this process, and how many packs it made."""
    import hf_processors

    library = hf_processors.transformers()
    if who == "NeMo":
        module = packers.nemo_module()
    else:
        import shardmill.neat_packing as module  # type: ignore[no-redef]
    if kind == "knapsack":
        rng = random.Random(0)
        lengths = [rng.randint(10, 2000) for _ in range(NUM)]
        start = time.process_time()
        packs: Any = module.greedy_knapsack(lengths, 4096)
    else:
        rows, processor = make_rows(kind), _processor(library, hf_processors, family)
        start = time.process_time()
        packs = module.neat_pack_dataset_vlm(rows, 16384, ds_raw=rows, processor=processor)
    print(time.process_time() - start, len(packs))


def _processor(library: Any, made: Any, family: str) -> Any:
    if family == "InternVL":
        return made.internvl_processor()
    if family == "Gemma 3":
        return made.gemma3_processor()
    tokenizer = made.make_tokenizer("<|image_pad|>", "<|video_pad|>")
    images, videos = library.Qwen2VLImageProcessor(), library.Qwen2VLVideoProcessor()
    videos.fps = 2.0  # NeMo cannot count without one
    return library.Qwen2_5_VLProcessor(images, tokenizer, videos, "")


def measure() -> str:
    """Return the table."""
    cases = [("text", "Qwen2.5-VL"), ("image", "Qwen2.5-VL"), ("image", "InternVL")]
    cases += [("image", "Gemma 3"), ("video", "Qwen2.5-VL"), ("knapsack", "")]
    lines = [
        "CPU seconds of the first call in a fresh process, the two in turn. NeMo counts every "
        "model like Qwen3-VL, so that it packs other lengths.",
        "",
        "| rows | processor | shardmill | NeMo | times as fast | packs | packs of NeMo |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for kind, family in cases:
        found: dict[str, list[tuple[float, int]]] = {"shardmill": [], "NeMo": []}
        for _ in range(ROUNDS):
            for who, results in found.items():
                command = [sys.executable, __file__, "first", who, kind, family]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                seconds, packs = done.stdout.splitlines()[-1].split()
                results.append((float(seconds), int(packs)))
        (ours, our_packs), (theirs, their_packs) = (min(found[who]) for who in found)
        what = "lengths to `greedy_knapsack`" if kind == "knapsack" else f"{kind} rows"
        lines.append(
            f"| {NUM:,} {what} | {family} | {ours:.3f} | {theirs:.3f} | {theirs / ours:.1f} "
            f"| {our_packs:,} | {their_packs:,} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    if sys.argv[1:2] == ["first"]:
        first_call(*sys.argv[2:])
    else:
        save_report(__file__, "Planning from raw rows", [measure()])
