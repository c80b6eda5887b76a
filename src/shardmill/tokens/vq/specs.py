"""Image tokenizers as plugins: frozen specs that name weights and load them.

`fingerprint` ties a spec to the values of its weights: it is part of every digest, and weights
whose values are others are refused when they load. `pinned` fills it in.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar, runtime_checkable

from shardmill.errors import ConfigError
from shardmill.tokens.vq.live import FusedTokenizer, LiveTokenizer, PlainTokenizer
from shardmill.tokens.vq.weights import VqWeights, fingerprint, load_weights


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
class ChameleonVq:
    """Chameleon's VQGAN: a folder with `vqgan.ckpt`, or Hugging Face weights that contain it."""

    weights: str
    fingerprint: str = ""

    def identity(self) -> str:
        return self.fingerprint

    def pinned(self) -> ChameleonVq:
        return _pinned(self, load_weights(Path(self.weights)))

    def load(self, precision: str, device: Any) -> LiveTokenizer:
        return _load(self, load_weights(Path(self.weights)), precision, device)


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaGenVq:
    """LlamaGen's VQ-16 or VQ-8, whose inputs and codebook are normalised: `vq_ds16_t2i.pt`."""

    weights: str
    fingerprint: str = ""

    def identity(self) -> str:
        return self.fingerprint

    def pinned(self) -> LlamaGenVq:
        return _pinned(self, load_weights(Path(self.weights), normalised=True))

    def load(self, precision: str, device: Any) -> LiveTokenizer:
        weights = load_weights(Path(self.weights), normalised=True)
        return _load(self, weights, precision, device)


class _Spec(Protocol):
    @property
    def weights(self) -> str: ...
    @property
    def fingerprint(self) -> str: ...


SpecT = TypeVar("SpecT", bound=Any)


def check_fingerprint(spec: _Spec, found: str) -> None:
    """Raise `ConfigError` if a spec is tied to other values than those that were loaded."""
    if spec.fingerprint and spec.fingerprint != found:
        raise ConfigError(
            f"the weights {spec.weights} have changed: their fingerprint is {found}, this run was "
            f"begun with {spec.fingerprint}. Codes of different weights do not mix"
        )


def _pinned(spec: SpecT, weights: VqWeights) -> SpecT:
    pinned: SpecT = replace(spec, fingerprint=fingerprint(weights.tensors))
    return pinned


def _load(spec: _Spec, weights: VqWeights, precision: str, device: Any) -> LiveTokenizer:
    import torch

    check_fingerprint(spec, fingerprint(weights.tensors))
    if precision == "fp32":
        return PlainTokenizer(weights, device)
    if torch.device(device).type != "cuda":
        raise ConfigError(f"precision {precision!r} needs a GPU: on {device} use fp32")
    from shardmill.tokens.vq.fused import can_fuse

    if not can_fuse(weights.shape):
        raise ConfigError(f"precision {precision!r} needs channels that are powers of two from 64")
    return FusedTokenizer(weights, precision, device)
