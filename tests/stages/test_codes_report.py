"""What comes back from codes: images of the right size beside their originals, and outliers."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from sample_folder import write_sample_folder
from vq_checkpoints import SMALL, write_original

from shardmill.errors import ConfigError
from shardmill.media.geometry import Buckets
from shardmill.model.sample import Document, Sample, Segment
from shardmill.running.runner import run_stage
from shardmill.stages.codes import (
    EncodeImages,
    Reconstruction,
    codebook_use,
    outliers,
    psnr,
    reconstruct,
    spread_keys,
)
from shardmill.tokens.vq.tokenizer import ChameleonVq

Image = pytest.importorskip("PIL.Image")


@pytest.fixture
def codes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SHARDMILL_DEVICE", "cpu")
    write_original(tmp_path / "weights")
    rows = []
    for number in range(6):
        pixels = np.random.default_rng(number).integers(0, 256, (40, 40 + 8 * number, 3), np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "PNG")
        document = Document((Segment(kind="image", media="png"),))
        sample = Sample(key=f"k{number}", document=document, media={"png": file.getvalue()})
        rows.append((sample, {}))
    folder = write_sample_folder(tmp_path / "in", [rows[:4], rows[4:]])
    spec = EncodeImages(
        input_dir=folder,
        tokenizer=ChameleonVq(weights=str(tmp_path / "weights")).pinned(),
        geometry=Buckets(pixels=32 * 32, step=8),
    )
    assert run_stage(spec, tmp_path / "out", workers=0).complete
    return tmp_path / "out"


def test_images_come_back_beside_their_originals(codes: Path) -> None:
    found = list(reconstruct(codes, ["k1", "k5"]))
    assert [image.key for image in found] == ["k1", "k5"]
    for image in found:
        assert image.original.shape == image.decoded.shape
        assert image.psnr == psnr(image.original, image.decoded)
        height, width, _ = image.original.shape
        assert image.side_by_side().shape == (height, 2 * width, 3)


def test_a_key_without_codes_is_named(codes: Path) -> None:
    with pytest.raises(ConfigError, match="nobody"):
        list(reconstruct(codes, ["nobody"]))


def test_the_use_of_the_codebook_is_counted(codes: Path) -> None:
    use = codebook_use(codes)
    assert len(use.counts) == SMALL.num_codes
    assert 0 < use.num_dead < SMALL.num_codes
    assert 1 <= use.perplexity <= SMALL.num_codes - use.num_dead


def test_keys_are_spread_over_the_folder(codes: Path) -> None:
    assert spread_keys(codes, 2) == ["k0", "k5"]
    assert spread_keys(codes, 100) == [f"k{number}" for number in range(6)]


def image(key: str, value: float) -> Reconstruction:
    pixels = np.zeros((1, 1, 3), np.uint8)
    return Reconstruction(key, "jpg", pixels, pixels, value)


def test_outliers_are_those_far_below_the_others() -> None:
    good = [image(f"k{number}", 30 + number % 3) for number in range(20)]
    bad = [image("bad", 9.0), image("worse", 8.0)]
    assert [found.key for found in outliers(good + bad)] == ["worse", "bad"]
    assert outliers(good) == outliers([]) == []


def test_equal_images_have_the_best_ratio() -> None:
    pixels = np.full((4, 4, 3), 7, np.uint8)
    assert psnr(pixels, pixels) == 100
    assert round(psnr(pixels, pixels + 1), 1) == 48.1
