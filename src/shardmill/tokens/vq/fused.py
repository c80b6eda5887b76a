"""The layers by fused kernels on a GPU, channels last.

A group norm reads the moments that the convolution before it left, so that norm and SiLU are one
pass from the stream to the operand of the next convolution. Each level of the encoder has a
`Format`: what the matrix units multiply (`operand`), and what lies in memory between the layers
(`stream`). Sums, norms and residuals are computed in fp32 in every format.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from triton.tools.tensor_descriptor import TensorDescriptor

from shardmill.tokens.vq import kernels
from shardmill.tokens.vq.shape import NUM_GROUPS, VqShape

Tensor = Any
NEAREST_ROWS, NEAREST_CODES, NEAREST_SIZE = 128, 128, 32


@dataclass(frozen=True, slots=True)
class Format:
    """What is multiplied and what is stored; fp32 operands are rounded to tf32."""

    operand: Any
    stream: Any


@dataclass(frozen=True, slots=True)
class Tiling:
    """A box of pixels, how many channels out and in at a time, and the warps and stages for it."""

    box: tuple[int, int]
    channels_out: int
    channels_in: int
    num_warps: int
    num_stages: int


@dataclass(frozen=True, slots=True)
class Picture:
    """An activation [batch, height, width, channels] and the moments of its boxes."""

    pixels: Tensor
    moments: Tensor
    box: tuple[int, int]


def can_fuse(shape: VqShape) -> bool:
    """Say whether the kernels take these widths: powers of two, at least 64 channels."""
    widths = (*shape.widths, shape.z_channels)
    return all(width >= 64 and width & (width - 1) == 0 for width in widths)


class FusedLayers:
    """Layers over weights by name, prepared once for the formats that `format_of(name)` gives."""

    def __init__(
        self, weights: Mapping[str, Tensor], format_of: Callable[[str], Format], device: Any
    ) -> None:
        self._format_of = format_of
        self._params = {name: t.to(device) for name, t in weights.items() if t.ndim == 1}
        self._weights = {
            name.removesuffix(".weight"): self._prepare(name, t).to(device)
            for name, t in weights.items()
            if t.ndim == 4
        }

    def conv(self, name: str, x: Any) -> Picture:
        if name == "encoder.conv_in":
            return self._conv_pixels(name, x)
        return self._conv(name, self._operand(name, x.pixels))

    def norm_silu_conv(
        self, norm: str, conv: str, x: Picture, add: Picture | None = None
    ) -> Picture:
        operand = self._norm(norm, x, self._format_of(conv).operand, silu=True)
        return self._conv(conv, operand, add=add)

    def attention(self, name: str, x: Picture) -> Picture:
        normed = self._norm(f"{name}.norm", x, self._format_of(f"{name}.q").operand, silu=False)
        batch, height, width, channels = normed.shape
        query, key, value = (
            self._conv(f"{name}.{part}", normed).pixels.view(batch, height * width, channels)
            for part in ("q", "k", "v")
        )
        scores = torch.bmm(query, key.transpose(1, 2)).float() * channels**-0.5
        shares = F.softmax(scores, dim=2).to(value.dtype)
        seen = torch.bmm(shares, value).view(batch, height, width, channels)
        return self._conv(f"{name}.proj_out", self._operand(f"{name}.proj_out", seen), add=x)

    def halve(self, name: str, x: Picture) -> Picture:
        return self._conv(name, self._operand(name, x.pixels), stride=2)

    def double(self, name: str, x: Picture) -> Picture:
        raise NotImplementedError("the decoder runs on plain layers")

    def _prepare(self, name: str, weight: Tensor) -> Tensor:
        operand = self._format_of(name.removesuffix(".weight")).operand
        if name == "encoder.conv_in.weight":
            rows = weight.permute(2, 3, 1, 0).reshape(27, -1)
            return F.pad(rows, (0, 0, 0, 5)).to(operand).contiguous()
        flat = weight.permute(0, 2, 3, 1).reshape(len(weight), -1)
        return (round_to_tf32(flat) if operand == torch.float32 else flat.to(operand)).contiguous()

    def _operand(self, name: str, x: Tensor) -> Tensor:
        return x.to(self._format_of(name).operand)

    def _conv_pixels(self, name: str, pixels: Tensor) -> Picture:
        batch, height, width, _ = pixels.shape
        weight, bias = self._weights[name], self._params[f"{name}.bias"]
        channels, box = weight.shape[1], (8, 16)
        out = self._empty(name, (batch, height, width, channels), box)
        num_y, num_x = num_boxes(height, width, box)
        kernels.conv_pixels[(batch * num_y * num_x,)](
            pixels, weight, bias, out.pixels, out.moments, height, width, num_y, num_x,
            channels, *box, has_edge(height, width, box), num_warps=4,
        )  # fmt: skip
        return out

    def _conv(self, name: str, x: Tensor, add: Picture | None = None, stride: int = 1) -> Picture:
        batch, height, width, channels = x.shape
        weight, bias = self._weights[name], self._params[f"{name}.bias"]
        height, width, out_channels = height // stride, width // stride, len(weight)
        tiling = choose_tiling(x.dtype, height, width, out_channels)
        box, block_in = tiling.box, min(tiling.channels_in, channels)
        block_out = min(tiling.channels_out, out_channels)
        out = self._empty(name, (batch, height, width, out_channels), box)
        num_y, num_x = num_boxes(height, width, box)
        stored = describe(out.pixels, (1, *box, block_out))
        kernels.conv3x3[(batch * num_y * num_x * (out_channels // block_out),)](
            _describe_input(x, box, block_in, stride),
            describe(weight, (block_out, block_in)),
            bias,
            stored if add is None else describe(add.pixels, (1, *box, block_out)),
            stored,
            out.moments, height, width, num_y, num_x,
            channels, out_channels, *box, block_out, block_in,
            weight.shape[1] // channels, stride, add is not None, has_edge(height, width, box),
            num_warps=tiling.num_warps, num_stages=tiling.num_stages,
        )  # fmt: skip
        return out

    def _norm(self, name: str, x: Picture, operand: Any, *, silu: bool) -> Tensor:
        batch, height, width, channels = x.pixels.shape
        weight, bias = self._params[f"{name}.weight"], self._params[f"{name}.bias"]
        scale, shift = torch.empty((2, batch, channels), device=weight.device).unbind(0)
        num_y, num_x = num_boxes(height, width, x.box)
        kernels.fold_moments[(batch, NUM_GROUPS)](
            x.moments, weight, bias, scale, shift, height, width, num_y, num_x,
            channels, channels // NUM_GROUPS, *x.box, 256,
        )  # fmt: skip
        out = torch.empty(x.pixels.shape, dtype=operand, device=weight.device)
        rows = 8192 // channels
        kernels.scale_silu[(-(-height * width // rows), batch)](
            x.pixels, scale, shift, out, height * width,
            channels, rows, silu, operand == torch.float32, num_warps=8,
        )  # fmt: skip
        return out

    def _empty(self, name: str, dims: tuple[int, ...], box: tuple[int, int]) -> Picture:
        device = self._params[f"{name}.bias"].device
        num_y, num_x = num_boxes(dims[1], dims[2], box)
        moments = torch.empty((dims[0] * num_y * num_x, 2, dims[3]), device=device)
        stream = self._format_of(name).stream
        return Picture(torch.empty(dims, dtype=stream, device=device), moments, box)


@dataclass(frozen=True, slots=True)
class Codebook:
    """Entries padded with zeros to what the matrix units take, and |e|^2 of each."""

    entries: Tensor
    squares: Tensor
    num_codes: int


def prepare_codebook(entries: Tensor, normalised: bool, device: Any) -> Codebook:
    """Return the codebook for `nearest_on_gpu`; codes that only fill up are infinitely far."""
    entries = entries.to(device, torch.float32)
    if normalised:
        entries = F.normalize(entries, dim=-1)
    num_codes, size = entries.shape
    extra_codes, extra_size = -num_codes % NEAREST_CODES, -size % NEAREST_SIZE
    squares = F.pad((entries**2).sum(1), (0, extra_codes), value=float("inf"))
    padded = F.pad(entries, (0, extra_size, 0, extra_codes)).contiguous()
    return Codebook(padded, squares, num_codes)


def nearest_on_gpu(vectors: Tensor, codebook: Codebook) -> Tensor:
    """Return the nearest codes of vectors [..., size] as int32, without storing any distance."""
    num_codes, size = codebook.entries.shape
    rows = vectors.float().reshape(-1, vectors.shape[-1])
    rows = F.pad(rows, (0, size - rows.shape[1])).contiguous()
    codes = torch.empty(len(rows), dtype=torch.int32, device=rows.device)
    kernels.nearest[(-(-len(rows) // NEAREST_ROWS),)](
        rows, codebook.entries, codebook.squares, codes, len(rows),
        num_codes, size, NEAREST_SIZE, NEAREST_ROWS, NEAREST_CODES, num_warps=8, num_stages=3,
    )  # fmt: skip
    return codes.view(vectors.shape[:-1])


def choose_tiling(operand: Any, height: int, width: int, channels: int) -> Tiling:
    """Return what measured fastest for this operand and this many channels out."""
    if operand == torch.float32:
        return Tiling((8, 16), 128, 32, 8, 4)
    return Tiling((8, 16), 128, 64, 4, 3)


def num_boxes(height: int, width: int, box: tuple[int, int]) -> tuple[int, int]:
    """Return how many boxes cover the height and the width."""
    return -(-height // box[0]), -(-width // box[1])


def has_edge(height: int, width: int, box: tuple[int, int]) -> bool:
    """Say whether some box reaches beyond the picture."""
    return bool(height % box[0] or width % box[1])


def describe(tensor: Tensor, block: tuple[int, ...]) -> TensorDescriptor:
    """Return the copy engine's description of a contiguous tensor, fetched in such blocks."""
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), list(block))


def round_to_tf32(tensor: Tensor) -> Tensor:
    """Return fp32 values whose last 13 bits are zero, rounded to nearest."""
    bits = tensor.float().contiguous().view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)


def _describe_input(
    x: Tensor, box: tuple[int, int], channels: int, stride: int
) -> TensorDescriptor:
    if stride == 1:
        return describe(x, (1, *box, channels))
    batch, height, width, all_channels = x.shape
    pairs = x.view(batch, height // 2, 2, width // 2, 2 * all_channels)
    return describe(pairs, (1, box[0], 1, box[1], channels))
