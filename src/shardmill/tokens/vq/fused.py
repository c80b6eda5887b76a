"""The encoder by fused kernels on a GPU, channels last.

A group norm reads the moments that the convolution before it left, so that norm and SiLU are one
pass from the stream to the operand of the next convolution. Each level of the encoder has a
`LayerFormat`: what the matrix units multiply (`operand`), and what lies in memory between the
layers (`stream`). Sums, norms and residuals are computed in fp32 in every format.

In fp16 all levels multiply and store fp16, except that the last vectors, whose distances decide,
are kept in fp32. Keeping the coarse levels in fp32 as well was measured (docs/recipes-codes.md): it
changes less than 0.01 % of the codes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from triton.tools.tensor_descriptor import TensorDescriptor

from shardmill.tokens.vq import kernels
from shardmill.tokens.vq.network import RESCALE, PlainTokenizer, encode
from shardmill.tokens.vq.tokenizer import Scaling
from shardmill.tokens.vq.weights import NUM_GROUPS, VqShape, VqWeights

Tensor = Any
PITCH = 2  # zeros after each row
MIN_CHANNELS = 64
LINE = 256  # what the positions of an image are rounded up to
NEAREST_ROWS, NEAREST_CODES, NEAREST_SIZE = 128, 128, 32


@dataclass(frozen=True, slots=True)
class LayerFormat:
    """What is multiplied and what is stored; fp32 operands are rounded to tf32."""

    operand: Any
    stream: Any


@dataclass(frozen=True, slots=True)
class Tiling:
    """Positions and channels out of one program, channels in at a time, warps and stages."""

    positions: int
    channels_out: int
    channels_in: int
    num_warps: int
    num_stages: int


@dataclass(frozen=True, slots=True)
class FeatureMap:
    """A batch of activations [batch, line, channels], and the moments of its boxes.

    A box is `box` positions, counted in rows of `run`; see kernels.py.
    """

    pixels: Tensor
    moments: Tensor
    height: int
    width: int
    run: int
    box: int

    @property
    def num_boxes(self) -> int:
        """Boxes of one image."""
        return num_boxes(self.height, self.width, self.run, self.box)

    def inner(self) -> Tensor:
        """Return the pixels [batch, height, width, channels] without the zeros, contiguous."""
        pitch = self.width + PITCH
        rows = self.pixels[:, : self.height * pitch].unflatten(1, (self.height, pitch))
        return rows[:, :, : self.width].contiguous()


def can_fuse(shape: VqShape) -> bool:
    """Say whether the kernels take these widths: powers of two, at least 64 channels."""
    widths = (*shape.widths, shape.z_channels)
    return all(width >= MIN_CHANNELS and width & (width - 1) == 0 for width in widths)


class FusedTokenizer:
    """The encoder by fused kernels on a GPU, in tf32 or fp16; distances in fp32."""

    can_replay = True

    def __init__(
        self,
        weights: VqWeights,
        precision: str,
        device: Any,
        scaling: Scaling = "torchvision",
    ) -> None:
        self.shape = weights.shape
        self.factor, self.num_codes = weights.shape.factor, weights.shape.num_codes
        encoder = {n: t for n, t in weights.tensors.items() if not n.startswith("decoder.")}
        grey = 1 / RESCALE if scaling == "transformers" else 127.5
        self._layers = FusedLayers(encoder, FORMATS[precision], device, grey)
        self._codebook = prepare_codebook(
            encoder["quantize.embedding.weight"], self.shape.normalised, device
        )
        self._plain = weights, device

    def encode(self, pixels: Tensor) -> Tensor:
        with torch.inference_mode():
            vectors = self.vectors(pixels)
            if self.shape.normalised:
                vectors = F.normalize(vectors, dim=-1)
            return nearest_on_gpu(vectors, self._codebook)

    def vectors(self, pixels: Tensor) -> Tensor:
        """Return what is quantized, [batch, height, width, size]."""
        with torch.inference_mode():
            return encode(self._layers, self.shape, pixels).inner()[..., : self.shape.embed_dim]

    def decode(self, codes: Tensor) -> Tensor:
        return PlainTokenizer(*self._plain).decode(codes)


class FusedLayers:
    """Layers over weights by name, prepared once for the formats that `format_of(name)` gives."""

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        format_of: Callable[[str], LayerFormat],
        device: Any,
        grey: float,
    ) -> None:
        self._format_of, self._grey = format_of, grey
        self._params = {n: fill_up(t, 0).to(device) for n, t in weights.items() if t.ndim == 1}
        self._weights = {
            name.removesuffix(".weight"): self._prepare(name, t).to(device)
            for name, t in weights.items()
            if t.ndim == 4
        }

    def conv(self, name: str, x: Any) -> FeatureMap:
        if name == "encoder.conv_in":
            return self._conv_pixels(name, x)
        return self._conv(name, self._operand(name, x))

    def norm_silu_conv(
        self, norm: str, conv: str, x: FeatureMap, add: FeatureMap | None = None
    ) -> FeatureMap:
        operand = self._norm(norm, x, self._format_of(conv).operand, silu=True)
        return self._conv(conv, operand, add=add)

    def attention(self, name: str, x: FeatureMap) -> FeatureMap:
        normed = self._norm(f"{name}.norm", x, self._format_of(f"{name}.q").operand, silu=False)
        query, key, value = (
            self._conv(f"{name}.{part}", normed).inner().flatten(1, 2) for part in ("q", "k", "v")
        )
        scores = image_by_image(query, key.transpose(1, 2)).float() * query.shape[-1] ** -0.5
        shares = F.softmax(scores, dim=2).to(value.dtype)
        seen = image_by_image(shares, value).unflatten(1, (x.height, x.width))
        operand = self._operand(f"{name}.proj_out", replace(normed, pixels=spread_out(seen)))
        return self._conv(f"{name}.proj_out", operand, add=x)

    def halve(self, name: str, x: FeatureMap) -> FeatureMap:
        return self._conv(name, self._operand(name, x), stride=2)

    def _prepare(self, name: str, weight: Tensor) -> Tensor:
        operand = self._format_of(name.removesuffix(".weight")).operand
        if name == "encoder.conv_in.weight":
            # 3 x 3 taps of 3 colours, filled up to the 32 that the matrix units take.
            rows = weight.permute(2, 3, 1, 0).reshape(27, -1)
            return F.pad(rows, (0, 0, 0, 5)).to(operand).contiguous()
        flat = fill_up(weight.permute(0, 2, 3, 1).reshape(len(weight), -1), 0)
        return (round_to_tf32(flat) if operand == torch.float32 else flat.to(operand)).contiguous()

    def _operand(self, name: str, x: FeatureMap) -> FeatureMap:
        return replace(x, pixels=x.pixels.to(self._format_of(name).operand))

    def _conv_pixels(self, name: str, pixels: Tensor) -> FeatureMap:
        batch, height, width, _ = pixels.shape
        weight, bias = self._weights[name], self._params[f"{name}.bias"]
        channels = weight.shape[1]
        out = self._empty(name, batch, height, width, channels, width + PITCH, 128)
        kernels.convolve_pixels[(batch * out.num_boxes,)](
            pixels, weight, bias, out.pixels, out.moments, height, width, out.run,
            out.pixels.shape[1], out.num_boxes, channels, out.box, self._grey, num_warps=4,
        )  # fmt: skip
        return out

    def _conv(
        self, name: str, x: FeatureMap, add: FeatureMap | None = None, stride: int = 1
    ) -> FeatureMap:
        batch, line, channels = x.pixels.shape
        weight = self._weights[name]
        height, width, num_out = x.height // stride, x.width // stride, len(weight)
        tiling = choose_tiling(x.pixels.dtype, channels, num_out, stride)
        run = width + PITCH if stride == 1 else round_up(width, tiling.positions)
        out = self._empty(name, batch, height, width, num_out, run, tiling.positions)
        block = (tiling.positions, tiling.channels_out)
        stored = describe(out.pixels.flatten(0, 1), block)
        kernels.convolve[(batch * out.num_boxes * (num_out // tiling.channels_out),)](
            describe(
                x.pixels.view(batch * line // stride, stride * channels),
                (tiling.positions, tiling.channels_in),
            ),
            describe(weight, (tiling.channels_out, tiling.channels_in)),
            self._params[f"{name}.bias"],
            stored if add is None else describe(add.pixels.flatten(0, 1), block),
            stored,
            out.pixels,
            out.moments,
            height, width, run, line // stride, out.pixels.shape[1], width + PITCH, out.num_boxes,
            channels, num_out, *block, tiling.channels_in,
            weight.shape[1] // channels, stride, add is not None,
            num_warps=tiling.num_warps, num_stages=tiling.num_stages,
        )  # fmt: skip
        return out

    def _norm(self, name: str, x: FeatureMap, operand: Any, *, silu: bool) -> FeatureMap:
        batch, line, channels = x.pixels.shape
        weight, bias = self._params[f"{name}.weight"], self._params[f"{name}.bias"]
        scale, shift = torch.empty((2, batch, channels), device=weight.device).unbind(0)
        kernels.fold_moments[(batch, NUM_GROUPS)](
            x.moments, weight, bias, scale, shift, x.height, x.width, x.run, x.num_boxes,
            channels, channels // NUM_GROUPS, x.box, 256,
        )  # fmt: skip
        out = torch.empty(x.pixels.shape, dtype=operand, device=weight.device)
        positions = 8192 // channels
        kernels.scale_silu[(-(-line // positions), batch)](
            x.pixels, scale, shift, out, x.height, x.width, x.width + PITCH, line,
            channels, positions, silu, operand == torch.float32, num_warps=8,
        )  # fmt: skip
        return replace(x, pixels=out)

    def _empty(
        self, name: str, batch: int, height: int, width: int, channels: int, run: int, box: int
    ) -> FeatureMap:
        device, stream = self._params[f"{name}.bias"].device, self._format_of(name).stream
        boxes = batch * num_boxes(height, width, run, box)
        moments = torch.empty((boxes, 2, channels), device=device)
        dims = (batch, line_length(height, width), channels)
        pixels = torch.empty(dims, dtype=stream, device=device)
        return FeatureMap(pixels, moments, height, width, run, box)


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


def choose_tiling(operand: Any, channels: int, num_out: int, stride: int) -> Tiling:
    """Return what measured fastest on an H200."""
    single = operand == torch.float32
    channels_in = min(32 if single else 64, channels)
    if single and num_out == 256 and stride == 1:
        return Tiling(128, 256, channels_in, 8, 4)
    if num_out > 256 and stride == 1:
        return Tiling(256, 128, channels_in, 8, 4 if single else 3)
    num_stages = 2 if num_out <= 128 and not single else 3
    return Tiling(128, min(128, num_out), channels_in, 4, num_stages)


def image_by_image(left: Tensor, right: Tensor) -> Tensor:
    """Return the matrix products [batch, m, n] of [batch, m, k] and [batch, k, n].

    Done as a batch, the library would add up in an order that depends on the size of the batch, and
    so would the codes. It is a hundredth of the work, and a recording has no cost of launching.
    """
    return torch.stack([one @ other for one, other in zip(left, right)])


def line_length(height: int, width: int) -> int:
    """Return the positions of an image with its zeros."""
    return round_up((height + 1) * (width + PITCH), LINE)


def num_boxes(height: int, width: int, run: int, box: int) -> int:
    """Return how many boxes cover an image and its zeros, or its rows if they are of `run`."""
    if run == width + PITCH:
        return line_length(height, width) // box
    return (height + 1) * run // box


def spread_out(pixels: Tensor) -> Tensor:
    """Return pixels [batch, height, width, channels] as a line with its zeros."""
    _, height, width, _ = pixels.shape
    line = F.pad(pixels, (0, 0, 0, PITCH)).flatten(1, 2)
    return F.pad(line, (0, 0, 0, line_length(height, width) - line.shape[1]))


def fill_up(tensor: Tensor, dim: int) -> Tensor:
    """Return the tensor with at least 64 channels, the new ones zero."""
    missing = max(0, MIN_CHANNELS - tensor.shape[dim])
    return F.pad(tensor, (0, 0) * (tensor.ndim - 1 - dim) + (0, missing))


def round_up(number: int, step: int) -> int:
    """Return the next multiple of `step`."""
    return -(-number // step) * step


def describe(tensor: Tensor, block: tuple[int, ...]) -> TensorDescriptor:
    """Return the copy engine's description of a contiguous tensor, fetched in such blocks."""
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), list(block))


def round_to_tf32(tensor: Tensor) -> Tensor:
    """Return fp32 values whose last 13 bits are zero, rounded to nearest."""
    bits = tensor.float().contiguous().view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)


HALF = LayerFormat(torch.float16, torch.float16)
SINGLE = LayerFormat(torch.float32, torch.float32)
HALF_TO_SINGLE = LayerFormat(torch.float16, torch.float32)


def _half(name: str) -> LayerFormat:
    if name == "encoder.conv_out":
        return HALF_TO_SINGLE
    return SINGLE if name == "quant_conv" else HALF


# By precision, the function that gives a layer's format by the layer's name.
FORMATS: Mapping[str, Callable[[str], LayerFormat]] = {
    "tf32": lambda name: SINGLE,
    "fp16": _half,
}
