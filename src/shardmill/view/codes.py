"""Code images as the page shows them: grids of codes, the strangest first.

Without weights an image's codes still tell something: how rare its codes are in the folder (bits a
code), and how many different ones it has. A flat or broken image repeats a few codes; one that
the tokenizer never learned has many rare ones. Both stand first. With weights, images decoded
from codes are shown beside the originals, with their PSNR.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.shards.codes import CodeShard
from shardmill.view.folder import Folder
from shardmill.view.items import NotHere

MAX_SHARDS = 32
MAX_RANKED = 4096
MAX_CODES = 128 * 128


@dataclass(frozen=True, slots=True)
class Strangeness:
    """How an image's codes stand out: bits a code, different codes, and the distance of both."""

    shard: int
    image: int
    bits: float
    distinct: int
    score: float


def codebook_counts(folder: Folder) -> tuple[NDArray[np.int64], int]:
    """Return how often each code occurs in some shards, and in how many shards that is."""
    counts = np.zeros(0, np.int64)
    chosen = _some_shards(folder)
    for number in chosen:
        shard = folder.codes(number)
        found = np.bincount(shard.codes, minlength=shard.num_codes)
        counts = found if len(found) != len(counts) else counts + found
    return counts, len(chosen)


def rank_images(folder: Folder) -> list[Strangeness]:
    """Return some images of the folder, the strangest first."""
    counts, _ = codebook_counts(folder)
    bits_of = -np.log2((counts + 1) / (counts.sum() + max(1, len(counts))))
    found: list[Strangeness] = []
    chosen = _some_shards(folder)
    for number in chosen:
        shard = folder.codes(number)
        count = min(shard.num_images, -(-MAX_RANKED // max(1, len(chosen))))
        for image in np.unique(np.linspace(0, shard.num_images - 1, count).astype(int)).tolist():
            codes = shard.image(image).codes
            bits = float(bits_of[codes].mean()) if codes.size else 0.0
            found.append(Strangeness(number, image, bits, len(np.unique(codes)), 0.0))
    return _scored(found)


def show_codes(folder: Folder, shard: int, image: int) -> dict[str, Any]:
    """Return one grid of codes with its key and medium."""
    opened = _shard(folder, shard)
    if not 0 <= image < opened.num_images:
        raise NotHere(f"shard {shard} has {opened.num_images} images")
    found = opened.image(image)
    sample = int(np.searchsorted(opened.arrays["first"], image, side="right")) - 1
    height, width = found.codes.shape
    return {
        "shard": shard,
        "image": image,
        "key": opened.keys[sample],
        "medium": found.medium,
        "height": height,
        "width": width,
        "num_codes": opened.num_codes,
        "codes": found.codes.tolist() if found.codes.size <= MAX_CODES else [],
    }


def find_images(folder: Folder, key: str) -> list[tuple[int, int]]:
    """Return (shard, image) of each image of a sample."""
    for number in range(len(folder.entries())):
        opened = folder.codes(number)
        sample = opened.find(key)
        if sample is not None:
            first, last = (int(opened.arrays["first"][sample + i]) for i in (0, 1))
            return [(number, image) for image in range(first, last)]
    return []


def _scored(found: list[Strangeness]) -> list[Strangeness]:
    if not found:
        return []
    bits, distinct = (np.array([getattr(p, n) for p in found], float) for n in ("bits", "distinct"))
    score = np.maximum(_deviations(bits), _deviations(-distinct))
    order = np.argsort(-score, kind="stable").tolist()
    return [
        Strangeness(p.shard, p.image, p.bits, p.distinct, float(score[n]))
        for n, p in ((n, found[n]) for n in order)
    ]


def _deviations(values: NDArray[np.float64]) -> NDArray[np.float64]:
    median = np.median(values)
    spread = np.median(np.abs(values - median)) / 0.6745
    return np.asarray((values - median) / max(float(spread), 1e-9))


def _some_shards(folder: Folder) -> list[int]:
    total = len(folder.entries())
    chosen = np.linspace(0, max(0, total - 1), min(MAX_SHARDS, total)).astype(int)
    return [int(n) for n in np.unique(chosen)] if total else []


def _shard(folder: Folder, number: int) -> CodeShard:
    if not 0 <= number < len(folder.entries()):
        raise NotHere(f"there are {len(folder.entries())} shards")
    return folder.codes(number)
