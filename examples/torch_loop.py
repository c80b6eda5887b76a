"""A plain PyTorch loop on packed chats with images: kill it anywhere and run it again.

python examples/torch_loop.py packs.plan lengths.bin samples MODEL_DIR checkpoint.pt
"""

import sys
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForImageTextToText

import shardmill as sm

plan, lengths, samples, model_dir, checkpoint = map(Path, sys.argv[1:6])
pixels = {"processor": model_dir, "lengths": lengths}
loader = sm.loader(plan, samples, **pixels, batch_size=2, collate="transformers", workers=1)
torch.manual_seed(0)
config = AutoConfig.from_pretrained(model_dir)
model = AutoModelForImageTextToText.from_config(config, attn_implementation=sm.attention())
sm.check_batch(model, loader)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
parts = {"model": model, "optimizer": optimizer, "loader": loader}
if checkpoint.exists():
    for name, state in torch.load(checkpoint, weights_only=True).items():
        parts[name].load_state_dict(state)
while loader.epoch < 2:
    for batch in loader:
        loss = model(**batch, num_items_in_batch=sm.num_items(batch)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.save({n: part.state_dict() for n, part in parts.items()}, f"{checkpoint}.draft")
        Path(f"{checkpoint}.draft").rename(checkpoint)
        print(f"epoch {loader.epoch} consumed {loader.state.consumed} loss {loss:.6f}", flush=True)
