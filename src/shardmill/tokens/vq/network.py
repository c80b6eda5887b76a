"""The network, written once: which layers follow which, over whatever computes them.

`PlainTokenizer` runs it in plain torch, `fused.FusedTokenizer` by kernels of its own on a GPU.

`Layers` is the arithmetic: plain torch (`PlainLayers`), or fused kernels on a GPU (`fused`). An
activation is whatever the layers pass to each other. Weights are named as in `weights`.

The plain layers are the reference that every faster way is measured by: in fp32 their operations
and order are those of transformers' ChameleonVQVAE, so that the codes are the same to the last one.
The nearest codebook entry is found in fp32 and in slices, so that distances never fill the memory:
|z|^2 + |e|^2 - 2 z.e, in this order, and the first of equal ones wins, as in transformers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F

from shardmill.errors import ConfigError
from shardmill.tokens.vq.tokenizer import Scaling
from shardmill.tokens.vq.weights import NUM_GROUPS, VqShape, VqWeights

EPSILON = 1e-6
RESCALE = 0.0078  # of ChameleonImageProcessor
MAX_DISTANCES = 1 << 26  # of one slice, so 256 MB in fp32

Activation = Any
Tensor = Any


class Layers(Protocol):
    """What computes the layers of a network whose weights it holds."""

    def conv(self, name: str, x: Activation) -> Activation:
        """A convolution that keeps the size: 3 x 3 padded by one, or 1 x 1."""

    def norm_silu_conv(
        self, norm: str, conv: str, x: Activation, add: Activation | None = None
    ) -> Activation:
        """Group norm, SiLU and a 3 x 3 convolution, plus `add` if given."""

    def attention(self, name: str, x: Activation) -> Activation:
        """`x` plus single-head attention over all positions of its norm."""

    def halve(self, name: str, x: Activation) -> Activation:
        """A 3 x 3 convolution of stride 2 after padding right and bottom by one zero."""


class DecoderLayers(Layers, Protocol):
    """What can also compute a decoder."""

    def double(self, name: str, x: Activation) -> Activation:
        """Nearest neighbour to twice the size, then a 3 x 3 convolution."""


def encode(layers: Layers, shape: VqShape, pixels: Activation) -> Activation:
    """Return the vectors to be quantized, for pixels in [-1, 1]."""
    x = layers.conv("encoder.conv_in", pixels)
    for level in range(len(shape.multipliers)):
        for block in range(shape.num_blocks):
            x = _residual(
                layers, f"encoder.down.{level}.block.{block}", x, _narrow(shape, level, block)
            )
            if level in shape.attention_levels:
                x = layers.attention(f"encoder.down.{level}.attn.{block}", x)
        if level < len(shape.multipliers) - 1:
            x = layers.halve(f"encoder.down.{level}.downsample.conv", x)
    x = _middle(layers, "encoder.mid", x)
    x = layers.norm_silu_conv("encoder.norm_out", "encoder.conv_out", x)
    return layers.conv("quant_conv", x)


def decode(layers: DecoderLayers, shape: VqShape, vectors: Activation) -> Activation:
    """Return pixels, about [-1, 1], for vectors of the codebook."""
    x = layers.conv("decoder.conv_in", layers.conv("post_quant_conv", vectors))
    x = _middle(layers, "decoder.mid", x)
    width = shape.widths[-1]
    for level in reversed(range(len(shape.multipliers))):
        for block in range(shape.num_blocks + 1):
            changes = width != shape.widths[level]
            x = _residual(layers, f"decoder.up.{level}.block.{block}", x, changes)
            width = shape.widths[level]
            if level in shape.attention_levels:
                x = layers.attention(f"decoder.up.{level}.attn.{block}", x)
        if level > 0:
            x = layers.double(f"decoder.up.{level}.upsample.conv", x)
    return layers.norm_silu_conv("decoder.norm_out", "decoder.conv_out", x)


def _middle(layers: Layers, name: str, x: Activation) -> Activation:
    x = _residual(layers, f"{name}.block_1", x, False)
    x = layers.attention(f"{name}.attn_1", x)
    return _residual(layers, f"{name}.block_2", x, False)


def _residual(layers: Layers, name: str, x: Activation, changes_width: bool) -> Activation:
    hidden = layers.norm_silu_conv(f"{name}.norm1", f"{name}.conv1", x)
    past = layers.conv(f"{name}.nin_shortcut", x) if changes_width else x
    return layers.norm_silu_conv(f"{name}.norm2", f"{name}.conv2", hidden, past)


def _narrow(shape: VqShape, level: int, block: int) -> bool:
    before = shape.widths[level - 1] if level else shape.base_channels
    return block == 0 and before != shape.widths[level]


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


class PlainTokenizer:
    """The network in plain torch; fp32 by default, the reference for everything else."""

    can_replay = False

    def __init__(self, weights: VqWeights, device: Any, scaling: Scaling = "torchvision") -> None:
        self._scaling: Scaling = scaling
        self.shape, self._has_decoder = weights.shape, weights.has_decoder
        self.factor, self.num_codes = weights.shape.factor, weights.shape.num_codes
        self._weights = {name: tensor.to(device) for name, tensor in weights.tensors.items()}
        self._layers = PlainLayers(self._weights)
        self._codebook = self._weights["quantize.embedding.weight"]

    def encode(self, pixels: Tensor) -> Tensor:
        with torch.inference_mode(), exact_fp32():
            vectors = self.vectors(pixels)
            batch, height, width, size = vectors.shape
            codes = nearest_codes(
                vectors.reshape(-1, size), self._codebook, normalised=self.shape.normalised
            )
        return codes.view(batch, height, width).int()

    def vectors(self, pixels: Tensor) -> Tensor:
        """Return what is quantized, [batch, height, width, size]."""
        with torch.inference_mode(), exact_fp32():
            # Channels first in memory, too: libraries add up in another order otherwise.
            scaled = scale_bytes(pixels.permute(0, 3, 1, 2).contiguous(), self._scaling)
            return encode(self._layers, self.shape, scaled).permute(0, 2, 3, 1)

    def decode(self, codes: Tensor) -> Tensor:
        if not self._has_decoder:
            raise ConfigError("these weights have no decoder, so codes cannot become images")
        with torch.inference_mode(), exact_fp32():
            vectors = self._codebook[codes.long()]
            if self.shape.normalised:
                vectors = F.normalize(vectors, dim=-1)
            pixels = decode(self._layers, self.shape, vectors.permute(0, 3, 1, 2))
        return to_bytes(pixels.permute(0, 2, 3, 1))


def scale_bytes(pixels: Tensor, scaling: Scaling) -> Tensor:
    """Return bytes as fp32 of about [-1, 1], to the last bit as another program computes them.

    Half of the 256 values differ in their last bit between "torchvision" (ToTensor, Normalize by
    0.5) and "numpy", which Liquid and Chameleon use. transformers' processor of Chameleon takes
    0.0078 for 2 / 255, so that white is 0.989.
    """
    match scaling:
        case "torchvision":
            return pixels.float() / 255 * 2 - 1
        case "numpy":
            return (pixels.double() / 255 * 2 - 1).float()
        case "transformers":
            return (pixels.double() * RESCALE).float() - 1


def to_bytes(pixels: Tensor) -> Tensor:
    """Return bytes for pixels of about [-1, 1], rounded to nearest."""
    return ((pixels.float() + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)


@contextmanager
def exact_fp32() -> Iterator[None]:
    """Compute fp32 as fp32: convolutions on a GPU would otherwise round their inputs to tf32."""
    if not torch.cuda.is_available():
        yield
        return
    convolutions, products = torch.backends.cudnn, torch.backends.cuda.matmul
    before = convolutions.allow_tf32, products.allow_tf32
    convolutions.allow_tf32 = products.allow_tf32 = False
    try:
        yield
    finally:
        convolutions.allow_tf32, products.allow_tf32 = before
