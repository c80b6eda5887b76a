"""What finished shards hold: every sample, row and pack checked, and images decoded on request.

A shard that cannot be read is a fault of that shard; all others are checked, and every one that is
wrong is named. Token shards are held against the rules of `check.tokens`. Of a sample in a tar,
every medium that its document names must be there and be what it is called, by its header; samples
of other pipelines are looked at through the fields that they have. Ids, mask, document lengths and
images of a pack in a tar are held against each other and against the rules of token rows; packs of
other video pipelines are read as `formats.packed` reads them.

Nothing before training decodes an image, so that one whose end is missing is found nowhere else:
loaders that forgive it show grey instead. `check_decoding` finds it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from shardmill.errors import ConfigError, SampleError, ShardmillError
from shardmill.formats.packed import packed_documents, packed_row
from shardmill.formats.webdataset import VIDEO_SPACE
from shardmill.machine import spawn_context
from shardmill.media.header import probe
from shardmill.media.image import decode_image
from shardmill.model.manifest import Manifest, ShardEntry
from shardmill.model.sample import Origin, sample_from_plain
from shardmill.model.tokenrow import TokenRow
from shardmill.shards.arrays import load_npy
from shardmill.shards.ledger import open_manifest
from shardmill.shards.plans import open_plan
from shardmill.shards.samples import Members, entry_index, open_entry
from shardmill.shards.tar.index import TarIndex
from shardmill.shards.tokens.shard import ROLES, open_token_shard
from shardmill.sources.shapes.shape import is_missing
from shardmill.sources.source import MEDIA_KINDS, media_kind
from shardmill.sources.tars import row_fields
from shardmill.stages.check.tokens import (
    ContentFault,
    Findings,
    Limits,
    MediaArrays,
    RowArrays,
    check_token_shard,
    faults_of,
)
from shardmill.stages.inputs import space_of, stored_as
from shardmill.storage.path import as_path
from shardmill.storage.prefetch import map_ahead

# A process takes half a second to begin: less than this is done sooner without.
BYTES_WORTH_A_PROCESS = 32 << 20
MAX_LISTED = 1000
# So many images are read at once, and as many wait to be decoded.
BATCH = 64
TEXT_FIELDS = ("text", "caption", "captions", "text_prompt", "conversations", "messages", "QA")
MORE_TEXT_FIELDS = ("prompt", "txt", "value", "text_list", "transcript")
ARRAYS = ("input_ids", "loss_mask")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardReport:
    """What one shard holds: counts by name, and the first of its faults."""

    name: str
    num_samples: int
    counts: Mapping[str, int]
    faults: tuple[ContentFault, ...]
    num_faults: int


@dataclass(frozen=True, slots=True)
class ContentReport:
    """What a folder holds, shard by shard in order."""

    shards: tuple[ShardReport, ...]

    @property
    def counts(self) -> dict[str, int]:
        """The counts of all shards together."""
        total: Counter[str] = Counter()
        for shard in self.shards:
            total.update(shard.counts)
        return dict(total)

    @property
    def num_faults(self) -> int:
        """How many faults there are, listed or not."""
        return sum(shard.num_faults for shard in self.shards)


def check_content(folder: Path, limits: Limits | None = None, *, workers: int = 1) -> ContentReport:
    """Check the content of every shard of a finished folder."""
    manifest = open_manifest(folder)
    limits = _with_stage(folder, manifest, limits or Limits())
    check = partial(check_shard, folder, limits)
    workers = min(workers, len(manifest.shards), manifest.num_bytes // BYTES_WORTH_A_PROCESS)
    if workers < 2:
        return ContentReport(tuple(map(check, manifest.shards)))
    with ProcessPoolExecutor(workers, spawn_context()) as pool:
        return ContentReport(tuple(pool.map(check, manifest.shards)))


def check_shard(folder: Path, limits: Limits, entry: ShardEntry) -> ShardReport:
    """Check one shard; what makes it unreadable is its fault."""
    findings = Findings()
    try:
        match stored_as(entry.files):
            case "tokens":
                files = {role: folder / entry.files[role].path for role in ROLES}
                findings = check_token_shard(open_token_shard(files), limits)
            case "tar":
                _check_tar(folder, entry, limits, findings)
    except (ShardmillError, OSError) as error:
        findings.blame("", f"cannot be read: {error}")
    return ShardReport(
        name=entry.name,
        num_samples=entry.num_samples,
        counts=dict(findings.counts),
        faults=tuple(findings.faults),
        num_faults=findings.num_faults,
    )


def _check_tar(folder: Path, entry: ShardEntry, limits: Limits, findings: Findings) -> None:
    with open_entry(folder, entry) as shard:
        if shard.blob.mapped() is None and not limits.remote:
            findings.count("samples elsewhere", len(shard))
            return
        # Of a mapped tar only what is looked at is read, of a remote one all in few requests.
        samples = (
            shard.iter_raw()
            if shard.blob.mapped() is None
            else ((key, shard.raw(number)) for number, key in enumerate(shard.index.keys))
        )
        for key, members in samples:
            try:
                plain = fields_of(members)
            except SampleError as error:
                findings.blame(key, f"cannot be read: {error}")
                continue
            if plain is not None and "input_ids" in plain:
                check_pack(key, plain, members, limits, findings)
            else:
                check_sample(key, plain, members, pairs=limits.pairs, findings=findings)


def _with_stage(folder: Path, manifest: Manifest, limits: Limits) -> Limits:
    """Return the limits with what the folder's own stage says: its longest row, its space."""
    stage = manifest.stage if isinstance(manifest.stage, dict) else {}
    longest, plan_path = stage.get("max_length"), stage.get("plan_path")
    if isinstance(plan_path, str) and as_path(plan_path).exists():
        longest = open_plan(as_path(plan_path)).spec.capacity
    if limits.max_tokens is None and isinstance(longest, int):
        limits = replace(limits, max_tokens=longest)
    return replace(limits, space=limits.space or space_of(folder, manifest))


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
    sample = sample_from_plain(key, plain)
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


