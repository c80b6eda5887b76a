"""Makes a small VQ tokenizer in Chameleon's layout, because weights cannot be shipped.

    python demo/make_weights.py FOLDER

Its numbers are random, so its codes mean nothing; everything else is as with the real ones.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from shardmill.tokens.vq.weights import VqShape, expected_tensors

SHAPE = VqShape(base_channels=32, multipliers=(1, 1, 1, 1, 1), num_blocks=1, num_codes=8192)


def main() -> None:
    torch.manual_seed(0)
    tensors = {}
    for part in ("encoder", "decoder"):
        for name, dims in expected_tensors(SHAPE, part).items():
            fan_in = dims[1] * dims[2] * dims[3] if len(dims) == 4 else 1
            tensors[name] = torch.randn(dims) * fan_in**-0.5
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    torch.save({"state_dict": tensors}, folder / "vqgan.ckpt")


if __name__ == "__main__":
    main()
