"""What a folder of codes is worth: how the codebook is used, and what images come back from it.

An image that comes back much worse than the others was cut wrongly, is not what the tokenizer has
learned, or has the codes of another: `outliers` finds these.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ConfigError
from shardmill.media.image import decode_image, resize_crop
from shardmill.model.codec import from_plain
from shardmill.shards.codes import ROLE, CodeShard, ImageCodes, open_codes
from shardmill.shards.ledger import Ledger, open_manifest
from shardmill.shards.samples import open_samples
from shardmill.stages.codes import EncodeImages

Pixels = NDArray[np.uint8]
MAX_PSNR = 100.0
OUTLIER_DEVIATIONS = 4.0
# The median of deviations of a normal distribution is 0.6745 standard deviations.
MEDIAN_TO_DEVIATION = 1 / 0.6745


@dataclass(frozen=True, slots=True, eq=False)
class CodebookUse:
    """How often each code occurs in a folder."""

    counts: NDArray[np.int64]

    @property
    def num_dead(self) -> int:
        """Codes that never occur."""
        return int((self.counts == 0).sum())

    @property
    def perplexity(self) -> float:
        """The number of codes that, used equally often, would be as varied as these."""
        shares = self.counts[self.counts > 0] / max(1, self.counts.sum())
        return float(np.exp(-(shares * np.log(shares)).sum()))


@dataclass(frozen=True, slots=True, eq=False)
class Reconstruction:
    """An image as it was encoded, as its codes give it back, and how near the two are."""

    key: str
    medium: str
    original: Pixels
    decoded: Pixels
    psnr: float

    def side_by_side(self) -> Pixels:
        """Return both images in one, the original on the left."""
        return np.concatenate([self.original, self.decoded], axis=1)


def codebook_use(folder: Path) -> CodebookUse:
    """Return the use of the codebook in all shards of a finished folder of codes."""
    counts = np.zeros(0, np.int64)
    for shard in _shards(folder):
        found = np.bincount(shard.codes, minlength=shard.num_codes)
        counts = found if not counts.size else counts + found
    return CodebookUse(counts)


def reconstruct(folder: Path, keys: list[str], device: str = "cpu") -> Iterator[Reconstruction]:
    """Yield every image of the samples with these keys beside what its codes decode to."""
    import torch

    spec = spec_of(folder)
    live = spec.tokenizer.load("fp32", device)
    shards = list(_shards(folder))
    with closing(open_samples(spec.input_dir)) as samples:
        for key in keys:
            shard, number = _find(shards, key, folder)
            in_samples = samples.find(key)
            if in_samples is None:
                raise ConfigError(f"{spec.input_dir} has no sample with the key {key!r} any more")
            media = samples[in_samples].media
            for image in shard.images(number):
                original = _as_encoded(spec, media[image.medium])
                codes = torch.from_numpy(image.codes.astype(np.int64))[None].to(device)
                decoded = live.decode(codes)[0].cpu().numpy()
                yield Reconstruction(key, image.medium, original, decoded, psnr(original, decoded))


def find_codes(folder: Path, key: str) -> list[ImageCodes]:
    """Return the codes of each image of the sample with this key."""
    shard, number = _find(list(_shards(folder)), key, folder)
    return shard.images(number)


def outliers(images: list[Reconstruction]) -> list[Reconstruction]:
    """Return those that came back far worse than the median image, worst first."""
    if not images:
        return []
    values = np.array([image.psnr for image in images])
    median = float(np.median(values))
    spread = float(np.median(np.abs(values - median))) * MEDIAN_TO_DEVIATION
    limit = median - OUTLIER_DEVIATIONS * max(spread, 0.5)
    return sorted((p for p in images if p.psnr < limit), key=lambda image: image.psnr)


def spread_keys(folder: Path, count: int) -> list[str]:
    """Return up to `count` keys of samples with images, spread evenly over the folder."""
    keys = [
        shard.keys[number]
        for shard in _shards(folder)
        for number in np.flatnonzero(np.diff(shard.arrays["first"].astype(np.int64))).tolist()
    ]
    chosen = np.linspace(0, len(keys) - 1, min(count, len(keys))).round().astype(int)
    return [keys[number] for number in chosen]


def psnr(original: Pixels, decoded: Pixels) -> float:
    """Return the peak signal-to-noise ratio in dB, 100 for equal images."""
    error = float(np.mean((original.astype(np.float64) - decoded) ** 2))
    return MAX_PSNR if error == 0 else min(MAX_PSNR, 10 * float(np.log10(255**2 / error)))


def spec_of(folder: Path) -> EncodeImages:
    """Return the spec that made a folder of codes."""
    record = Ledger(folder).read_stage()
    spec: Any = None if record is None else from_plain(record.stage, where=f"{folder}/stage.json")
    if not isinstance(spec, EncodeImages):
        raise ConfigError(f"{folder} holds no codes: make them with shardmill codes")
    return spec


def _shards(folder: Path) -> Iterator[CodeShard]:
    for shard in open_manifest(folder).shards:
        if ROLE not in shard.files:
            raise ConfigError(f"{folder} holds no codes: make them with shardmill codes")
        yield open_codes(folder / shard.files[ROLE].path)


def _find(shards: list[CodeShard], key: str, folder: Path) -> tuple[CodeShard, int]:
    for shard in shards:
        number = shard.find(key)
        if number is not None:
            return shard, number
    raise ConfigError(f"{folder} has no codes of a sample with the key {key!r}")


def _as_encoded(spec: EncodeImages, content: bytes | memoryview) -> Pixels:
    pixels = decode_image(content, allow_truncated=spec.allow_truncated)
    return resize_crop(pixels, spec.geometry.fit(pixels.shape[1], pixels.shape[0]))
