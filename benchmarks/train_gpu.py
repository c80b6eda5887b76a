"""Training steps on a GPU, from plans to gradients: python benchmarks/train_gpu.py

Random weights in the real shapes of Qwen2-1.5B (text, packs of 8k and 32k), Qwen2.5-VL-3B and
Qwen3-VL-2B (chats with photographs, packs of 16k), bf16, activations recomputed in the backward
pass, fused AdamW:

    padded     documents in random order, padded to the longest of a batch of as many places
    sorted     the same with documents of like length in a batch
    4-D        packs, with the dense mask of `sm.dense_mask`, made on the GPU, for SDPA
    flex       packs, `attn_implementation="flex_attention"`
    ours       packs, `attn_implementation=sm.attention()`

Useful tokens are those of documents. `ours` runs once on batches that lie on the GPU, and once with
`sm.loader` and its workers: the difference is what the GPU waits. Last, the loss of each token in a
pack against the loss that it has alone, in fp32 and bf16. Goals: text at 32k 3.2 x the 4-D mask and
6 x padding, images 11,200 tokens/s (8 x the dense mask), the GPU waits less than 2 %.

The data need tokenizers and are made by `--make FOLDER`, on any machine; `--data FOLDER` trains on
them. Without either, both are done.
Single documents are laid out by internal modules, as the loader does it.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from made_data import SUPPORT_DIR, write_tokens
from peers import let_torchvision_load
from side_by_side import QUICK, save_report, sized

sys.path.insert(0, str(SUPPORT_DIR))

VOCABULARY = 151_936
CAPACITIES = (512, 1024) if QUICK else (8192, 32_768)
PIXEL_CAPACITY = sized(16_384, 4096)
STEPS, WARM_UP = sized(8, 2), sized(4, 1)
WORKERS = sized(8, 1)
TEXT = {"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28}
TEXT |= {"num_attention_heads": 12, "num_key_value_heads": 2, "tie_word_embeddings": True}
WIDTHS = {"hidden_size": 2048, "num_attention_heads": 16, "vocab_size": VOCABULARY}
# The text and the vision tower of each family, and what they are called.
VISUAL: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "Qwen2_5_VL": (
        "Qwen2.5-VL-3B",
        {"intermediate_size": 11_008, "num_hidden_layers": 36, "num_key_value_heads": 2},
        {"depth": 32, "hidden_size": 1280, "num_heads": 16, "patch_size": 14, "window_size": 112}
        | {"intermediate_size": 3420, "out_hidden_size": 2048, "tokens_per_second": 2}
        | {"fullatt_block_indexes": [7, 15, 23, 31]},
    ),
    "Qwen3VL": (
        "Qwen3-VL-2B",
        {"intermediate_size": 6144, "num_hidden_layers": 28, "num_key_value_heads": 8},
        {"depth": 24, "hidden_size": 1024, "num_heads": 16, "intermediate_size": 4096}
        | {"out_hidden_size": 2048, "deepstack_visual_indexes": [5, 11, 17]},
    ),
}
MROPE = {"Qwen2_5_VL": ([16, 24, 24], 1e6), "Qwen3VL": ([24, 20, 20], 5e6)}
if QUICK:
    TEXT |= {"num_hidden_layers": 2, "hidden_size": 96, "intermediate_size": 128}
    for _, text, vision in VISUAL.values():
        text |= {"num_hidden_layers": 2, "intermediate_size": 128}
        vision |= {"depth": 2} | {name: [1] for name in vision if name.endswith("indexes")}

Batch = dict[str, Any]


def make_inputs(folder: Path) -> None:
    """Write tokens of made-up documents, chats with images, the model's processor, and plans."""
    import measure

    import shardmill as sm

    rng = np.random.default_rng(0)
    num = sum(CAPACITIES[-1:]) * (STEPS + WARM_UP) * 2 // 900
    lengths = np.clip(rng.lognormal(6.2, 1.2, num), 16, CAPACITIES[-1]).astype(int)
    rows = (
        {
            "key": f"{n:08d}",
            "ids": rng.integers(0, VOCABULARY - 1000, length, np.int32),
            "loss": np.array([[1, length - 1]]),
        }
        for n, length in enumerate(lengths.tolist())
    )
    write_tokens(folder / "tokens", [rows], text_size=VOCABULARY)
    for capacity in CAPACITIES:
        plan = folder / f"{capacity}.plan"
        sm.plan(folder / "tokens", plan, capacity=capacity, overlong="cut")
    shards = measure.make_chats(folder, sized(240, 60), 11)  # so 39 % of the tokens are visual
    for family in VISUAL:
        measure.make_model(folder / family, family)
        lengths = folder / f"{family}.lengths"
        measured = sm.measure(shards, lengths, model=folder / family, workers=0)
        sm.plan(measured, folder / f"{family}.plan", capacity=PIXEL_CAPACITY)


