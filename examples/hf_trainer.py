"""Hugging Face Trainer on packed tokens: kill it anywhere and run it again.

python examples/hf_trainer.py packs.plan tokens OUT
"""

import json
import sys
from pathlib import Path

from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from shardmill.serve.collate import Collate
from shardmill.serve.loader import StepLoader
from shardmill.serve.packed import PackedDataset


class PackTrainer(Trainer):
    def get_train_dataloader(self):
        collate = Collate(attention="4d", labels="unshifted")
        self.loader = StepLoader(packs, packs.sampler(micro_batch=4), collate_fn=collate)
        if last is not None:
            self.loader.load_state_dict(json.loads(Path(last, "loader.json").read_text()))
        return self.loader

    def _save_checkpoint(self, model, trial):
        folder = Path(self._get_output_dir(trial), f"checkpoint-{self.state.global_step}")
        folder.mkdir(parents=True, exist_ok=True)
        folder.joinpath("loader.json").write_text(json.dumps(self.loader.state_dict()))
        super()._save_checkpoint(model, trial)


packs, out = PackedDataset.from_tokens(sys.argv[1], sys.argv[2]), sys.argv[3]
last = get_last_checkpoint(out) if Path(out).exists() else None
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
vocab_size = packs.reader.tokens.space.size
config = LlamaConfig(vocab_size=vocab_size, num_attention_heads=4, **sizes)
how = {"max_steps": 12, "save_steps": 1, "logging_steps": 1, "ignore_data_skip": True}
arguments = TrainingArguments(out, use_cpu=True, **how)
PackTrainer(LlamaForCausalLM(config), arguments).train(resume_from_checkpoint=last)
