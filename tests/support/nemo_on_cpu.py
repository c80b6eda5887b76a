"""Runs NeMo Automodel's VLM recipe on a CPU: python nemo_on_cpu.py config.yaml

All of the recipe is NeMo's: config, loader, scheduler of steps, loss, optimizer, loop. Two things
are not run, because they ask for a GPU by name: its wrapper around the model (the model is that of
transformers instead, in fp32) and its readings of GPU memory. Prints one JSON line for each step.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import orjson
import torch
from hf_processors import transformers


def main(config: str) -> None:
    library = transformers()
    torch.cuda.reset_peak_memory_stats = lambda *_: None
    torch.cuda.max_memory_allocated = lambda *_: 0
    from nemo_automodel.components.config.loader import load_yaml_config
    from nemo_automodel.recipes.vlm import finetune

    def build_model(settings: Any, *_: Any, **__: Any) -> Any:
        return library.AutoModelForImageTextToText.from_pretrained(
            settings.pretrained_model_name_or_path, attn_implementation="sdpa"
        ).float()

    finetune.build_model = build_model

    class Watched(finetune.FinetuneRecipeForVLM):  # type: ignore[misc, name-defined]
        def _run_train_optim_step(self, batches: Any, *args: Any) -> Any:
            sums = [int(batch["input_ids"].sum()) for batch in batches]
            found = super()._run_train_optim_step(batches, *args)
            line = {"epoch": found.epoch, "sums": sums, "loss": found.metrics["loss"]}
            sys.stdout.buffer.write(b"STEP " + orjson.dumps(line) + b"\n")
            return found

    recipe = Watched(load_yaml_config(config))
    recipe.setup()
    recipe.run_train_validation_loop()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main(sys.argv[1])
