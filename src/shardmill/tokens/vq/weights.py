"""Loads the weights of VQ tokenizers safely, whatever their layout, under the names of VQGAN.

A path is a file (`.ckpt`, `.pt`, `.pth`, `.safetensors`) or a folder with one of `vqgan.ckpt`,
`model.safetensors`, `model.safetensors.index.json` or a single file of those endings. Pickles are
read with torch's weights-only unpickler, which builds tensors and nothing else.

Names are those of the original VQGAN: `encoder.down.{level}.block.{i}.conv1.weight`,
`decoder.up.{level}...` with level 0 the finest, `mid.{block_1,attn_1,block_2}`. Hugging Face's
Chameleon has them under a prefix such as `model.vqmodel.`. LlamaGen numbers where VQGAN names:
`conv_blocks.{level}.res.{i}`, `mid.{0,1,2}`; its decoder counts levels from the coarsest.

These names say which family the weights are of, and so whether distances are taken between unit
vectors (`possible_families`). Nothing else in a file does: the networks are the same.
"""

from __future__ import annotations

import pickle
import re
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import torch
import xxhash

from shardmill.errors import ConfigError, need
from shardmill.storage.text import mistaken_for

MARK = "encoder.conv_in.weight"
CODEBOOK = "quantize.embedding.weight"
# Family -> a tensor that only its files have; the names are those of the image tokenizers' kinds.
FAMILIES = {
    "chameleon": "encoder.down.0.block.0.conv1.weight",
    "llamagen": "encoder.conv_blocks.0.res.0.conv1.weight",
}
NORMALISED = ("llamagen",)
MIDDLE = {"0": "block_1", "1": "attn_1", "2": "block_2"}


def canonical_names(names: Iterable[str]) -> dict[str, str]:
    """Return canonical name -> stored name for the tensors of the tokenizer among `names`."""
    names = list(names)
    prefix = _prefix(names)
    own = [name[len(prefix) :] for name in names if name.startswith(prefix)]
    coarsest = max((int(m[1]) for m in map(_BLOCK.match, own) if m), default=0)
    return {_rename(name, coarsest): prefix + name for name in own}


def possible_families(names: Iterable[str], where: object) -> list[str]:
    """Return the families that weights with tensors of these stored names can be of."""
    names = list(names)
    prefix = _prefix(names)
    found = [family for family, mark in FAMILIES.items() if prefix + mark in names]
    if len(found) == 1 and prefix + CODEBOOK in names:
        return found
    marks = " and ".join(f"{mark!r} ({family})" for family, mark in FAMILIES.items())
    if len(found) > 1:
        raise ConfigError(f"{where}: two tokenizers in one file, which has {marks}")
    if found:
        raise ConfigError(
            f"{where}: a network like that of {found[0]}, but no codebook {CODEBOOK!r}: it makes "
            "no codes, or makes them in another way"
        )
    such = f"{len(names)} tensors, such as {names[0]!r}" if names else "no tensor of one"
    raise ConfigError(
        f"{where}: no VQ tokenizer that is known here: it holds {such}, and neither {marks}. For "
        "a model that transformers saved give its folder, with --tokenizer huggingface"
    )


_BLOCK = re.compile(r"decoder\.conv_blocks\.(\d+)\.")


def _prefix(names: list[str]) -> str:
    found = sorted((name for name in names if name.endswith(MARK)), key=len)
    return found[0][: -len(MARK)] if found else ""


def _rename(name: str, coarsest: int) -> str:
    part, _, rest = name.partition(".")
    if part not in ("encoder", "decoder"):
        return name
    middle = re.match(r"mid\.([012])\.(.*)", rest)
    if middle:
        return f"{part}.mid.{MIDDLE[middle[1]]}.{middle[2]}"
    block = re.match(r"conv_blocks\.(\d+)\.(.*)", rest)
    if not block:
        return name
    inner = re.sub(r"^res\.", "block.", block[2])
    if part == "encoder":
        return f"encoder.down.{block[1]}.{inner}"
    return f"decoder.up.{coarsest - int(block[1])}.{inner}"


NUM_GROUPS = 32
PARTS = ("encoder", "decoder")
Dims = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class VqShape:
    """Widths and counts of an encoder, its quantizer and its decoder.

    `attention_levels` have attention after each residual block; the middle always has it.
    `normalised` says that inputs and codebook are divided by their length before the distance.
    """

    base_channels: int = 128
    multipliers: tuple[int, ...] = (1, 1, 2, 2, 4)
    num_blocks: int = 2
    attention_levels: tuple[int, ...] = ()
    z_channels: int = 256
    embed_dim: int = 256
    num_codes: int = 8192
    normalised: bool = False

    @property
    def factor(self) -> int:
        """Pixels of one side of the square that one code stands for."""
        return int(2 ** (len(self.multipliers) - 1))

    @property
    def widths(self) -> tuple[int, ...]:
        """Channels of each level, finest first."""
        return tuple(self.base_channels * m for m in self.multipliers)


