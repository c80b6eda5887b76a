"""Hugging Face Trainer on packed tokens: kill it anywhere and run it again.

python examples/hf_trainer.py packs.plan tokens OUT
"""

import json
import sys
from pathlib import Path

from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

import shardmill as sm


class PackTrainer(Trainer):
    def get_train_dataloader(self):
        self.loader = sm.loader(plan, tokens, batch_size=4, collate="transformers")
        if last is not None:
            self.loader.load_state_dict(json.loads(Path(last, "loader.json").read_text()))
        return self.loader

    def _save_checkpoint(self, model, trial):
        super()._save_checkpoint(model, trial)
        path = Path(out, f"checkpoint-{self.state.global_step}", "loader.json")
        path.write_text(json.dumps(self.loader.state_dict()))  # last: the checkpoint is whole


plan, tokens, out = sys.argv[1], sm.open(sys.argv[2]), sys.argv[3]
done = [path.parent for path in Path(out).glob("checkpoint-*/loader.json")]
last = max(done, key=lambda path: int(path.name.split("-")[1]), default=None)
set_seed(0)
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
vocab_size = tokens.space.size
config = LlamaConfig(vocab_size=vocab_size, num_attention_heads=4, **sizes)
how = {"max_steps": 12, "save_steps": 1, "logging_steps": 1, "ignore_data_skip": True}
arguments = TrainingArguments(out, use_cpu=True, **how)
PackTrainer(LlamaForCausalLM(config), arguments).train(resume_from_checkpoint=last and str(last))
