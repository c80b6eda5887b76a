"""Any VQ model of transformers with an `encode` method, by its local folder."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson
import torch

from shardmill.errors import ConfigError, need
from shardmill.model.codec import PlaceName
from shardmill.tokens.vq.network import exact_fp32, scale_bytes, to_bytes
from shardmill.tokens.vq.tokenizer import LiveTokenizer, Scaling, check_fingerprint
from shardmill.tokens.vq.weights import fingerprint

# model_type in config.json -> class in transformers
CLASSES = {
    "chameleon_vqgan": "ChameleonVQVAE",
    "emu3_vqgan": "Emu3VQVAE",
    "janus_vqgan": "JanusVQVAE",
}
# Those whose weights have names, or whose codes come about, as in no checkpoint that we read.
OWN_NAMES = ("emu3_vqgan", "janus_vqgan")
Tensor = Any


@dataclass(frozen=True, slots=True, kw_only=True)
class HuggingFaceVq:
    """A vision tokenizer saved by transformers: Emu3's, Janus's, or one of its kind, in fp32."""

    weights: PlaceName
    scaling: Scaling = "torchvision"
    fingerprint: str = ""
    factor: int = 0
    num_codes: int = 0

    def identity(self) -> str:
        return self.fingerprint

    def pinned(self) -> HuggingFaceVq:
        live = HuggingFaceTokenizer(_load_model(self.weights))
        found = fingerprint(live.model.state_dict())
        return replace(self, fingerprint=found, factor=live.factor, num_codes=live.num_codes)

    def load(self, precision: str, device: Any) -> LiveTokenizer:
        if precision != "fp32":
            raise ConfigError(f"a Hugging Face model runs in fp32 only, not in {precision}")
        model = _load_model(self.weights)
        check_fingerprint(self, fingerprint(model.state_dict()))
        return HuggingFaceTokenizer(model.to(device), self.scaling)


class HuggingFaceTokenizer:
    """A transformers model behind our interface."""

    can_replay = False

    def __init__(self, model: Any, scaling: Scaling = "torchvision") -> None:
        self.model, config = model, model.config
        self._scaling: Scaling = scaling
        self.num_codes = getattr(config, "num_embeddings", None) or config.codebook_size
        self.factor = 2 ** (len(config.channel_multiplier) - 1)

    def encode(self, pixels: Tensor) -> Tensor:
        batch, height, width, _ = pixels.shape
        scaled = scale_bytes(pixels.permute(0, 3, 1, 2).contiguous(), self._scaling)
        extra = {}
        if self.model.config.model_type == "emu3_vqgan":
            extra["image_sizes"] = torch.tensor([[height, width]] * batch)
        with torch.inference_mode(), exact_fp32():
            codes = self.model.encode(scaled, **extra).image_tokens
        codes = torch.stack(list(codes)) if isinstance(codes, list | tuple) else codes
        return codes.view(batch, height // self.factor, width // self.factor).int()

    def decode(self, codes: Tensor) -> Tensor:
        if not hasattr(self.model, "decode"):
            raise ConfigError("this model has no decoder, so codes cannot become images")
        flat = self.model.config.model_type == "janus_vqgan"
        with torch.inference_mode(), exact_fp32():
            pixels = self.model.decode(codes.flatten(1).long() if flat else codes.long())
        return to_bytes(pixels.permute(0, 2, 3, 1))


def model_type(path: str) -> str | None:
    """Return the kind of model that a folder of transformers says it holds, None for others."""
    try:
        config = orjson.loads((Path(path) / "config.json").read_bytes())
    except (OSError, ValueError):
        return None
    return config.get("model_type") if isinstance(config, dict) else None


def _load_model(path: str) -> Any:
    transformers = need("transformers", extra="train")
    kind = model_type(path)
    if kind is None:
        raise ConfigError(
            f"{path} is not a folder saved by transformers: it has no config.json with a model_type"
        )
    if kind not in CLASSES:
        raise ConfigError(f"{path} holds a {kind!r}: known VQ models are {', '.join(CLASSES)}")
    try:
        return getattr(transformers, CLASSES[kind]).from_pretrained(
            path, local_files_only=True, use_safetensors=True, dtype=torch.float32
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(f"cannot load the weights in {path}: {error}") from error
