"""The layers in plain torch, channels first: the reference that every faster way is measured by.

In fp32 the operations and their order are those of transformers' ChameleonVQVAE, so that the codes
are the same to the last one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from shardmill.tokens.vq.shape import NUM_GROUPS

EPSILON = 1e-6
Tensor = Any


@dataclass(frozen=True, slots=True)
class PlainLayers:
    """Layers over weights by name; activations are tensors [batch, channels, height, width]."""

    weights: Mapping[str, Tensor]

    def conv(self, name: str, x: Tensor) -> Tensor:
        weight = self.weights[f"{name}.weight"]
        return F.conv2d(x, weight, self.weights[f"{name}.bias"], padding=weight.shape[-1] // 2)

    def norm_silu_conv(self, norm: str, conv: str, x: Tensor, add: Tensor | None = None) -> Tensor:
        x = self._norm(norm, x)
        x = self.conv(conv, x * torch.sigmoid(x))
        return x if add is None else add + x

    def attention(self, name: str, x: Tensor) -> Tensor:
        normed = self._norm(f"{name}.norm", x)
        batch, channels, height, width = x.shape
        query, key, value = (
            self.conv(f"{name}.{part}", normed).reshape(batch, channels, height * width)
            for part in ("q", "k", "v")
        )
        scores = torch.bmm(query.permute(0, 2, 1), key) * channels**-0.5
        shares = F.softmax(scores, dim=2).permute(0, 2, 1)
        seen = torch.bmm(value, shares).reshape(batch, channels, height, width)
        return x + self.conv(f"{name}.proj_out", seen)

    def halve(self, name: str, x: Tensor) -> Tensor:
        x = F.pad(x, (0, 1, 0, 1))
        return F.conv2d(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"], stride=2)

    def double(self, name: str, x: Tensor) -> Tensor:
        return self.conv(name, F.interpolate(x, scale_factor=2.0, mode="nearest"))

    def _norm(self, name: str, x: Tensor) -> Tensor:
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return F.group_norm(x, NUM_GROUPS, weight, bias, EPSILON)
