"""VQ codes of images: grids of codes, outliers first, and images decoded from their codes.

Without weights an image's codes still tell something: how rare its codes are in the folder (bits
per code), and how many different ones it has. A flat or broken image repeats a few codes; one that
the tokenizer never learned has many rare ones. Both are listed first. With weights, images decoded
from codes are shown beside the originals.
"""

from __future__ import annotations

import io
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ConfigError, FormatError, NotFound, need
from shardmill.view.answers import Query
from shardmill.view.context import Context, Folder, sample_place

PER_PAGE = 24
MAX_SHARDS = 32
MAX_RANKED = 4096
MAX_CODES = 128 * 128


@dataclass(frozen=True, slots=True)
class CodeImage:
    """How an image's codes stand out: bits per code, number of different codes, and the score.

    The score is the larger of the two deviations from the median, in robust standard deviations.
    """

    shard: int
    image: int
    bits: float
    distinct: int
    score: float = 0.0


def list_codes(context: Context, query: Query) -> dict[str, Any]:
    """Return a page of the images of a folder of codes, outliers first, and the codebook's use."""
    id = query.text("id")
    folder, samples = context.folder(id, "codes"), context.upstream(id, "samples")
    num_shards = len(folder.entries())
    at, count = query.number("at", 0), query.number("count", PER_PAGE, most=100)
    with folder.lock:
        counts, looked_at = context.cached(
            ("codebook", id, num_shards), lambda: codebook_counts(folder)
        )
        ranked = context.cached(("outliers", id, num_shards), lambda: rank_images(folder, counts))
        shown = [{**asdict(i), **show_codes(folder, i.shard, i.image)} for i in ranked[at:][:count]]
    for image in shown:
        shard = folder.entries()[image["shard"]].name
        image["sample_at"] = sample_place(samples, image["key"], shard)
    return {
        "total": len(ranked),
        "at": at,
        "shards": looked_at,
        "of": num_shards,
        "num_codes": len(counts),
        "unused": int((counts == 0).sum()),
        "decodes": context.decodes,
        "images": shown,
    }


def codebook_counts(folder: Folder) -> tuple[NDArray[np.int64], int]:
    """Return how often each code occurs in some shards, and how many shards these are."""
    counts = np.zeros(0, np.int64)
    chosen = _some_shards(folder)
    for number in chosen:
        shard = folder.codes(number)
        found = np.bincount(shard.codes, minlength=shard.num_codes)
        counts = found if len(found) != len(counts) else counts + found
    return counts, len(chosen)


def rank_images(folder: Folder, counts: NDArray[np.int64]) -> list[CodeImage]:
    """Return images of some shards, outliers first."""
    # One is added to each count, so that a code which some shards lack has bits too.
    bits_of = -np.log2((counts + 1) / (counts.sum() + max(1, len(counts))))
    found: list[CodeImage] = []
    chosen = _some_shards(folder)
    for number in chosen:
        shard = folder.codes(number)
        count = min(shard.num_images, -(-MAX_RANKED // max(1, len(chosen))))
        for image in np.unique(np.linspace(0, shard.num_images - 1, count).astype(int)).tolist():
            codes = shard.image(image).codes
            if codes.size and int(codes.max()) >= len(bits_of):
                raise FormatError(f"holds codes beyond its {len(bits_of)}", path=shard.arrays.path)
            bits = float(bits_of[codes].mean()) if codes.size else 0.0
            found.append(CodeImage(number, image, bits, len(np.unique(codes))))
    if not found:
        return []
    all_bits = np.array([image.bits for image in found])
    distinct = np.array([image.distinct for image in found], float)
    score = np.maximum(_deviations(all_bits), _deviations(-distinct))
    order = np.argsort(-score, kind="stable").tolist()
    return [replace(found[n], score=float(score[n])) for n in order]


def show_codes(folder: Folder, shard: int, image: int) -> dict[str, Any]:
    """Return one grid of codes with its key and medium."""
    if not 0 <= shard < len(folder.entries()):
        raise NotFound(f"there are {len(folder.entries())} shards")
    opened = folder.codes(shard)
    if not 0 <= image < opened.num_images:
        raise NotFound(f"shard {shard} has {opened.num_images} images")
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


def decode_codes(context: Context, query: Query) -> bytes:
    """Return a PNG: the image as it was encoded on the left, decoded from its codes on the right.

    Raises `ConfigError` unless the user asked for it: it loads the weights that the folder names.
    """
    folder = context.folder(query.text("id"), "codes")
    key, medium = query.text("key"), query.text("medium")
    if not context.decodes:
        raise ConfigError("start with --reconstruct to load the weights and decode codes")

    from shardmill.stages.codes import reconstruct  # loads torch, which the page rarely needs

    def make() -> bytes:
        for image in reconstruct(folder.path, [key]):
            if image.medium == medium:
                return _png(image.side_by_side())
        raise NotFound(f"sample {key!r} has no codes of {medium!r}")

    return context.cached(("decoded", str(folder.path), key, medium), make)


def _deviations(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the distances from the median over the robust standard deviation (MAD / 0.6745)."""
    median = np.median(values)
    deviation = np.median(np.abs(values - median)) / 0.6745
    return np.asarray((values - median) / max(float(deviation), 1e-9))


def _some_shards(folder: Folder) -> list[int]:
    """Return the places of some shards, evenly spread, so that any folder takes the same time."""
    total = len(folder.entries())
    chosen = np.linspace(0, max(0, total - 1), min(MAX_SHARDS, total)).astype(int)
    return [int(n) for n in np.unique(chosen)] if total else []


def _png(pixels: Any) -> bytes:
    """Return pixels as a PNG."""
    file = io.BytesIO()
    need("PIL.Image", extra="image").fromarray(pixels).save(file, "PNG")
    return file.getvalue()
