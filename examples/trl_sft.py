"""TRL's SFTTrainer, resumable: examples/trl_sft.py packs.plan DATA MODEL_DIR OUT [lengths]"""

import json
import sys
from pathlib import Path

import datasets
import transformers as hf
import trl

import shardmill as sm


class Trainer(trl.SFTTrainer):
    def get_train_dataloader(self):
        return loader


class SaveLoader(hf.TrainerCallback):
    def on_save(self, args, state, control, **more):  # the rest of the checkpoint is written
        saved = json.dumps(loader.state_dict())
        (out / f"checkpoint-{state.global_step}" / "loader.json").write_text(saved)


plan, data, model_dir, out, lengths = *sys.argv[1:4], Path(sys.argv[4]), sys.argv[5:]
pixels = {"processor": model_dir, "lengths": lengths[0]} if lengths else {}  # DATA has images
loader = sm.loader(plan, data, **pixels, batch_size=4, remainder="pad", collate="transformers")
last = max(out.glob("*/loader.json"), key=lambda p: int(p.parent.name.split("-")[1]), default=None)
hf.set_seed(0)
kind = hf.AutoModelForImageTextToText if pixels else hf.AutoModelForCausalLM
config, how = hf.AutoConfig.from_pretrained(model_dir), {"attn_implementation": sm.attention()}
model = kind.from_pretrained(last.parent, **how) if last else kind.from_config(config, **how)
model.accepts_loss_kwargs = True  # so that Trainer counts tokens, not means, of several batches
sm.check_batch(model, loader)
if last:
    loader.load_state_dict(json.loads(last.read_text()))
how = {"max_steps": 12, "save_steps": 1, "logging_steps": 1, "ignore_data_skip": True}
given = {"train_dataset": datasets.Dataset.from_dict({"input_ids": [[1]]})}  # not read
given |= {"args": trl.SFTConfig(out, use_cpu=True, bf16=False, **how), "callbacks": [SaveLoader()]}
Trainer(model, **given).train(resume_from_checkpoint=last and str(last.parent))