def text_model(attention: str, dtype: Any, **sizes: Any) -> Any:
    """Return Qwen2-1.5B on the GPU."""
    from transformers import AutoModelForCausalLM, Qwen2Config

    config = Qwen2Config(vocab_size=VOCABULARY, max_position_embeddings=32_768, **{**TEXT, **sizes})
    return _on_gpu(AutoModelForCausalLM, config, attention, dtype)


def image_model(family: str, attention: str, dtype: Any, **sizes: Any) -> Any:
    """Return a model of the family on the GPU."""
    import transformers

    _, text, vision = VISUAL[family]
    section, theta = MROPE[family]
    rope = {"rope_type": "default", "mrope_section": section, "rope_theta": theta}
    ids = {"image_token_id": 151_655, "video_token_id": 151_656}
    ids |= {"vision_start_token_id": 151_652, "vision_end_token_id": 151_653}
    config = getattr(transformers, f"{family}Config")(
        text_config={**WIDTHS, **text, "rope_parameters": rope, "rope_scaling": rope, **sizes},
        vision_config=vision,
        tie_word_embeddings=True,
        **ids,
    )
    return _on_gpu(transformers.AutoModelForImageTextToText, config, attention, dtype)


def _on_gpu(auto: Any, config: Any, attention: str, dtype: Any) -> Any:
    import torch

    torch.manual_seed(0)
    with torch.device(DEVICE):
        return auto.from_config(config, attn_implementation=attention, dtype=dtype)


def moved(batch: Batch) -> Batch:
    """Return a batch on the GPU."""
    import torch

    return {
        name: value.to(DEVICE, non_blocking=True) if isinstance(value, torch.Tensor) else value
        for name, value in batch.items()
    }


def padded_batches(folder: Path, capacity: int, *, is_sorted: bool) -> Iterator[Batch]:
    """Yield batches of single documents, as many as fit into the places of a pack."""
    import torch

    import shardmill as sm

    rows = [row[:capacity] for row in sm.RowDataset(str(folder / "tokens"))]
    order = np.random.default_rng(1).permutation(len(rows)).tolist()
    if is_sorted:
        order.sort(key=lambda number: len(rows[number]))
    groups: list[list[int]] = [[]]
    for number in order:
        longest = max(len(rows[other]) for other in [number, *groups[-1]])
        if groups[-1] and longest * (len(groups[-1]) + 1) > capacity:
            groups.append([])
        groups[-1].append(number)
    np.random.default_rng(2).shuffle(groups)
    for numbers in groups:
        longest = max(len(rows[number]) for number in numbers)
        ids = torch.zeros(len(numbers), longest, dtype=torch.int64)
        mask = torch.zeros(len(numbers), longest, dtype=torch.int64)
        for place, number in enumerate(numbers):
            ids[place, : len(rows[number])] = rows[number]
            mask[place, : len(rows[number])] = 1
        labels = ids.masked_fill(mask == 0, -100)
        yield {"input_ids": ids, "attention_mask": mask, "labels": labels, "use_cache": False}


def packs_of(folder: Path, plan: str, workers: int = 0, **options: Any) -> Any:
    """Return the loader of a plan for models of transformers."""
    import torch

    import shardmill as sm

    collate = sm.Collate("transformers", media_dtype=torch.bfloat16)
    options = {"collate": collate, "device": DEVICE, "workers": workers, **options}
    if workers:
        options |= {"pin_memory": DEVICE == "cuda", "persistent_workers": True, "prefetch": 4}
    family = plan.removesuffix(".plan")
    if family not in VISUAL:
        return sm.loader(folder / plan, folder / "tokens", **options)
    processor, lengths = str(folder / family), folder / f"{family}.lengths"
    return sm.loader(
        folder / plan, folder / "shards", processor=processor, lengths=lengths, **options
    )


