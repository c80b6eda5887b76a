"""The statistics of kept samples that a person asks for first; `status` adds them up."""

from __future__ import annotations

from collections.abc import Mapping

from shardmill.model.sample import MediaSize, Sample
from shardmill.model.stage import Tally

SAMPLES_WITH = {"image": "with pictures", "video": "with videos", "audio": "with sounds"}
COUNTED = {"image": "pictures", "video": "videos", "audio": "sounds"}


def count_sample(tally: Tally, sample: Sample, sizes: Mapping[str, MediaSize]) -> None:
    """Count a kept sample: its kind, its media, the length of its text, its source.

    Names are "samples|with pictures", "media|pictures", "missing|text", "source|NAME"; the
    histograms are "text chars", "pixels" and "video seconds".
    """
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
