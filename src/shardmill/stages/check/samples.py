"""Samples in tars: each document against its members, and pairs of media and text.

Every medium that a document names must be there and be what it is called, by its header; nothing is
decoded. Samples of other pipelines are looked at through the fields that they have.

Decodes the images of sample shards and names those that are cut off or broken.

Nothing before training decodes an image, so that one whose end is missing is found nowhere else;
loaders that forgive it show grey instead. Bytes are as the receipts say: this asks what they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ConfigError, SampleError
from shardmill.media.image.decode import decode_image
from shardmill.media.sizes import probe
from shardmill.model.manifest import Manifest
from shardmill.model.sample import Sample, sample_from_plain
from shardmill.shards.ledger import open_manifest
from shardmill.shards.samples import Members, SampleShard, entry_index, open_entry
from shardmill.shards.tar.index import ShardIndex
from shardmill.sources.part import MEDIA_KINDS, media_kind
from shardmill.sources.shapes.shape import is_missing
from shardmill.sources.tars import row_fields
from shardmill.stages.check.findings import Findings

TEXT_FIELDS = ("text", "caption", "captions", "text_prompt", "conversations", "messages", "QA")
MORE_TEXT_FIELDS = ("prompt", "txt", "value", "text_list", "transcript")


def check_sample(
    key: str, plain: Mapping[str, Any] | None, members: Members, *, pairs: bool, findings: Findings
) -> None:
    """Check one sample and count its media and texts."""
    try:
        if plain is not None and "segments" in plain:
            media, has_text = _check_document(key, plain, members)
        else:
            media, has_text = _check_members(key, members)
    except SampleError as error:
        findings.blame(key, str(error))
        return
    findings.count("samples")
    for kind in media:
        findings.count(f"{kind}s")
    findings.count("pairs", bool(media) and has_text)
    if pairs and not (media and has_text):
        findings.blame(key, "has a medium but no text" if media else "has no medium")


def _check_document(key: str, plain: Mapping[str, Any], members: Members) -> tuple[list[str], bool]:
    sample: Sample = sample_from_plain(key, plain)
    segments = sample.document.media()
    for segment in segments:
        if segment.media not in members:
            raise SampleError("missing media", f"it names {segment.media!r}")
        _check_medium(segment.kind, segment.media, members)
    return [segment.kind for segment in segments], bool(sample.document.text.strip())


def _check_members(key: str, members: Members) -> tuple[list[str], bool]:
    fields, _ = row_fields(key, members)
    kinds = {ext: media_kind(ext) for ext in members}
    for ext, kind in kinds.items():
        if kind is not None:
            _check_medium(kind, ext, members)
    has_text = any(not is_missing(fields.get(name)) for name in (*TEXT_FIELDS, *MORE_TEXT_FIELDS))
    return [kind for kind in kinds.values() if kind is not None], has_text


def _check_medium(kind: str, name: str, members: Members) -> None:
    if not len(members[name]):
        raise SampleError("empty file", name)
    if name.rpartition(".")[2] not in MEDIA_KINDS:
        return  # codes that stand for an image
    try:
        probe(kind, members[name])
    except SampleError as error:
        raise SampleError(error.reason, f"{name}: {error.detail}") from error


MAX_LISTED = 1000
# As many images are in memory at once.
BATCH = 64


@dataclass(frozen=True, slots=True)
class BrokenImage:
    """An image that cannot be decoded, where its bytes begin, and why."""

    tar: str
    key: str
    medium: str
    offset: int
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeReport:
    """How many of a folder's images were decoded, and the first of those that are broken."""

    num_images: int
    num_decoded: int
    num_broken: int
    broken: tuple[BrokenImage, ...]


def check_decoding(folder: Path, count: int, *, workers: int = 1) -> DecodeReport:
    """Decode `count` images of a finished folder, spread evenly, or all if there are fewer."""
    manifest = open_manifest(folder)
    if any("idx" not in shard.files or "spans" in shard.files for shard in manifest.shards):
        raise ConfigError(f"{folder} holds neither codes nor samples: there is nothing to decode")
    # Counted first, and listed again later: the places of all images may not fit into memory.
    counts = [len(_images(entry_index(folder, entry))) for entry in manifest.shards]
    chosen = _spread(sum(counts), count)
    found = list(_broken(folder, manifest, counts, chosen, max(1, workers)))
    return DecodeReport(
        num_images=sum(counts),
        num_decoded=len(chosen),
        num_broken=len(found),
        broken=tuple(found[:MAX_LISTED]),
    )


def _spread(total: int, count: int) -> NDArray[np.int64]:
    """Return `count` of the numbers below `total`, as evenly as can be; each once."""
    if count >= total:
        return np.arange(total)
    return np.arange(count, dtype=np.int64) * total // count


def _broken(
    folder: Path,
    manifest: Manifest,
    counts: Sequence[int],
    chosen: NDArray[np.int64],
    workers: int,
) -> Iterator[BrokenImage]:
    bounds = np.cumsum([0, *counts])
    with ThreadPoolExecutor(workers) as pool:  # decoders leave Python's lock
        for entry, first, last in zip(manifest.shards, bounds, bounds[1:]):
            inside = chosen[(chosen >= first) & (chosen < last)] - first
            if not len(inside):
                continue
            with open_entry(folder, entry) as shard:
                yield from _broken_in(shard, _images(shard.index)[inside], pool)


def _broken_in(
    shard: SampleShard, members: NDArray[np.intp], pool: ThreadPoolExecutor
) -> Iterator[BrokenImage]:
    index = shard.index
    for start in range(0, len(members), BATCH):
        batch = members[start : start + BATCH].tolist()
        places = [(index.offset[member], index.size[member]) for member in batch]
        problems = pool.map(_problem, shard.blob.view_all(places))
        for member, (offset, _), problem in zip(batch, places, problems):
            if problem is not None:
                sample = int(np.searchsorted(index.arrays["first"], member, side="right")) - 1
                medium = index.exts[index.ext[member]]
                key = index.keys[sample]
                yield BrokenImage(shard.blob.url, key, medium, offset, problem)


def _problem(content: memoryview) -> str | None:
    try:
        decode_image(content)
    except SampleError as error:
        return str(error)
    return None


def _images(index: ShardIndex) -> NDArray[np.intp]:
    """Return the numbers of the members that are images by their names."""
    wanted = [number for number, ext in enumerate(index.exts) if media_kind(ext) == "image"]
    return np.flatnonzero(np.isin(index.arrays["ext"], wanted))
