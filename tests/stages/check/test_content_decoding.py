"""Images that are cut off are found by decoding, and named with their place."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from coded_folder import make_pair, make_text, store_coded
from PIL import Image
from samples_for_tests import store_samples

from shardmill.errors import ConfigError
from shardmill.shards.samples import open_samples
from shardmill.stages.check import content as checks
from shardmill.stages.check.content import _spread, check_decoding


def image(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (40, 50, 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "jpeg")
    return out.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return ten samples in shards of four: a text, then images; 3 and 8 are cut off."""
    contents = {n: image(n) for n in range(1, 10)}
    for n in (3, 8):
        contents[n] = contents[n][: len(contents[n]) // 2]
    pairs = [make_pair(f"k{n}", "words", content) for n, content in contents.items()]
    store_samples(tmp_path / "samples", [make_text("k0", "words"), *pairs], per_shard=4)
    return tmp_path / "samples"


@pytest.mark.parametrize("workers", [1, 3])
def test_every_image_that_is_cut_off_is_named(
    folder: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "BATCH", 2)
    report = check_decoding(folder, 100, workers=workers)
    assert (report.num_images, report.num_decoded, report.num_broken) == (9, 9, 2)
    samples = open_samples(folder)
    for broken, number in zip(report.broken, (3, 8), strict=True):
        assert (broken.key, broken.medium) == (f"k{number}", "jpg")
        assert "truncated image" in broken.what
        content = samples.copies(number)["jpg"]
        with Path(broken.tar).open("rb") as tar:
            tar.seek(broken.offset)
            assert tar.read(len(content)) == content
    samples.close()


def test_as_many_are_decoded_as_asked(folder: Path) -> None:
    report = check_decoding(folder, 4)
    assert (report.num_images, report.num_decoded) == (9, 4)


@pytest.mark.parametrize(("total", "count"), [(0, 3), (9, 4), (9, 9), (9, 12), (1000, 999)])
def test_numbers_are_spread(total: int, count: int) -> None:
    found = _spread(total, count).tolist()
    assert len(set(found)) == len(found) == min(total, count)
    assert all(0 <= number < total for number in found)


def test_a_folder_without_samples_is_refused(tmp_path: Path) -> None:
    _, codes = store_coded(tmp_path / "coded", [make_pair("k", "x")], per_shard=1)
    with pytest.raises(ConfigError, match="neither codes nor samples"):
        check_decoding(codes, 1)
