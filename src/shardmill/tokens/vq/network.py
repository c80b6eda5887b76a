"""The network, written once: which layers follow which, over whatever computes them.

`Layers` is the arithmetic: plain torch in fp32 (plain.py), or fused kernels on a GPU (fused.py).
An activation is whatever the layers pass to each other. Weights are named as in shape.py.
"""

from __future__ import annotations

from typing import Any, Protocol

from shardmill.tokens.vq.shape import VqShape

Activation = Any


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
