"""The fused kernels compute what the plain layers do, at any size; these tests need a GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from vq_checkpoints import random_tensors

from shardmill.tokens.vq.encode import BatchEncoder
from shardmill.tokens.vq.network import PlainTokenizer
from shardmill.tokens.vq.weights import VqShape, VqWeights

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)
FusedTokenizer = pytest.importorskip("shardmill.tokens.vq.fused").FusedTokenizer

CHAMELEON = VqShape(
    base_channels=64, multipliers=(1, 2, 4), z_channels=64, embed_dim=32, num_codes=300
)
LLAMAGEN = replace(CHAMELEON, embed_dim=8, attention_levels=(2,), normalised=True)
SIZES = [(1, 64, 64), (3, 32, 96), (2, 40, 72), (1, 12, 20), (5, 4, 4)]


def make(shape: VqShape) -> VqWeights:
    return VqWeights(shape, random_tensors(shape), has_decoder=True)


def images(*shape: int) -> Any:
    generator = torch.Generator().manual_seed(sum(shape))
    pixels = torch.randint(0, 256, (*shape, 3), dtype=torch.uint8, generator=generator)
    return pixels.cuda()


def relative(found: Any, expected: Any) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


@pytest.mark.parametrize("precision", ["tf32", "fp16"])
@pytest.mark.parametrize("shape", [CHAMELEON, LLAMAGEN], ids=["chameleon", "llamagen"])
@pytest.mark.parametrize("size", SIZES)
def test_vectors_are_those_of_the_plain_layers(
    size: tuple[int, int, int], shape: VqShape, precision: str
) -> None:
    weights, pixels = make(shape), images(*size)
    expected = PlainTokenizer(weights, "cuda").vectors(pixels)
    for _ in range(3):
        found = FusedTokenizer(weights, precision, "cuda").vectors(pixels)
        assert found.shape == expected.shape
        assert relative(found, expected) < 0.02


@pytest.mark.parametrize("shape", [CHAMELEON, LLAMAGEN], ids=["chameleon", "llamagen"])
def test_codes_are_the_nearest_of_its_vectors(shape: VqShape) -> None:
    weights, pixels = make(shape), images(3, 64, 80)
    live = FusedTokenizer(weights, "tf32", "cuda")
    vectors = live.vectors(pixels).flatten(0, 2).double()
    codebook = weights.tensors["quantize.embedding.weight"].double().cuda()
    if shape.normalised:
        vectors, codebook = (torch.nn.functional.normalize(t, dim=-1) for t in (vectors, codebook))
    expected = torch.cdist(vectors, codebook).argmin(1)
    assert (live.encode(pixels).flatten() == expected).float().mean() > 0.999


def loaded(weights: VqWeights, precision: str) -> Any:
    if precision == "fp32":
        return PlainTokenizer(weights, "cuda")
    return FusedTokenizer(weights, precision, "cuda")


# The second is Chameleon's own network.
BATCHES = [(replace(CHAMELEON, num_codes=16384), 64, 24), (VqShape(), 256, 6)]


@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16"])
@pytest.mark.parametrize(("shape", "side", "count"), BATCHES, ids=["small", "real"])
def test_codes_depend_on_neither_run_nor_batch_nor_place(
    shape: VqShape, side: int, count: int, precision: str
) -> None:
    encoder = BatchEncoder(loaded(make(shape), precision), "cuda")
    pixels = images(count, side, side).cpu().pin_memory()
    alone = np.concatenate([encoder.launch(pixels[i : i + 1]).wait() for i in range(count)])
    for size in (2, 3, 5, count):
        for _ in range(4):  # the first calls run the kernels, the others replay their recording
            parts = [encoder.launch(part).wait() for part in pixels.split(size)]
            assert np.array_equal(np.concatenate(parts), alone)
        turned = pixels.flip(0).pin_memory()
        parts = [encoder.launch(part).wait() for part in turned.split(size)]
        assert np.array_equal(np.concatenate(parts)[::-1], alone)
    padded = torch.zeros(4 * count, side, side, 3, dtype=torch.uint8).pin_memory()
    padded[:count] = pixels
    assert np.array_equal(encoder.launch(padded, count).wait()[:count], alone)