def check_pack(
    key: str, plain: Mapping[str, Any], members: Members, limits: Limits, findings: Findings
) -> None:
    """Check one pack and count what it holds."""
    space = limits.space or VIDEO_SPACE
    try:
        row = packed_row(key, plain, space, Origin(source="", path="", row=key))
        if "lengths" in plain:
            packed_documents(row, plain)
        num_images = _check_images(plain, members)
        _check_numbers(row, num_images, limits)
    except SampleError as error:
        findings.blame(key, str(error))
        return
    # A pack of JSON is held against the very rules of token shards, as a shard of one row.
    for what in faults_of(_as_rows(row), space).values():
        findings.blame(key, what)
    findings.count("packs")
    findings.count("tokens", len(row.ids))
    findings.count("loss tokens", row.num_loss)
    findings.count("visual tokens", row.num_visual)
    findings.count("media", len(row.media))
    findings.count("images", num_images)


def fields_of(members: Members) -> dict[str, Any] | None:
    """Return the json of a sample or pack, with ids and mask that lie beside it as arrays."""
    try:
        plain = orjson.loads(members["json"]) if "json" in members else None
        arrays = {
            name: load_npy(members[f"{name}.npy"], "not an array", f"{name}.npy")
            for name in ARRAYS
            if f"{name}.npy" in members
        }
    except orjson.JSONDecodeError as error:
        raise SampleError("not JSON", str(error)) from error
    return {**plain, **arrays} if isinstance(plain, dict) else None


def _check_images(plain: Mapping[str, Any], members: Members) -> int:
    """Return how many media lie beside the pack; each must be one, and all must be named."""
    found = {ext.partition(".")[0]: ext for ext in members if media_kind(ext) is not None}
    named = plain.get("image", [])
    if not isinstance(named, list) or sorted(map(str, named)) != sorted(found):
        raise SampleError("images do not match", f"it names {named!r:.80}, has {sorted(found)}")
    for ext in found.values():
        probe(str(media_kind(ext)), members[ext])
    return len(found)


