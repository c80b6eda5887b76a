"""Samples and packs in tars: what each says against the members beside it; nothing is decoded.

Every medium that a document names must be there and be what it is called, by its header. Samples
of other pipelines are looked at through the fields that they have. Ids, mask, document lengths and
images of a pack are held against each other and against the rules of `check.tokens`; packs of other
video pipelines are read as `formats.packed` reads them.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson

from shardmill.errors import SampleError
from shardmill.formats.packed import packed_documents, packed_row
from shardmill.formats.webdataset import VIDEO_SPACE
from shardmill.media.sizes import probe
from shardmill.model.sample import Origin, Sample, sample_from_plain
from shardmill.model.tokenrow import TokenRow
from shardmill.shards.samples import Members
from shardmill.sources.part import MEDIA_KINDS, media_kind
from shardmill.sources.shapes.shape import is_missing
from shardmill.sources.tars import row_fields
from shardmill.stages.check.findings import Findings, Limits
from shardmill.stages.check.tokens import MediaArrays, RowArrays, faults_of

TEXT_FIELDS = ("text", "caption", "captions", "text_prompt", "conversations", "messages", "QA")
MORE_TEXT_FIELDS = ("prompt", "txt", "value", "text_list", "transcript")
ARRAYS = ("input_ids", "loss_mask")


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
            name: np.load(io.BytesIO(members[f"{name}.npy"]), allow_pickle=False)
            for name in ARRAYS
            if f"{name}.npy" in members
        }
    except orjson.JSONDecodeError as error:
        raise SampleError("not JSON", str(error)) from error
    except (ValueError, OSError, EOFError) as error:
        raise SampleError("not an array", str(error)) from error
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
