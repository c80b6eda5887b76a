"""The nearest codebook entry, in fp32 and in slices, so that distances never fill the memory.

Distances are |z|^2 + |e|^2 - 2 z.e, in this order of operations, and the first of equal ones wins:
what transformers computes. A slice of 8,192 positions and 8,192 codes is 256 MiB.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

MAX_DISTANCES = 1 << 26
Tensor = Any


def nearest_codes(vectors: Tensor, codebook: Tensor, *, normalised: bool = False) -> Tensor:
    """Return, for vectors [n, d] and a codebook [codes, d], the n nearest codes as int64."""
    vectors, codebook = vectors.float(), codebook.float()
    if normalised:
        vectors, codebook = F.normalize(vectors, dim=-1), F.normalize(codebook, dim=-1)
    codebook_squares = torch.sum(codebook**2, dim=1)
    step = max(1, MAX_DISTANCES // len(codebook))
    nearest = [
        _nearest(vectors[first : first + step], codebook, codebook_squares)
        for first in range(0, len(vectors), step)
    ]
    return torch.cat(nearest) if nearest else torch.empty(0, dtype=torch.int64)


def _nearest(vectors: Tensor, codebook: Tensor, codebook_squares: Tensor) -> Tensor:
    products = torch.einsum("bd,dn->bn", vectors, codebook.transpose(0, 1))
    squares = torch.sum(vectors**2, dim=1, keepdim=True)
    return torch.argmin(squares + codebook_squares - 2 * products, dim=1)
