"""Lengths as they occur: a vision-language mix, documents, images with captions, videos."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Drawn = tuple[NDArray[np.int32], NDArray[np.int32]]
SHARES = {
    "vlm": (0.40, 0.25, 0.27, 0.08),
    "img": (0.0, 0.25 / 0.52, 0.27 / 0.52, 0.0),
    "video": (0.3 * 0.40 / 0.92, 0.3 * 0.25 / 0.92, 0.3 * 0.27 / 0.92, 0.7),
}
SETS = [(name, size) for name in ("vlm", "docs", "img", "video") for size in (4096, 8192, 32768)]
SETS += [("1500-3500", 8192), ("1700-2300", 8192), ("4000-7500", 8192)]


def draw(name: str, capacity: int, num_samples: int, seed: int = 0) -> Drawn:
    """Return tokens and visual tokens of samples that fit a pack."""
    rng = np.random.default_rng(seed)
    if name == "docs":
        return _documents(rng, capacity, num_samples), np.zeros(num_samples, np.int32)
    if "-" in name:
        low, high = map(int, name.split("-"))
        lengths = rng.integers(low, high + 1, num_samples).astype(np.int32)
        return lengths, np.zeros(num_samples, np.int32)
    tokens, visual = _mix(rng, 4 * num_samples + 100, SHARES[name])
    fits = np.flatnonzero(tokens <= capacity)[:num_samples]
    assert len(fits) == num_samples
    return tokens[fits].astype(np.int32), visual[fits].astype(np.int32)


def _mix(rng: np.random.Generator, count: int, shares: tuple[float, ...]) -> Drawn:
    # Text of 400 tokens on average; an image of 576; one of 256 to 2500; a video of 2k to 12k.
    kind = rng.choice(4, count, p=shares)
    text = rng.lognormal(np.log(400) - 0.5, 1.0, count).astype(np.int64) + 1
    sizes = [0, 576, rng.integers(256, 2501, count), rng.integers(2000, 12001, count)]
    visual = np.choose(kind, [np.broadcast_to(size, count) for size in sizes])
    return np.where(kind == 0, text, visual + rng.integers(100, 501, count)), visual


def _documents(rng: np.random.Generator, capacity: int, count: int) -> NDArray[np.int32]:
    whole = rng.lognormal(np.log(545), 1.2, count).astype(np.int64) + 1
    pieces = np.concatenate([np.full(int((whole // capacity).sum()), capacity), whole % capacity])
    pieces = rng.permutation(pieces[pieces > 0])
    return np.resize(pieces, count).astype(np.int32)