def useful(batch: Batch) -> int:
    """Return the tokens of documents."""
    if "attention_mask" in batch and batch["attention_mask"].ndim == 2:
        return int(batch["attention_mask"].sum())
    return batch["input_ids"].numel()


class Training:
    """A model and its optimizer; `step` trains on a batch."""

    def __init__(self, model: Any, prepare: Callable[[Batch], Batch] = moved) -> None:
        import torch

        self.model, self.prepare = model.train(), prepare
        model.gradient_checkpointing_enable({"use_reentrant": False})
        fused = DEVICE == "cuda"
        self.optimizer = torch.optim.AdamW(model.parameters(), 1e-5, fused=fused)

    def step(self, batch: Batch) -> None:
        self.model(**self.prepare(batch)).loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def speed(self, batches: Iterator[Batch], steps: int = STEPS, warm_up: int = WARM_UP) -> float:
        """Return useful tokens a second, after some steps that do not count."""
        tokens, start = 0, 0.0
        for number in range(warm_up + steps):
            if number == warm_up:
                wait()
                start, tokens = time.perf_counter(), 0
            batch = next(batches)
            self.step(batch)
            tokens += useful(batch)
        wait()
        return tokens / (time.perf_counter() - start)


def wait() -> None:
    """Wait for the GPU."""
    import torch

    if DEVICE == "cuda":
        torch.cuda.synchronize()


def with_mask(batch: Batch) -> Batch:
    """Return a batch on the GPU with a dense mask for SDPA."""
    import shardmill as sm

    there = moved(batch)
    mask = sm.dense_mask(there)
    kept = {k: v for k, v in there.items() if not k.startswith(("cu_seq", "max_len", "seq_idx"))}
    return {**kept, "attention_mask": mask}


def compare(name: str, folder: Path, plan: str, build: Callable[..., Any], modes: list[str]) -> str:
    """Return the table of one model on one plan."""
    import torch

    import shardmill as sm

    is_visual = plan.removesuffix(".plan") in VISUAL
    capacity = PIXEL_CAPACITY if is_visual else int(plan.removesuffix(".plan"))
    speeds: dict[str, float] = {}
    implementations = {"4-D": "sdpa", "flex": "flex_attention", "ours": sm.attention()}
    for mode in modes:
        started = time.perf_counter()
        try:
            model = build(implementations.get(mode, "sdpa"), torch.bfloat16)
            training = Training(model, with_mask if mode == "4-D" else moved)
            if mode in ("padded", "sorted"):
                batches = padded_batches(folder, capacity, is_sorted=mode == "sorted")
            else:
                batches = endless(packs_of(folder, plan, WORKERS if is_visual else 0))
                if mode == "ours":
                    sm.check_batch(model, packs_of(folder, plan))
            if mode == "ours":
                kept = [moved(next(batches)) for _ in range(WARM_UP + STEPS)]
                speeds["ours, batches on the GPU"] = training.speed(iter(kept))
                del kept
                batches = endless(packs_of(folder, plan, WORKERS))
            # A step with a dense mask and pixels takes 11 s.
            few = (2, 1) if mode == "4-D" and is_visual else (STEPS, WARM_UP)
            speeds[mode] = training.speed(batches, *few)
        except (torch.OutOfMemoryError, ValueError) as error:
            print(f"{name} {mode}: {error}"[:300], flush=True)
            speeds[mode] = float("nan")
        print(f"{name} {plan} {mode} {speeds[mode]:.0f} ({time.perf_counter() - started:.0f} s)")
        sys.stdout.flush()
        model = training = batches = None  # the next one needs the memory
        gc.collect()
        if DEVICE == "cuda":
            torch.cuda.empty_cache()
    waits = 1 - speeds["ours"] / speeds["ours, batches on the GPU"]
    lines = [f"## {name}, packs of {capacity:,}", "", "| batches | useful tokens/s | ours is |"]
    lines += ["|---|---:|---:|"]
    lines += [
        f"| {mode} | {speed:,.0f} | {speeds['ours'] / speed:.2f} x |"
        for mode, speed in speeds.items()
    ]
    return "\n".join([*lines, "", f"The GPU waits {max(0, waits):.1%} of the time for the loader."])


