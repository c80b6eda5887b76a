"""Lightning on packed tokens: python examples/lightning_loop.py packs.plan tokens OUT"""

import sys
from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from transformers import AutoModelForCausalLM, LlamaConfig

import shardmill as sm


class Training(lightning.LightningModule):
    def __init__(self, config):
        super().__init__()
        self.model = AutoModelForCausalLM.from_config(config, attn_implementation=sm.attention())

    def training_step(self, batch):
        loss = self.model(**batch, num_items_in_batch=sm.num_items(batch)).loss
        print(f"step {self.global_step} loss {loss:.5f}", flush=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-3)


tokens, out = sm.open(sys.argv[2]), Path(sys.argv[3])
loader = sm.loader(sys.argv[1], tokens, batch_size=4, collate="transformers")
torch.manual_seed(0)
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
config = LlamaConfig(vocab_size=tokens.space.size, num_attention_heads=4, **sizes)
saving = ModelCheckpoint(out, every_n_train_steps=4, save_last=True)
trainer = lightning.Trainer(accelerator="cpu", max_steps=12, callbacks=[saving], logger=False)
last = next(out.glob("last.ckpt"), None)
training = Training(config)
sm.check_batch(training.model, loader)
trainer.fit(training, loader, ckpt_path=last)
