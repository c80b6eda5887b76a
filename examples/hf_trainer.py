"""Hugging Face Trainer on packed tokens: kill it anywhere and run it again.

python examples/hf_trainer.py packs.plan tokens OUT
"""

import json
import sys
from pathlib import Path

import transformers
from transformers import AutoModelForCausalLM, LlamaConfig, TrainerCallback, TrainingArguments

import shardmill as sm


class Trainer(transformers.Trainer):
    def get_train_dataloader(self):
        return loader


class SaveLoader(TrainerCallback):
    def on_save(self, args, state, control, **more):  # the rest of the checkpoint is written
        path = out / f"checkpoint-{state.global_step}" / "loader.json"
        path.write_text(json.dumps(loader.state_dict()))


plan, tokens, out = sys.argv[1], sm.open(sys.argv[2]), Path(sys.argv[3])
loader = sm.loader(plan, tokens, batch_size=4, collate="transformers")
done = [path.parent for path in out.glob("checkpoint-*/loader.json")]
last = max(done, key=lambda path: int(path.name.split("-")[1]), default=None)
if last is not None:
    loader.load_state_dict(json.loads((last / "loader.json").read_text()))
transformers.set_seed(0)
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
config = LlamaConfig(vocab_size=tokens.space.size, num_attention_heads=4, **sizes)
model = AutoModelForCausalLM.from_config(config, attn_implementation=sm.attention())
sm.check_batch(model, loader)
how = {"max_steps": 12, "save_steps": 1, "logging_steps": 1, "ignore_data_skip": True}
trainer = Trainer(model, TrainingArguments(out, use_cpu=True, **how), callbacks=[SaveLoader()])
trainer.train(resume_from_checkpoint=last and str(last))
