"""TRL's SFTTrainer, resumable: python examples/trl_sft.py packs.plan tokens MODEL_DIR OUT"""

import json
import sys
from pathlib import Path

import datasets
import trl
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, TrainerCallback, set_seed

import shardmill as sm


class Trainer(trl.SFTTrainer):
    def get_train_dataloader(self):
        return loader


class SaveLoader(TrainerCallback):
    def on_save(self, args, state, control, **more):  # the rest of the checkpoint is written
        saved = json.dumps(loader.state_dict())
        (out / f"checkpoint-{state.global_step}" / "loader.json").write_text(saved)


plan, tokens, model_dir, out = *sys.argv[1:4], Path(sys.argv[4])
loader = sm.loader(plan, tokens, batch_size=4, collate="transformers")
done = [path.parent for path in out.glob("checkpoint-*/loader.json")]
last = max(done, key=lambda path: int(path.name.split("-")[1]), default=None)
set_seed(0)
config, words = AutoConfig.from_pretrained(model_dir), AutoTokenizer.from_pretrained(model_dir)
model = AutoModelForCausalLM.from_config(config, attn_implementation=sm.attention())
sm.check_batch(model, loader)
if last is not None:
    loader.load_state_dict(json.loads((last / "loader.json").read_text()))
how = {"max_steps": 12, "save_steps": 1, "logging_steps": 1, "ignore_data_skip": True}
how |= {"use_cpu": True, "bf16": False, "dataset_kwargs": {"skip_prepare_dataset": True}}
given = {"train_dataset": datasets.Dataset.from_dict({"input_ids": [[1]]})}  # not read
given |= {"args": trl.SFTConfig(str(out), **how), "processing_class": words}
Trainer(model, callbacks=[SaveLoader()], **given).train(resume_from_checkpoint=last and str(last))