def expected_tensors(shape: VqShape, part: str) -> dict[str, Dims]:
    """Return name -> dimensions of every tensor that the encoder's or decoder's side needs."""
    layers = _encoder(shape) if part == "encoder" else _decoder(shape)
    return {CODEBOOK: (shape.num_codes, shape.embed_dim), **dict(layers)}


def check_tensors(found: Mapping[str, Dims], expected: Mapping[str, Dims], where: object) -> None:
    """Raise `ConfigError` naming the first tensor that is missing or has other dimensions."""
    for name, dims in expected.items():
        if name not in found:
            raise ConfigError(
                f"{where}: the weights lack the tensor {name!r} ({_listed(dims)}); "
                "they are of another model, or the file is incomplete"
            )
        if tuple(found[name]) != dims:
            raise ConfigError(
                f"{where}: tensor {name!r} is {_listed(found[name])}, not {_listed(dims)}; "
                "the weights do not fit together"
            )


def infer_shape(found: Mapping[str, Dims], where: object, *, normalised: bool) -> VqShape:
    """Return the architecture that the tensors' names and dimensions imply."""
    for name in (MARK, "quant_conv.weight", CODEBOOK):
        if name not in found:
            raise ConfigError(f"{where}: no VQ tokenizer in these weights: {name!r} is missing")
    base = found["encoder.conv_in.weight"][0]
    levels = _count(found, "encoder.down.{}.block.0.conv1.weight")
    widths = [found[f"encoder.down.{level}.block.0.conv1.weight"][0] for level in range(levels)]
    if not levels or any(width % base for width in widths) or base % NUM_GROUPS:
        raise ConfigError(f"{where}: channels {widths} are no multiples of {base}, of 32 groups")
    num_codes, embed_dim = found[CODEBOOK]
    return VqShape(
        base_channels=base,
        multipliers=tuple(width // base for width in widths),
        num_blocks=_count(found, "encoder.down.0.block.{}.conv1.weight"),
        attention_levels=tuple(
            level for level in range(levels) if f"encoder.down.{level}.attn.0.q.weight" in found
        ),
        z_channels=found["quant_conv.weight"][1],
        embed_dim=embed_dim,
        num_codes=num_codes,
        normalised=normalised,
    )


def _count(found: Mapping[str, Dims], pattern: str) -> int:
    number = 0
    while pattern.format(number) in found:
        number += 1
    return number


def _encoder(shape: VqShape) -> Iterator[tuple[str, Dims]]:
    yield from _conv("encoder.conv_in", 3, shape.base_channels)
    width = shape.base_channels
    for level, out in enumerate(shape.widths):
        for block in range(shape.num_blocks):
            yield from _residual(f"encoder.down.{level}.block.{block}", width, out)
            width = out
            if level in shape.attention_levels:
                yield from _attention(f"encoder.down.{level}.attn.{block}", width)
        if level < len(shape.widths) - 1:
            yield from _conv(f"encoder.down.{level}.downsample.conv", width, width)
    yield from _middle("encoder.mid", width)
    yield from _norm("encoder.norm_out", width)
    yield from _conv("encoder.conv_out", width, shape.z_channels)
    yield from _conv("quant_conv", shape.z_channels, shape.embed_dim, 1)


def _decoder(shape: VqShape) -> Iterator[tuple[str, Dims]]:
    width = shape.widths[-1]
    yield from _conv("post_quant_conv", shape.embed_dim, shape.z_channels, 1)
    yield from _conv("decoder.conv_in", shape.z_channels, width)
    yield from _middle("decoder.mid", width)
    for level, out in reversed(list(enumerate(shape.widths))):
        for block in range(shape.num_blocks + 1):
            yield from _residual(f"decoder.up.{level}.block.{block}", width, out)
            width = out
            if level in shape.attention_levels:
                yield from _attention(f"decoder.up.{level}.attn.{block}", width)
        if level > 0:
            yield from _conv(f"decoder.up.{level}.upsample.conv", width, width)
    yield from _norm("decoder.norm_out", width)
    yield from _conv("decoder.conv_out", width, 3)


def _middle(name: str, width: int) -> Iterator[tuple[str, Dims]]:
    yield from _residual(f"{name}.block_1", width, width)
    yield from _attention(f"{name}.attn_1", width)
    yield from _residual(f"{name}.block_2", width, width)


def _residual(name: str, width: int, out: int) -> Iterator[tuple[str, Dims]]:
    yield from _norm(f"{name}.norm1", width)
    yield from _conv(f"{name}.conv1", width, out)
    yield from _norm(f"{name}.norm2", out)
    yield from _conv(f"{name}.conv2", out, out)
    if width != out:
        yield from _conv(f"{name}.nin_shortcut", width, out, 1)


def _attention(name: str, width: int) -> Iterator[tuple[str, Dims]]:
    yield from _norm(f"{name}.norm", width)
    for part in ("q", "k", "v", "proj_out"):
        yield from _conv(f"{name}.{part}", width, width, 1)


def _conv(name: str, width: int, out: int, size: int = 3) -> Iterator[tuple[str, Dims]]:
    yield f"{name}.weight", (out, width, size, size)
    yield f"{name}.bias", (out,)


def _norm(name: str, width: int) -> Iterator[tuple[str, Dims]]:
    yield f"{name}.weight", (width,)
    yield f"{name}.bias", (width,)


def _listed(dims: Dims) -> str:
    return " x ".join(map(str, dims))


PICKLES = (".ckpt", ".pt", ".pth")
# Where checkpoints of training keep the weights: Lightning's, LlamaGen's averaged and plain ones.
WRAPPERS = ("state_dict", "ema", "model")
INDEX = "model.safetensors.index.json"
HEAD_BYTES = 512
Tensor = Any


@dataclass(frozen=True, slots=True)
class VqWeights:
    """A tokenizer's architecture and its tensors in fp32 by canonical name."""

    shape: VqShape
    tensors: Mapping[str, Tensor]
    has_decoder: bool


def load_weights(path: Path, family: str | None = None, take: str | None = None) -> VqWeights:
    """Return the weights, after checking that the encoder's are whole and fit together.

    The family is the one that the file is of; a `family` that is given must be one it can be of.
    `take` says which of several sets of weights in a file is meant.
    """
    stored: dict[str, Tensor] = {}
    for file in weight_files(path):
        stored.update(_read(file, take))
    possible = possible_families(stored, path)
    tensors = {name: stored[own] for name, own in canonical_names(stored).items()}
    dims = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    family = _settle(family, possible, dims, path)
    shape = infer_shape(dims, path, normalised=family in NORMALISED)
    encoder, decoder = (expected_tensors(shape, part) for part in ("encoder", "decoder"))
    check_tensors(dims, encoder, path)
    has_decoder = "decoder.conv_in.weight" in dims
    if has_decoder:
        check_tensors(dims, decoder, path)
    kept = [*encoder, *(decoder if has_decoder else ())]
    _check_settings(path, shape)
    return VqWeights(shape, {name: tensors[name].float() for name in kept}, has_decoder)


def _settle(
    wanted: str | None, possible: list[str], dims: Mapping[str, Dims], where: object
) -> str:
    out, into = dims.get("quant_conv.weight", (0, 0))[:2]
    # transformers keeps Janus's network, which is LlamaGen's, under the names of VQGAN. Codebooks
    # of VQGAN are as wide as what the encoder gives; LlamaGen's are of 8 numbers out of 256.
    if possible == ["chameleon"] and out < into:
        possible = list(FAMILIES)
    if wanted is None and len(possible) > 1:
        raise ConfigError(
            f"{where}: the names are Chameleon's, but 'quant_conv.weight' goes from {into} "
            f"channels to {out}, as LlamaGen's does. The file does not say whether distances are "
            "between unit vectors. Say it: --tokenizer llamagen (they are), chameleon (they are "
            "not), or huggingface (what transformers does)"
        )
    if wanted is not None and wanted not in possible:
        (found,) = possible
        raise ConfigError(
            f"{where} holds weights of {found}, not of {wanted}: it has {FAMILIES[found]!r}. Write "
            f"--tokenizer {found}, or give --weights alone: they say it"
        )
    return wanted or possible[0]


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
        raise ConfigError(
            f"no weights at {path}: give a checkpoint file or its folder; nothing is downloaded"
        )
    if (path / INDEX).is_file():
        try:
            shards = orjson.loads((path / INDEX).read_bytes())["weight_map"]
            listed = [path / Path(name).name for name in sorted(set(shards.values()))]
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(
                f"{path / INDEX} does not list files of weights: {error!r}"
            ) from error
        missing = [file.name for file in listed if not file.is_file()]
        if missing:
            raise ConfigError(f"{path / INDEX} lists {missing[0]}, which is not there")
        return listed
    for name in ("vqgan.ckpt", "model.safetensors"):
        if (path / name).is_file():
            return [path / name]
    found = sorted(p for p in path.iterdir() if p.suffix in (*PICKLES, ".safetensors"))
    if len(found) != 1:
        names = f" ({', '.join(file.name for file in found[:4])})" if found else ""
        raise ConfigError(f"{path} holds {len(found)} files of weights{names}: name the one to use")
    return found


def _read(path: Path, take: str | None) -> dict[str, Tensor]:
    """Return the tensors of a file by their stored names; what it is, its first bytes say."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    if head.startswith((b"PK\x03\x04", b"\x80")):
        return _read_pickle(path, take)
    if take is not None:
        raise ConfigError(f"{path} holds one set of weights, and none by name: leave out --take")
    if head[8:9] == b"{":
        return _read_safetensors(path)
    raise ConfigError(f"{path} holds no weights: it is {describe_head(head, size)}")


def describe_head(head: bytes, size: int) -> str:
    """Return what a file is that begins so and should hold weights, and what to do about it."""
    if not size:
        return "empty: copy or download it again"
    if what := mistaken_for(head):
        return what
    if re.fullmatch(rb"[\t\n\r\x20-\x7e\x80-\xff]*", head):
        first = head.decode("utf-8", "replace").strip().partition("\n")[0]
        return f"text, beginning {first[:40]!r}: name the checkpoint itself"
    return "neither a checkpoint of torch nor safetensors"


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    safetensors = need("safetensors", extra="codes")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in _vision_names(file.keys())}
    except (safetensors.SafetensorError, OSError) as error:
        cut = " (it is cut short: copy it again)" if "ncomplete" in str(error) else ""
        raise ConfigError(f"cannot read the weights {path}: {error}{cut}") from error


def _vision_names(names: Iterable[str]) -> list[str]:
    # A whole model of 7 B parameters may hold the tokenizer: its other tensors stay on disk.
    names = list(names)
    wanted = canonical_names(names)
    parts = ("encoder.", "decoder.", "quant")
    own = {s for n, s in wanted.items() if n.startswith((*parts, "post_quant_conv"))}
    return [name for name in names if name in own or name.startswith("model.vqmodel.")]


def _read_pickle(path: Path, take: str | None) -> dict[str, Tensor]:
    try:
        # LlamaGen's training stores its arguments beside the weights. They are names and values:
        # what they hold is read like all else, so that no code can run.
        with torch.serialization.safe_globals([Namespace]):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError) as error:
        # What torch says goes on for lines, and ends in the advice to run the code after all.
        code = re.search(
            r"GLOBAL (\S+)|(?:global|class|function) (?:was )?([\w.]+\.\w+)", str(error)
        )
        if code:
            why = f"it would run code ({code[1] or code[2]}) when it is read. Save its state_dict"
            raise ConfigError(
                f"{path} is no plain checkpoint: {why}, which holds only tensors, as .pt or "
                ".safetensors"
            ) from error
        first = str(error).partition("\n")[0] or type(error).__name__
        raise ConfigError(
            f"{path} is cut short or damaged, and holds no weights: {first:.200}. Copy it again"
        ) from error
    named = content if isinstance(content, dict) else {}
    found = [name for name in WRAPPERS if isinstance(named.get(name), dict)]
    if take is not None and take not in found:
        has = ", ".join(found) or "none by name"
        raise ConfigError(f"{path} has no weights named {take!r}, but {has}: change --take")
    if take is None and {"ema", "model"} <= {*found}:
        raise ConfigError(
            f"{path} holds two sets of weights, as training left them (model) and averaged (ema). "
            "Say which: --take model, as LlamaGen's extraction of codes does, or --take ema, as "
            "its reconstruction does"
        )
    if found:
        content = named[take or found[0]]
    if not isinstance(content, dict):
        raise ConfigError(f"{path} holds a {type(content).__name__}, not named tensors")
    return {k: v for k, v in content.items() if isinstance(v, torch.Tensor)}


def _check_settings(path: Path, shape: VqShape) -> None:
    """Compare the weights with the `vqgan.yaml` beside them, if there is one."""
    folder = path if path.is_dir() else path.parent
    settings_path = folder / "vqgan.yaml"
    if not settings_path.is_file():
        return
    yaml = need("yaml", extra="codes")
    try:
        params = yaml.safe_load(settings_path.read_text())["model"]["params"]
        said = (params["n_embed"], params["embed_dim"], list(params["ddconfig"]["ch_mult"]))
    except (yaml.YAMLError, LookupError, TypeError, ValueError) as error:
        raise ConfigError(f"{settings_path} does not describe a VQGAN: {error!r}") from error
    found = (shape.num_codes, shape.embed_dim, list(shape.multipliers))
    if said != found:
        raise ConfigError(
            f"{settings_path} says n_embed, embed_dim, ch_mult = {said}, the weights have {found}"
        )