def endless(loader: Any) -> Iterator[Batch]:
    """Yield the batches of all epochs."""
    while True:
        yield from loader


def same_losses(folder: Path) -> str:
    """Return how far the losses of tokens in a pack are from those of their documents alone."""
    import torch
    from torch.nn import functional

    import shardmill as sm

    lines = ["## The loss of a token in a pack, and alone", ""]
    lines += ["| model | numbers | attention | largest difference | mean loss, packed and alone |"]
    lines += ["|---|---|---|---:|---:|"]
    cases = [("Qwen2, 4 layers", f"{CAPACITIES[0]}.plan", text_model)]
    cases += [(f"{VISUAL[f][0]}, 4 layers", f"{f}.plan", partial(image_model, f)) for f in VISUAL]
    for (name, plan, build), dtype in [(c, d) for c in cases for d in ("float32", "bfloat16")]:
        attentions = ["sdpa", sm.attention()]
        attentions += ["flex_attention"] if build is text_model and DEVICE == "cuda" else []
        collate = sm.Collate("transformers", media_dtype=getattr(torch, dtype))
        packs = packs_of(folder, plan, collate=collate, device=None).dataset
        pack = max((packs[n] for n in range(min(4, len(packs)))), key=lambda p: len(p.pack.keys))
        members = zip(pack.pack.samples.tolist(), pack.pack.layout.lengths.tolist())
        ones = [one_document(packs, *member) for member in members]
        for attention in attentions:
            model = build(attention, getattr(torch, dtype), num_hidden_layers=sized(4, 2)).eval()

            def losses(item: Any, model: Any = model, collate: Any = collate) -> Any:
                batch = moved(collate([item]))
                labels = batch.pop("labels")[0, 1:]
                with torch.no_grad():
                    logits = model(**batch).logits[0, :-1]
                found = functional.cross_entropy(logits.float(), labels, reduction="none")
                return found[labels != -100]

            if attention == "sdpa":  # first, so that what is alone knows nothing of packs
                alone = torch.cat([losses(one) for one in ones])
            together = losses(pack)
            far = float((together - alone).abs().max())
            means = f"{float(together.mean()):.5f}, {float(alone.mean()):.5f}"
            lines.append(f"| {name} | {dtype} | {attention} | {far:.1e} | {means} |")
            print(lines[-1], flush=True)
            del model
            gc.collect()
    return "\n".join(lines)


def one_document(packs: Any, number: int, length: int) -> Any:
    """Return a pack of one document, cut as the plan has it."""
    from shardmill.packing.build import build_pack
    from shardmill.train.documents import TrainPack

    found = packs.reader.read(number)
    levels = getattr(packs.reader, "levels", None)
    tensors = found.tensors if levels is None else levels.finish(found.tensors)
    return TrainPack(0, build_pack([found.row], packs.build, lengths=[length]), tensors)


def sections(folder: Path, parts: list[str]) -> Iterator[str]:
    """Yield the tables."""
    if "text" in parts:
        for capacity in CAPACITIES:
            modes = ["padded", "sorted", "4-D", "flex", "ours"]
            yield compare("Qwen2-1.5B", folder, f"{capacity}.plan", text_model, modes)
    if "images" in parts:
        for family, (name, _, _) in VISUAL.items():
            build = partial(image_model, family)
            yield compare(name, folder, f"{family}.plan", build, ["4-D", "ours"])
    if "loss" in parts:
        yield same_losses(folder)


def main() -> None:
    global DEVICE
    import torch

    asked = argparse.ArgumentParser()
    asked.add_argument("--quick", action="store_true")
    asked.add_argument("--make", type=Path)
    asked.add_argument("--data", type=Path)
    asked.add_argument("--parts", default="loss,text,images")
    given = asked.parse_args()
    DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
    if DEVICE == "cpu":
        let_torchvision_load()
    if given.make is not None:
        given.make.mkdir(parents=True)
        make_inputs(given.make)
        return
    with tempfile.TemporaryDirectory() as made:
        folder = given.data or Path(made)
        if given.data is None:
            make_inputs(folder)
        where = torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU"
        print(json.dumps({"device": where, "torch": torch.__version__}), flush=True)
        save_report(__file__, "Training steps on a GPU", sections(folder, given.parts.split(",")))


DEVICE = "cpu"

if __name__ == "__main__":
    main()
