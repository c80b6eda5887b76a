"""Batches: halved when they do not fit, and distances in slices that give the same codes."""

from __future__ import annotations

import pytest
import torch

from shardmill.errors import ConfigError, UnitFailed
from shardmill.tokens.vq import network as quantize
from shardmill.tokens.vq.encode import (
    DEVICE_VARIABLE,
    BatchEncoder,
    choose_device,
    claim_gpu,
    count_devices,
)
from shardmill.tokens.vq.network import nearest_codes


class SmallMemory:
    """A tokenizer whose device holds only so many images; a code is an image's first byte."""

    factor, num_codes, can_replay = 1, 256, False

    def __init__(self, most: int) -> None:
        self.most, self.sizes = most, list[int]()

    def encode(self, pixels: torch.Tensor) -> torch.Tensor:
        if len(pixels) > self.most:
            raise torch.OutOfMemoryError("no memory left")
        self.sizes.append(len(pixels))
        return pixels[..., 0].int()

    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


def numbered(count: int) -> torch.Tensor:
    return torch.arange(count, dtype=torch.uint8)[:, None, None, None].expand(count, 2, 2, 3)


@pytest.mark.parametrize("most", [1, 2, 3, 5, 8, 100])
def test_a_batch_that_does_not_fit_is_halved(most: int) -> None:
    tokenizer = SmallMemory(most)
    encoder = BatchEncoder(tokenizer, "cpu")
    for count in (11, 11):
        codes = encoder.launch(numbered(count)).wait()
        assert codes[:, 0, 0].tolist() == list(range(count))
    half = len(tokenizer.sizes) // 2
    assert tokenizer.sizes[half:] == tokenizer.sizes[:half]


def test_what_fitted_once_is_not_tried_larger_again() -> None:
    tokenizer = SmallMemory(4)
    encoder = BatchEncoder(tokenizer, "cpu")
    encoder.launch(numbered(8)).wait()
    tokenizer.most = 100
    encoder.launch(numbered(8)).wait()
    assert tokenizer.sizes == [4, 4, 4, 4]


def test_one_image_that_does_not_fit_fails_the_unit() -> None:
    with pytest.raises(UnitFailed, match="smaller images"):
        BatchEncoder(SmallMemory(0), "cpu").launch(numbered(3))


class LostGpu(SmallMemory):
    """A tokenizer whose GPU has disappeared."""

    def encode(self, pixels: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("CUDA error: device-side assert triggered\nmore lines")


def test_a_gpu_that_disappears_says_what_to_do() -> None:
    with pytest.raises(UnitFailed, match="run the same command again"):
        BatchEncoder(LostGpu(1), "cpu").launch(numbered(1))


def test_slices_give_the_codes_of_all_distances(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(103, 8, generator=generator)
    codebook = torch.randn(50, 8, generator=generator)
    expected = torch.cdist(vectors.double(), codebook.double()).argmin(1)
    assert torch.equal(nearest_codes(vectors, codebook), expected)
    monkeypatch.setattr(quantize, "MAX_DISTANCES", 7 * 50)
    assert torch.equal(nearest_codes(vectors, codebook), expected)
    assert len(nearest_codes(vectors[:0], codebook)) == 0


def test_of_equal_entries_the_first_wins() -> None:
    codebook = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    assert nearest_codes(torch.tensor([[0.0, 2.0]]), codebook).tolist() == [1]


def test_each_claim_gets_another_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert [claim_gpu(3) for _ in range(3)] == ["cuda:0", "cuda:1", "cuda:2"]
    assert claim_gpu(3).startswith("cuda:")


def test_the_device_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DEVICE_VARIABLE, "cpu")
    assert choose_device() == "cpu"
    assert count_devices() == 0
    if not torch.cuda.is_available():
        monkeypatch.setenv(DEVICE_VARIABLE, "cuda:1")
        with pytest.raises(ConfigError, match="may use 0 GPUs"):
            choose_device()
    monkeypatch.setenv(DEVICE_VARIABLE, "gpu")
    with pytest.raises(ConfigError, match="--device gpu is none"):
        count_devices()
