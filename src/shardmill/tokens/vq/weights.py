"""Loads the weights of VQ tokenizers safely, whatever their layout, and names them canonically.

A path is a file (`.ckpt`, `.pt`, `.pth`, `.safetensors`) or a folder with one of `vqgan.ckpt`,
`model.safetensors`, `model.safetensors.index.json` or a single file of those endings. Pickles are
read with torch's weights-only unpickler, which builds tensors and nothing else.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import torch
import xxhash

from shardmill.errors import ConfigError
from shardmill.extras import need
from shardmill.tokens.vq.layouts import canonical_names
from shardmill.tokens.vq.shape import VqShape, check_tensors, expected_tensors, infer_shape

PICKLES = (".ckpt", ".pt", ".pth")
WRAPPERS = ("state_dict", "ema", "model")
INDEX = "model.safetensors.index.json"
Tensor = Any


@dataclass(frozen=True, slots=True)
class VqWeights:
    """A tokenizer's architecture and its tensors in fp32 by canonical name."""

    shape: VqShape
    tensors: Mapping[str, Tensor]
    has_decoder: bool


def load_weights(path: Path, *, normalised: bool = False) -> VqWeights:
    """Return the weights, after checking that the encoder's are whole and fit together."""
    tensors = _read_canonical(path)
    dims = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    shape = infer_shape(dims, path, normalised=normalised)
    encoder, decoder = (expected_tensors(shape, part) for part in ("encoder", "decoder"))
    check_tensors(dims, encoder, path)
    has_decoder = "decoder.conv_in.weight" in dims
    if has_decoder:
        check_tensors(dims, decoder, path)
    kept = [*encoder, *(decoder if has_decoder else ())]
    _check_settings(path, shape)
    return VqWeights(shape, {name: tensors[name].float() for name in kept}, has_decoder)


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """Return 32 hex digits that depend on every value, and not on the layout they came in."""
    hasher = xxhash.xxh3_128()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        hasher.update(f"{name}:{tensor.dtype}:{list(tensor.shape)};".encode())
        hasher.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return str(hasher.hexdigest())


def weight_files(path: Path) -> list[Path]:
    """Return the files that hold the weights at `path`."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise ConfigError(f"no weights at {path}: give a checkpoint file or its folder")
    if (path / INDEX).is_file():
        shards = orjson.loads((path / INDEX).read_bytes()).get("weight_map", {})
        return [path / Path(name).name for name in sorted(set(shards.values()))]
    for name in ("vqgan.ckpt", "model.safetensors"):
        if (path / name).is_file():
            return [path / name]
    found = sorted(p for p in path.iterdir() if p.suffix in (*PICKLES, ".safetensors"))
    if len(found) != 1:
        raise ConfigError(f"{path} holds {len(found)} files of weights: name the one to use")
    return found


def _read_canonical(path: Path) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for file in weight_files(path):
        tensors.update(_read_pickle(file) if file.suffix in PICKLES else _read_safetensors(file))
    return {name: tensors[stored] for name, stored in canonical_names(tensors).items()}


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    safetensors = need("safetensors", extra="train")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in _vision_names(file.keys())}
    except (safetensors.SafetensorError, OSError) as error:
        raise ConfigError(f"cannot read the weights {path}: {error}") from error


def _vision_names(names: Iterable[str]) -> list[str]:
    # A whole model of 7 B parameters may hold the tokenizer: its other tensors stay on disk.
    names = list(names)
    wanted = canonical_names(names)
    parts = ("encoder.", "decoder.", "quant")
    own = {s for n, s in wanted.items() if n.startswith((*parts, "post_quant_conv"))}
    return [name for name in names if name in own or name.startswith("model.vqmodel.")]


def _read_pickle(path: Path) -> dict[str, Tensor]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError) as error:
        raise ConfigError(
            f"cannot read the weights {path} without running code from it: {error}. "
            "Save its state_dict of plain tensors, as .pt or .safetensors"
        ) from error
    for wrapper in WRAPPERS:
        if isinstance(content, dict) and isinstance(content.get(wrapper), dict):
            content = content[wrapper]
            break
    if not isinstance(content, dict):
        raise ConfigError(f"{path} holds a {type(content).__name__}, not named tensors")
    return {k: v for k, v in content.items() if isinstance(v, torch.Tensor)}


def _check_settings(path: Path, shape: VqShape) -> None:
    """Compare the weights with the `vqgan.yaml` beside them, if there is one."""
    folder = path if path.is_dir() else path.parent
    settings_path = folder / "vqgan.yaml"
    if not settings_path.is_file():
        return
    yaml = need("yaml", extra="train")
    try:
        params = yaml.safe_load(settings_path.read_text())["model"]["params"]
        said = (params["n_embed"], params["embed_dim"], list(params["ddconfig"]["ch_mult"]))
    except (yaml.YAMLError, KeyError, TypeError) as error:
        raise ConfigError(f"{settings_path} does not describe a VQGAN: {error!r}") from error
    found = (shape.num_codes, shape.embed_dim, list(shape.multipliers))
    if said != found:
        raise ConfigError(
            f"{settings_path} says n_embed, embed_dim, ch_mult = {said}, the weights have {found}"
        )
