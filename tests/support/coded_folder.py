"""Folders of pairs and texts with made-up codes, as `ingest` and `codes` would leave them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import xxhash
from finished_folder import finish_folder, shard_entry
from samples_for_tests import store_samples

from shardmill.model.sample import Document, Sample, Segment
from shardmill.shards.codes import ImageCodes, write_codes
from shardmill.shards.ledger import open_manifest

NUM_CODES = 8192
FACTOR = 16


def make_pair(key: str, text: str, image: bytes = b"jpeg") -> Sample:
    """An image with its caption."""
    segments = (Segment(kind="image", media="jpg"), Segment(kind="text", text=text))
    return Sample(key=key, document=Document(segments), media={"jpg": image})


def make_text(key: str, text: str) -> Sample:
    """Plain text."""
    return Sample(key=key, document=Document((Segment(kind="text", text=text),)))


def codes_of(key: str, rows: int = 32, columns: int = 32) -> np.ndarray[tuple[int, int], np.dtype]:
    """Return the codes that stand for the image of a sample; some are 0 and some the last."""
    seed = xxhash.xxh3_64_intdigest(key.encode())
    codes = np.random.default_rng(seed).integers(0, NUM_CODES, (rows, columns))
    codes[0, 0], codes[-1, -1] = 0, NUM_CODES - 1
    return codes.astype(np.uint16)


def store_coded(
    folder: Path,
    samples: Sequence[Sample],
    *,
    per_shard: int,
    size: tuple[int, int] = (32, 32),
    without: Sequence[str] = (),
) -> tuple[Path, Path]:
    """Store samples and the codes of their images; return both folders."""
    store_samples(folder / "samples", list(samples), per_shard=per_shard)
    shards = []
    (folder / "codes" / "shards").mkdir(parents=True)
    for number, shard in enumerate(open_manifest(folder / "samples").shards):
        mine = samples[number * per_shard : (number + 1) * per_shard]
        rows = [
            (s.key, [ImageCodes(m, codes_of(s.key, *size)) for m in s.media])
            for s in mine
            if s.key not in without
        ]
        path = folder / "codes" / "shards" / f"{shard.name}.codes"
        write_codes(path, rows, num_codes=NUM_CODES, factor=FACTOR)
        shards.append(shard_entry(folder / "codes", shard.name, len(rows), ("codes",)))
    return folder / "samples", finish_folder(folder / "codes", shards)
