"""Trains a small language model on packed tokens; kill it anywhere and run it again.

python demo/train.py packs.plan tokens checkpoint.pt
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import shardmill as sm

NUM_EPOCHS, WIDTH, NUM_HEADS = 6, 64, 4


class Block(nn.Module):
    """Attention inside of documents only, then a small network."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.feed = nn.Sequential(nn.Linear(WIDTH, 256), nn.GELU(), nn.Linear(256, WIDTH))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        batch, length, _ = x.shape
        split = self.qkv(self.norms[0](x)).view(batch, length, 3, NUM_HEADS, -1).unbind(2)
        q, k, v = (part.transpose(1, 2) for part in split)
        seen = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.feed(self.norms[1](x))


class Model(nn.Module):
    """Two blocks; positions restart with every document of a pack."""

    def __init__(self, vocab_size: int, max_length: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, WIDTH)
        self.positions = nn.Embedding(max_length, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block()])
        for table in (self.tokens, self.positions):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, batch: dict[str, Any]) -> Tensor:
        x = self.tokens(batch["input_ids"]) + self.positions(batch["position_ids"])
        mask = sm.dense_mask(batch)
        for block in self.blocks:
            x = block(x, mask)
        learned = batch["labels"] != -100
        logits = x[learned] @ self.tokens.weight.T
        return functional.cross_entropy(logits, batch["labels"][learned])


def main() -> None:
    plan, tokens, checkpoint = sys.argv[1], sm.open(sys.argv[2]), Path(sys.argv[3])
    loader = sm.loader(plan, tokens, collate="torch")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Model(tokens.space.size, max_length=4096)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "loader": loader}
    if checkpoint.exists():
        for name, state in torch.load(checkpoint, weights_only=True).items():
            parts[name].load_state_dict(state)
    while loader.epoch < NUM_EPOCHS:
        for batch in loader:
            loss = model(batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            draft = checkpoint.with_suffix(".draft")
            torch.save({name: part.state_dict() for name, part in parts.items()}, draft)
            draft.rename(checkpoint)
            state = loader.state
            print(f"  epoch {state.epoch}, {state.consumed} packs: loss {loss:.4f}", flush=True)


if __name__ == "__main__":
    main()
