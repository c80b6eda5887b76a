"""Image tokenizers as frozen specs that name weights.

A live tokenizer makes codes of pixels, and pixels of codes, on one device in one precision. The
`fingerprint` of a spec ties it to the values of its weights: it is part of every digest, and
weights whose values are others are refused when they load. `pinned` fills it in, with the number of
pixels and of codes. Specs are read without torch, which loads with the weights.

Which tokenizer weights belong to, they say themselves: `recognise` looks at their names and shapes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    Protocol,
    Self,
    TypeAlias,
    TypeVar,
    runtime_checkable,
)

from shardmill.errors import ConfigError
from shardmill.model.codec import PlaceName

if TYPE_CHECKING:
    from shardmill.tokens.vq.weights import VqWeights

Tensor = Any
# By whose arithmetic bytes become what a network sees; see `network.scale_bytes`.
Scaling: TypeAlias = Literal["torchvision", "numpy", "transformers"]
# Of a checkpoint with both: the weights as they were trained, or their average.
Take: TypeAlias = Literal["ema", "model"]


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


@runtime_checkable
class ImageTokenizer(Protocol):
    """A frozen dataclass that names weights.

    One that has a `factor`, the pixels of a code's side, has sizes checked before work begins.
    """

    def identity(self) -> str:
        """Return the fingerprint of the weights, or "" before they were looked at."""

    def pinned(self) -> Self:
        """Return the spec with the fingerprint of its weights as they are now."""

    def load(self, precision: str, device: Any) -> LiveTokenizer:
        """Return the live tokenizer; weights with another fingerprint are a `ConfigError`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointVq:
    """A convolutional VQ tokenizer by the file or folder of its weights; see `weights`.

    `take` chooses between the two sets of weights in a checkpoint of training.
    """

    family: ClassVar[str]

    weights: PlaceName
    take: Take | None = None
    scaling: Scaling = "torchvision"
    fingerprint: str = ""
    factor: int = 0
    num_codes: int = 0

    def identity(self) -> str:
        return self.fingerprint

    def pinned(self) -> Self:
        return _pin(self, self._read())

    def load(self, precision: str, device: Any) -> LiveTokenizer:
        import torch

        from shardmill.tokens.vq.network import PlainTokenizer
        from shardmill.tokens.vq.weights import fingerprint

        weights = self._read()
        check_fingerprint(self, fingerprint(weights.tensors))
        if precision == "fp32":
            return PlainTokenizer(weights, device, self.scaling)
        if torch.device(device).type != "cuda":
            raise ConfigError(f"precision {precision!r} needs a GPU: on {device} use fp32")
        # Triton is there only where torch was built for GPUs.
        from shardmill.tokens.vq.fused import FusedTokenizer, can_fuse

        if not can_fuse(weights.shape):
            raise ConfigError(
                f"precision {precision!r} needs channels that are powers of two from 64"
            )
        return FusedTokenizer(weights, precision, device, self.scaling)

    def _read(self) -> VqWeights:
        from shardmill.tokens.vq.weights import load_weights

        return load_weights(Path(self.weights), self.family, self.take)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChameleonVq(CheckpointVq):
    """Chameleon's VQGAN: a folder with `vqgan.ckpt`, or Hugging Face weights that contain it."""

    family: ClassVar[str] = "chameleon"


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaGenVq(CheckpointVq):
    """LlamaGen's VQ-16 or VQ-8, whose inputs and codebook are normalised: `vq_ds16_t2i.pt`."""

    family: ClassVar[str] = "llamagen"


def recognise(weights: str, take: Take | None = None) -> ImageTokenizer:
    """Return the tokenizer whose weights these are, pinned; weights of none are a `ConfigError`."""
    from shardmill.tokens.vq.huggingface import OWN_NAMES, HuggingFaceVq, model_type
    from shardmill.tokens.vq.weights import load_weights

    if model_type(weights) in OWN_NAMES:
        return HuggingFaceVq(weights=weights).pinned()
    read = load_weights(Path(weights), take=take)
    kind = LlamaGenVq if read.shape.normalised else ChameleonVq
    return _pin(kind(weights=weights, take=take), read)


Spec = TypeVar("Spec", bound=CheckpointVq)


def _pin(spec: Spec, read: VqWeights) -> Spec:
    from shardmill.tokens.vq.weights import fingerprint

    return replace(
        spec,
        fingerprint=fingerprint(read.tensors),
        factor=read.shape.factor,
        num_codes=read.shape.num_codes,
    )


def check_fingerprint(spec: Any, found: str) -> None:
    """Raise `ConfigError` if a spec is tied to other values than those that were loaded."""
    if spec.fingerprint and spec.fingerprint != found:
        raise ConfigError(
            f"the weights {spec.weights} have changed: their fingerprint is {found}, this run was "
            f"begun with {spec.fingerprint}. Codes of different weights do not mix"
        )