def _check_numbers(row: TokenRow, num_images: int, limits: Limits) -> None:
    if num_images and len(row.media) != num_images:
        detail = f"{len(row.media)} blocks of tokens, {num_images} images"
        raise SampleError("images do not match", detail)
    if limits.max_tokens is not None and len(row.ids) > limits.max_tokens:
        raise SampleError("too long", f"{len(row.ids)} tokens, more than {limits.max_tokens}")
    for span in row.media:
        if limits.num_patches not in (None, span.num_tokens):
            detail = f"{span.num_tokens} tokens at {span.position}, not {limits.num_patches}"
            raise SampleError("broken image block", detail)


def _as_rows(row: TokenRow) -> RowArrays:
    spans = [(s.position, s.num_tokens, s.before, s.after, *s.grid) for s in row.media]
    media = np.array(spans, np.int64).reshape(-1, 7)
    return RowArrays(
        ids=row.ids,
        bounds=np.array([0, len(row.ids)]),
        loss_row=np.zeros(len(row.loss), np.int64),
        loss_start=row.loss[:, 0],
        loss_length=row.loss[:, 1],
        media=MediaArrays(
            row=np.zeros(len(media), np.int64),
            start=media[:, 0],
            length=media[:, 1],
            before=media[:, 2],
            after=media[:, 3],
            grid=media[:, 4:],
        ),
    )


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
    if any(stored_as(shard.files) != "tar" for shard in manifest.shards):
        raise ConfigError(f"{folder} holds neither codes nor samples: there is nothing to decode")
    # Counted first, and listed again later: the places of all images may not fit into memory.
    counts = [len(_images(entry_index(folder, entry))) for entry in manifest.shards]
    chosen = _spread(sum(counts), count)
    broken: list[BrokenImage] = []
    bounds = np.cumsum([0, *counts])
    for entry, first, last in zip(manifest.shards, bounds, bounds[1:]):
        inside = chosen[(chosen >= first) & (chosen < last)] - first
        if len(inside):
            broken += _find_broken(folder, entry, inside, max(1, workers))
    return DecodeReport(
        num_images=sum(counts),
        num_decoded=len(chosen),
        num_broken=len(broken),
        broken=tuple(broken[:MAX_LISTED]),
    )


def _spread(total: int, count: int) -> NDArray[np.int64]:
    """Return `count` of the numbers below `total`, as evenly as can be; each once."""
    if count >= total:
        return np.arange(total)
    return np.arange(count, dtype=np.int64) * total // count


def _find_broken(
    folder: Path, entry: ShardEntry, chosen: NDArray[np.int64], workers: int
) -> Iterator[BrokenImage]:
    with open_entry(folder, entry) as shard:
        index = shard.index
        members = _images(index)[chosen].tolist()
        places = [(index.offset[member], index.size[member]) for member in members]
        contents = (
            content
            for start in range(0, len(places), BATCH)
            for content in shard.blob.view_all(places[start : start + BATCH])
        )
        # Decoders leave Python's lock, so threads are enough.
        problems = map_ahead(_problem, contents, threads=workers, ahead=BATCH)
        for member, (offset, _), problem in zip(members, places, problems):
            if problem is not None:
                sample = int(np.searchsorted(index.arrays["first"], member, side="right")) - 1
                medium = index.exts[index.ext[member]]
                yield BrokenImage(shard.blob.url, index.keys[sample], medium, offset, problem)


def _problem(content: memoryview) -> str | None:
    try:
        decode_image(content)
    except SampleError as error:
        return str(error)
    return None


def _images(index: TarIndex) -> NDArray[np.intp]:
    """Return the numbers of the members that are images by their names."""
    wanted = [number for number, ext in enumerate(index.exts) if media_kind(ext) == "image"]
    return np.flatnonzero(np.isin(index.arrays["ext"], wanted))
