"""accelerate on several processes: kill it anywhere, run it again on any number of them.

accelerate launch --cpu --num_processes 2 examples/accelerate_loop.py packs.plan tokens OUT
"""

import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from transformers import AutoModelForCausalLM, LlamaConfig

import shardmill as sm

accelerator = Accelerator(cpu=True)
plan, tokens, out = sys.argv[1], sm.open(sys.argv[2]), Path(sys.argv[3])
batch_size = 8 // accelerator.num_processes  # every process is a rank
loader = sm.loader(plan, tokens, batch_size=batch_size, collate="transformers")
torch.manual_seed(0)
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
config = LlamaConfig(vocab_size=tokens.space.size, num_attention_heads=4, **sizes)
model = AutoModelForCausalLM.from_config(config, attn_implementation=sm.attention())
sm.check_batch(model, loader)
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), 1e-3))
accelerator.register_for_checkpointing(loader)
for latest in sorted(out.glob("step-*[0-9]"))[-1:]:
    accelerator.load_state(str(latest))
while loader.epoch < 1:
    for batch in loader:
        loss = model(**batch, num_items_in_batch=sm.num_items(batch)).loss  # over all processes
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        mean = accelerator.reduce(loss.detach(), reduction="mean")
        name = f"step-{loader.epoch:03d}-{loader.state.consumed:06d}"
        accelerator.save_state(str(out / f"{name}.draft"))
        accelerator.wait_for_everyone()
        accelerator.is_main_process and (out / f"{name}.draft").rename(out / name)
        accelerator.print(f"{name} loss {mean:.5f}", flush=True)
