"""Live tokenizers: the networks of VQ weights, in plain torch or fused for a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F

from shardmill.errors import ConfigError
from shardmill.tokens.vq.network import PlainLayers, decode, encode, nearest_codes
from shardmill.tokens.vq.weights import VqWeights

Tensor = Any


class PlainTokenizer:
    """The network in plain torch; fp32 by default, the reference for everything else."""

    can_replay = False

    def __init__(self, weights: VqWeights, device: Any) -> None:
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
            scaled = pixels.permute(0, 3, 1, 2).float() / 255 * 2 - 1
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


class FusedTokenizer:
    """The encoder by fused kernels on a GPU, in tf32 or fp16; distances in fp32."""

    can_replay = True

    def __init__(self, weights: VqWeights, precision: Any, device: Any) -> None:
        from shardmill.tokens.vq.fused import FusedLayers, formats, nearest_on_gpu, prepare_codebook

        self.shape = weights.shape
        self.factor, self.num_codes = weights.shape.factor, weights.shape.num_codes
        encoder = {n: t for n, t in weights.tensors.items() if not n.startswith("decoder.")}
        self._layers = FusedLayers(encoder, formats(precision), device)
        self._codebook = prepare_codebook(
            encoder["quantize.embedding.weight"], self.shape.normalised, device
        )
        self._nearest = nearest_on_gpu
        self._plain = weights, device

    def encode(self, pixels: Tensor) -> Tensor:
        with torch.inference_mode():
            vectors = self.vectors(pixels)
            if self.shape.normalised:
                vectors = F.normalize(vectors, dim=-1)
            return self._nearest(vectors, self._codebook)

    def vectors(self, pixels: Tensor) -> Tensor:
        """Return what is quantized, [batch, height, width, size]."""
        with torch.inference_mode():
            return encode(self._layers, self.shape, pixels).inner()[..., : self.shape.embed_dim]

    def decode(self, codes: Tensor) -> Tensor:
        return PlainTokenizer(*self._plain).decode(codes)


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
