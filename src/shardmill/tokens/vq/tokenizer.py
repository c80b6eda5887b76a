"""Image tokenizers: frozen specs that name weights, and the live tokenizers that they load.

A live tokenizer makes codes of pixels, and pixels of codes, on one device in one precision. The
`fingerprint` of a spec ties it to the values of its weights: it is part of every digest, and
weights whose values are others are refused when they load. `pinned` fills it in.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

import torch
import torch.nn.functional as F

from shardmill.errors import ConfigError
from shardmill.tokens.vq.network import PlainLayers, decode, encode, nearest_codes
from shardmill.tokens.vq.weights import VqWeights, fingerprint, load_weights

Tensor = Any


class LiveTokenizer(Protocol):
    """What encodes and decodes images [batch, height, width, 3] of bytes on its device."""

    factor: int
    num_codes: int
    # Whether `encode` may be recorded once and replayed: fixed shapes, no look at the values.
    can_replay: bool

    def encode(self, pixels: Tensor) -> Tensor:
        """Return codes [batch, height / factor, width / factor] as int32."""

    def decode(self, codes: Tensor) -> Tensor:
        """Return images of bytes for codes."""


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


@runtime_checkable
class ImageTokenizer(Protocol):
    """A frozen dataclass that names weights."""

    def identity(self) -> str:
        """Return the fingerprint of the weights, or "" before they were looked at."""

    def pinned(self) -> Self:
        """Return the spec with the fingerprint of its weights as they are now."""

    def load(self, precision: str, device: Any) -> LiveTokenizer:
        """Return the live tokenizer; weights with another fingerprint are a `ConfigError`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointVq:
    """A convolutional VQ tokenizer by the file or folder of its weights; see `weights`."""

    # Whether vectors and codebook are normalised before distances are taken.
    normalised: ClassVar[bool] = False

    weights: str
    fingerprint: str = ""

    def identity(self) -> str:
        return self.fingerprint

    def pinned(self) -> Self:
        return replace(self, fingerprint=fingerprint(self._read().tensors))

    def load(self, precision: str, device: Any) -> LiveTokenizer:
        weights = self._read()
        check_fingerprint(self, fingerprint(weights.tensors))
        if precision == "fp32":
            return PlainTokenizer(weights, device)
        if torch.device(device).type != "cuda":
            raise ConfigError(f"precision {precision!r} needs a GPU: on {device} use fp32")
        from shardmill.tokens.vq.fused import can_fuse

        if not can_fuse(weights.shape):
            raise ConfigError(
                f"precision {precision!r} needs channels that are powers of two from 64"
            )
        return FusedTokenizer(weights, precision, device)

    def _read(self) -> VqWeights:
        return load_weights(Path(self.weights), normalised=self.normalised)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChameleonVq(CheckpointVq):
    """Chameleon's VQGAN: a folder with `vqgan.ckpt`, or Hugging Face weights that contain it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaGenVq(CheckpointVq):
    """LlamaGen's VQ-16 or VQ-8, whose inputs and codebook are normalised: `vq_ds16_t2i.pt`."""

    normalised: ClassVar[bool] = True


def check_fingerprint(spec: Any, found: str) -> None:
    """Raise `ConfigError` if a spec is tied to other values than those that were loaded."""
    if spec.fingerprint and spec.fingerprint != found:
        raise ConfigError(
            f"the weights {spec.weights} have changed: their fingerprint is {found}, this run was "
            f"begun with {spec.fingerprint}. Codes of different weights do not mix"
        )
