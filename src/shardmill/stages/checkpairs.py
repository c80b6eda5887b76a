"""Samples in tars: each document against its members, and pairs of media and text.

Every medium that a document names must be there and be what it is called, by its header; nothing is
decoded. Samples of other pipelines are looked at through the fields that they have.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardmill.errors import SampleError
from shardmill.io.sampleshard import Raw
from shardmill.media.sizes import probe
from shardmill.model.sample import Sample, sample_from_plain
from shardmill.sources.rowfields import row_fields
from shardmill.sources.shapes.shaped import is_missing
from shardmill.sources.suffixes import MEDIA_KINDS, media_kind
from shardmill.stages.checkfindings import Findings

TEXT_FIELDS = ("text", "caption", "captions", "text_prompt", "conversations", "messages", "QA")
MORE_TEXT_FIELDS = ("prompt", "txt", "value", "text_list", "transcript")


def check_sample(
    key: str, plain: Mapping[str, Any] | None, members: Raw, *, pairs: bool, findings: Findings
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


def _check_document(key: str, plain: Mapping[str, Any], members: Raw) -> tuple[list[str], bool]:
    sample: Sample = sample_from_plain(key, plain)
    segments = sample.document.media()
    for segment in segments:
        if segment.media not in members:
            raise SampleError("missing media", f"it names {segment.media!r}")
        _check_medium(segment.kind, segment.media, members)
    return [segment.kind for segment in segments], bool(sample.document.text.strip())


def _check_members(key: str, members: Raw) -> tuple[list[str], bool]:
    fields, _ = row_fields(key, members)
    kinds = {ext: media_kind(ext) for ext in members}
    for ext, kind in kinds.items():
        if kind is not None:
            _check_medium(kind, ext, members)
    has_text = any(not is_missing(fields.get(name)) for name in (*TEXT_FIELDS, *MORE_TEXT_FIELDS))
    return [kind for kind in kinds.values() if kind is not None], has_text


def _check_medium(kind: str, name: str, members: Raw) -> None:
    if not len(members[name]):
        raise SampleError("empty file", name)
    if name.rpartition(".")[2] not in MEDIA_KINDS:
        return  # codes that stand for a picture
    try:
        probe(kind, members[name])
    except SampleError as error:
        raise SampleError(error.reason, f"{name}: {error.detail}") from error
