"""Small VQ checkpoints with random weights in the real layouts, for tests."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from shardmill.tokens.vq.weights import VqShape, expected_tensors

SMALL = VqShape(base_channels=32, multipliers=(1, 1, 2), z_channels=16, embed_dim=16, num_codes=300)
SMALL_LLAMAGEN = VqShape(
    base_channels=32,
    multipliers=(1, 2),
    attention_levels=(1,),
    z_channels=16,
    embed_dim=8,
    num_codes=500,
    normalised=True,
)


def random_tensors(
    shape: VqShape, seed: int = 0, parts: Sequence[str] = ("encoder", "decoder")
) -> dict[str, Any]:
    """Return weights under which activations keep their size and many codes are used."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for part in parts:
        for name, dims in expected_tensors(shape, part).items():
            values = torch.randn(dims, generator=generator)
            if len(dims) == 4:
                values *= (dims[1] * dims[2] * dims[3]) ** -0.5
            elif name.endswith(".weight") and len(dims) == 1:
                values = 1 + 0.1 * values
            elif name != "quantize.embedding.weight":
                values *= 0.1
            tensors[name] = values
    return tensors


def write_original(folder: Path, shape: VqShape = SMALL, seed: int = 0) -> dict[str, Any]:
    """Write `vqgan.yaml` and `vqgan.ckpt`, and return the tensors."""
    tensors = random_tensors(shape, seed)
    folder.mkdir(parents=True, exist_ok=True)
    unused = {"loss.logvar": torch.zeros(())}
    torch.save({"state_dict": {**tensors, **unused}, "global_step": 1}, folder / "vqgan.ckpt")
    (folder / "vqgan.yaml").write_text(
        f"""model:
  target: taming.models.vqgan.VQModel
  params:
    embed_dim: {shape.embed_dim}
    n_embed: {shape.num_codes}
    ddconfig:
      double_z: false
      z_channels: {shape.z_channels}
      resolution: 512
      in_channels: 3
      out_ch: 3
      ch: {shape.base_channels}
      ch_mult: {list(shape.multipliers)}
      num_res_blocks: {shape.num_blocks}
      attn_resolutions: []
      dropout: 0.0
    lossconfig:
      target: taming.modules.losses.DummyLoss
"""
    )
    return tensors


def write_llamagen(path: Path, shape: VqShape = SMALL_LLAMAGEN, seed: int = 0) -> dict[str, Any]:
    """Write a `.pt` in LlamaGen's names, and return the tensors in the canonical ones."""
    tensors = random_tensors(shape, seed)
    coarsest = len(shape.multipliers) - 1
    renamed = {llamagen_name(name, coarsest): tensor for name, tensor in tensors.items()}
    renamed["quantize.codebook_used"] = torch.zeros(65536)
    torch.save({"model": renamed}, path)
    return tensors


def llamagen_name(name: str, coarsest: int) -> str:
    """Return LlamaGen's name of a canonical tensor."""
    for number, part in enumerate(("block_1", "attn_1", "block_2")):
        name = name.replace(f".mid.{part}.", f".mid.{number}.")
    name = re.sub(r"(down|up)\.(\d+)\.block\.", r"\1.\2.res.", name)
    name = re.sub(r"encoder\.down\.", "encoder.conv_blocks.", name)
    return re.sub(
        r"decoder\.up\.(\d+)\.", lambda m: f"decoder.conv_blocks.{coarsest - int(m[1])}.", name
    )
