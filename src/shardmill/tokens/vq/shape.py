"""The architecture of a convolutional VQ tokenizer as numbers, and the tensors it must have.

Names of tensors are those of the original VQGAN: `encoder.down.{level}.block.{i}.conv1.weight`,
`decoder.up.{level}...` with level 0 the finest, `mid.{block_1,attn_1,block_2}`. Other layouts are
renamed to these (see layouts.py), so that there is one network and one list of what it needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from shardmill.errors import ConfigError

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
    return {"quantize.embedding.weight": (shape.num_codes, shape.embed_dim), **dict(layers)}


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
    for name in ("encoder.conv_in.weight", "quant_conv.weight", "quantize.embedding.weight"):
        if name not in found:
            raise ConfigError(f"{where}: no VQ tokenizer in these weights: {name!r} is missing")
    base = found["encoder.conv_in.weight"][0]
    levels = _count(found, "encoder.down.{}.block.0.conv1.weight")
    widths = [found[f"encoder.down.{level}.block.0.conv1.weight"][0] for level in range(levels)]
    if not levels or any(width % base for width in widths) or base % NUM_GROUPS:
        raise ConfigError(f"{where}: channels {widths} are no multiples of {base}, of 32 groups")
    num_codes, embed_dim = found["quantize.embedding.weight"]
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
