"""Megatron-core, resumable: torchrun examples/megatron_loop.py packs.plan tokens checkpoint.pt"""

import sys
from pathlib import Path

import torch
from megatron.core import parallel_state, tensor_parallel
from megatron.core.models.gpt import GPTModel, gpt_layer_specs
from megatron.core.transformer import TransformerConfig

import shardmill as sm

plan, tokens, checkpoint = sys.argv[1], sm.open(sys.argv[2]), Path(sys.argv[3])
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.distributed.init_process_group()
parallel_state.initialize_model_parallel()  # ranks of tensor or context parallel share packs
ranks = parallel_state.get_data_parallel_group()
split = {"rank": ranks.rank(), "world": ranks.size(), "batch_size": 8 // ranks.size()}
loader = sm.loader(plan, tokens, collate="megatron", device=device, **split)
tensor_parallel.model_parallel_cuda_manual_seed(0)
sizes = {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "hidden_dropout": 0}
config = TransformerConfig(**sizes, attention_dropout=0, use_cpu_initialization=True)
model = GPTModel(config, gpt_layer_specs.get_gpt_layer_local_spec(), tokens.space.size, 4096)
runner = torch.nn.parallel.DistributedDataParallel(model.to(device))
parts = {"model": model, "loader": loader, "optimizer": torch.optim.AdamW(model.parameters(), 1e-3)}
if checkpoint.exists():
    for name, state in torch.load(checkpoint, weights_only=True).items():
        parts[name].load_state_dict(state)
while loader.epoch < 1:
    for batch in loader:
        # Transformer Engine takes packed_seq_params instead of this mask.
        inputs = batch["tokens"], batch["position_ids"], ~sm.dense_mask(batch)
        losses = runner(*inputs, labels=batch["labels"]) * batch["loss_mask"]
        (loss := losses.sum() / sm.num_items(batch)).backward()
        parts["optimizer"].step()
        parts["optimizer"].zero_grad()
        if ranks.rank() == 0:
            torch.save({n: part.state_dict() for n, part in parts.items()}, f"{checkpoint}.draft")
            Path(f"{checkpoint}.draft").rename(checkpoint)
        print(f"consumed {loader.state.consumed} loss {loss:.5f}", flush=True)
