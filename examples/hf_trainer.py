"""Trainer, resumable: python examples/hf_trainer.py packs.plan DATA MODEL_DIR OUT [lengths]"""

import json
import sys
from pathlib import Path

import transformers as hf

import shardmill as sm


class Trainer(hf.Trainer):
    def get_train_dataloader(self):
        return loader


class SaveLoader(hf.TrainerCallback):
    def on_save(self, args, state, control, **more):  # the rest of the checkpoint is written
        saved = json.dumps(loader.state_dict())
        (out / f"checkpoint-{state.global_step}" / "loader.json").write_text(saved)


plan, data, model_dir, out, lengths = *sys.argv[1:4], Path(sys.argv[4]), sys.argv[5:]
pixels = {"processor": model_dir, "lengths": lengths[0]} if lengths else {}  # DATA has images
loader = sm.loader(plan, data, **pixels, batch_size=4, remainder="pad", collate="transformers")
done = [path.parent for path in out.glob("checkpoint-*/loader.json")]
last = max(done, key=lambda path: int(path.name.split("-")[1]), default=None)
hf.set_seed(0)
kind = hf.AutoModelForImageTextToText if pixels else hf.AutoModelForCausalLM
config, how = hf.AutoConfig.from_pretrained(model_dir), {"attn_implementation": sm.attention()}
model = kind.from_pretrained(last, **how) if last else kind.from_config(config, **how)
model.accepts_loss_kwargs = True  # so that Trainer counts tokens, not means, of several batches
sm.check_batch(model, loader)
if last is not None:
    loader.load_state_dict(json.loads((last / "loader.json").read_text()))
how = {"max_steps": 12, "save_steps": 1, "logging_steps": 1, "ignore_data_skip": True}
args = hf.TrainingArguments(out, use_cpu=True, **how)
Trainer(model, args, callbacks=[SaveLoader()]).train(resume_from_checkpoint=last and str(last))
