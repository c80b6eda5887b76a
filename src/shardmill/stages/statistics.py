"""Statistics of what was kept: of a sample as it is written, or of a finished shard as a whole.

Both use the same names, so that `status` and the page can add them up: "samples|with images",
"media|images", "missing|text", "source|NAME", and the histograms "text chars", "pixels" and
"video seconds" (see `Tally.observe`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.model.sample import MediaSize, Sample
from shardmill.model.stage import Tally
from shardmill.shards.codes import CodeShard
from shardmill.shards.tar.index import TarIndex
from shardmill.shards.tokens.shard import TokenShard
from shardmill.sources.part import media_kind
from shardmill.stages.inputs import open_content

SAMPLES_WITH = {"image": "with images", "video": "with videos", "audio": "with audio"}
COUNTED = {"image": "images", "video": "videos", "audio": "audio clips"}


def count_sample(tally: Tally, sample: Sample, sizes: Mapping[str, MediaSize]) -> None:
    """Count a kept sample: its kind, its media, the length of its text, its source."""
    kinds = [segment.kind for segment in sample.document.segments]
    for kind, words in SAMPLES_WITH.items():
        if kind in kinds:
            tally.count(f"samples|{words}")
            tally.count(f"media|{COUNTED[kind]}", kinds.count(kind))
    if not sample.media:
        tally.count("samples|text only")
    num_chars = sum(len(segment.text) for segment in sample.document.segments)
    if num_chars == 0:
        tally.count("missing|text")
    if sample.origin is not None:
        tally.count(f"source|{sample.origin.source}")
    tally.observe("text chars", num_chars)
    for size in sizes.values():
        if size.width:
            tally.observe("pixels", size.width * size.height)
        if size.duration_s:
            tally.observe("video seconds", round(size.duration_s))


def count_shard(tally: Tally, files: Mapping[str, Path]) -> None:
    """Count what a finished shard of samples, codes or tokens holds, from its index alone."""
    match open_content(files):
        case TokenShard() as tokens:
            _count_tokens(tally, tokens)
        case CodeShard() as codes:
            _count_codes(tally, codes)
        case index:
            _count_samples(tally, index)


def _count_tokens(tally: Tally, shard: TokenShard) -> None:
    lengths = shard.lengths.astype(np.int64)
    tally.count("tokens", int(lengths.sum()))
    tally.count("visual tokens", int(shard.num_visual.sum(dtype=np.int64)))
    tally.count("loss tokens", int(shard.columns["loss_length"].sum(dtype=np.int64)))
    _observe(tally, "row tokens", lengths)
    sources = shard.source_numbers
    for number, name in enumerate(shard.source_names):
        tokens = lengths[sources == number]
        if name and len(tokens):
            tally.count(f"source|{name}", len(tokens))
            tally.count(f"source tokens|{name}", int(tokens.sum()))


def _count_codes(tally: Tally, shard: CodeShard) -> None:
    tally.count("images", shard.num_images)
    tally.count("codes", shard.codes.size)
    sizes = np.stack([shard.arrays["width"], shard.arrays["height"]], axis=1)
    for (width, height), count in zip(*np.unique(sizes, axis=0, return_counts=True)):
        tally.count(f"code grid|{width}x{height}", int(count))


def _count_samples(tally: Tally, index: TarIndex) -> None:
    first = index.arrays["first"].astype(np.int64)
    owners = np.repeat(np.arange(len(index)), np.diff(first))
    kinds = np.array([media_kind(ext) or "" for ext in index.exts], str)[index.arrays["ext"]]
    for kind, words in SAMPLES_WITH.items():
        if (kinds == kind).any():
            tally.count(f"samples|{words}", len(np.unique(owners[kinds == kind])))
            tally.count(f"media|{COUNTED[kind]}", int((kinds == kind).sum()))
    num_without = len(index) - len(np.unique(owners[kinds != ""]))
    chars = index.column("text_chars").astype(np.int64)
    for name, count in (("samples|text only", num_without), ("missing|text", (chars == 0).sum())):
        if count:
            tally.count(name, int(count))
    _observe(tally, "text chars", chars)
    pixels = index.column("width").astype(np.int64) * index.column("height")
    _observe(tally, "pixels", pixels[pixels > 0])
    seconds = index.column("duration_s")
    _observe(tally, "video seconds", np.round(seconds[seconds > 0]).astype(np.int64))
    source = index.column("source")
    for number, name in enumerate(index.sources):
        if name and (source == number).any():
            tally.count(f"source|{name}", int((source == number).sum()))


def _observe(tally: Tally, name: str, values: NDArray[Any]) -> None:
    """Do for many values what `Tally.observe` does for one."""
    if not len(values):
        return
    buckets = np.where(values > 0, 1 << np.ceil(np.log2(np.maximum(values, 1))).astype(int), 0)
    for bucket, count in zip(*np.unique(buckets, return_counts=True)):
        tally.count(f"{name}|<={bucket}", int(count))
    tally.count(f"{name}|sum", int(values.sum()))
