"""ms-swift's trainer, resumable: python examples/swift_sft.py packs.plan tokens MODEL_DIR OUT"""

import json
import sys
from pathlib import Path

import datasets
import swift
from transformers import TrainerCallback

import shardmill as sm


class Trainer(swift.Seq2SeqTrainer):
    def get_train_dataloader(self, *args, **more):
        return loader


class SaveLoader(TrainerCallback):
    def on_save(self, args, state, control, **more):  # the rest of the checkpoint is written
        saved = json.dumps(loader.state_dict())
        (out / f"checkpoint-{state.global_step}" / "loader.json").write_text(saved)


plan, tokens, model_dir, out = *sys.argv[1:4], Path(sys.argv[4])
loader = sm.loader(plan, tokens, batch_size=4, remainder="pad", collate="transformers")
done = [path.parent for path in out.glob("checkpoint-*/loader.json")]
last = max(done, key=lambda path: int(path.name.split("-")[1]), default=None)
kind = {"model_type": "qwen2", "attn_impl": sm.attention(), "torch_dtype": "float32"}
model, words = swift.get_model_processor(model_dir, **kind)
sm.check_batch(model, loader)
if last is not None:
    loader.load_state_dict(json.loads((last / "loader.json").read_text()))
how = {"max_steps": 12, "save_steps": 1, "logging_steps": 1, "ignore_data_skip": True}
how |= {"use_cpu": True, "report_to": "none", "gradient_accumulation_steps": 1}
args = swift.Seq2SeqTrainingArguments(str(out), **how)
nothing = datasets.Dataset.from_dict({"input_ids": [[1]]})  # not read
trainer = Trainer(model, args, swift.get_template(words, template_type="qwen2_5"), nothing)
trainer.add_callback(SaveLoader())
trainer.train(resume_from_checkpoint=last and str(last))
