"""Writes sample shards: `K.json` first, then the media, and the index in the same pass.

`K.txt` is added to a document that is exactly one medium and one text, so that readers of caption
pairs work unchanged; the json stays the truth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from types import TracebackType
from typing import Self

import orjson
import xxhash

from shardmill.errors import SampleError
from shardmill.io.indexwrite import IndexRows
from shardmill.io.names import Layout
from shardmill.io.tarheader import END_OF_TAR
from shardmill.io.tarwrite import Content, TarWriter, plan_sample
from shardmill.model.sample import MediaSize, Sample, sample_to_plain
from shardmill.model.stage import Draft
from shardmill.model.turnfields import EXTRA_NAME

RESERVED = ("json", "txt")
JSON_OPTIONS = orjson.OPT_SORT_KEYS


class SampleWriter:
    """Writes samples to the shards of a draft; use as a context manager.

    `name_of_split(0)` names the first shard; the next ones follow when `max_bytes` of tar would be
    exceeded. Without samples no shard is written.
    """

    def __init__(
        self,
        draft: Draft,
        name_of_split: Callable[[int], str],
        *,
        max_bytes: int | None = None,
        layout: Layout = "dotted",
    ) -> None:
        self._draft, self._name_of_split = draft, name_of_split
        self._layout = layout
        self._max_bytes = inf if max_bytes is None else max_bytes
        self._num_splits = 0
        self._tar: TarWriter | None = None
        self._rows = IndexRows()

    def add(self, sample: Sample, sizes: Mapping[str, MediaSize] | None = None) -> None:
        """Append a sample; `sizes` gives what is known of its media, by their names."""
        planned = plan_sample(sample.key, sample_members(sample), self._layout)
        start = self._tar_with_room(planned.num_bytes).append(planned)
        self._rows.add(sample.key, start, planned.exts, planned.offsets, planned.sizes)
        self._rows.describe(
            [sizes.get(ext) for ext in planned.exts] if sizes else (),
            sum(len(segment.text) for segment in sample.document.segments),
            content_hash(sample),
            sample.origin.source if sample.origin else "",
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if kind is None:
            self._finish_shard()
        elif self._tar is not None:
            self._tar.abandon()

    def _tar_with_room(self, num_bytes: int) -> TarWriter:
        tar = self._tar
        if tar is not None and tar.num_bytes + num_bytes + len(END_OF_TAR) > self._max_bytes:
            self._finish_shard()
            tar = None
        if tar is None:
            name = self._name_of_split(self._num_splits)
            tar = self._tar = TarWriter(self._draft.file(name, "tar"))
        return tar

    def _finish_shard(self) -> None:
        if self._tar is None:
            return
        name, end = self._name_of_split(self._num_splits), self._tar.num_bytes
        self._tar.close()
        self._rows.write(self._draft.file(name, "idx"), end=end, num_bytes=self._tar.num_bytes)
        self._draft.finish(name, num_samples=len(self._rows))
        self._tar, self._rows = None, IndexRows()
        self._num_splits += 1


def sample_members(sample: Sample) -> list[tuple[str, Content]]:
    """Return extension and content of each member: json, txt for a caption pair, the media."""
    for name in sample.media:
        if name in RESERVED:
            raise SampleError("bad extension", f"a medium of {sample.key!r} is named {name!r}")
    for segment in sample.document.media():
        if segment.media not in sample.media:
            raise SampleError("missing media", f"{sample.key!r} has no medium {segment.media!r}")
    members: list[tuple[str, Content]] = [("json", _to_json(sample))]
    caption = _caption(sample)
    if caption is not None:
        members.append(("txt", caption.encode()))
    members.extend(sample.media.items())
    return members


def content_hash(sample: Sample) -> int:
    """Return the xxh3-128 of what a sample says and shows; key, origin and names do not count."""
    hasher = xxhash.xxh3_128()
    segments = [(s.kind, s.text, s.role, s.turn, s.time_s) for s in sample.document.segments]
    hasher.update(orjson.dumps(segments))
    if EXTRA_NAME in sample.extra:
        hasher.update(orjson.dumps(sample.extra[EXTRA_NAME], option=JSON_OPTIONS))
    for content in sample.media.values():
        hasher.update(len(content).to_bytes(8, "little"))
        hasher.update(content)
    return int(hasher.intdigest())


def _to_json(sample: Sample) -> bytes:
    try:
        return orjson.dumps(sample_to_plain(sample), option=JSON_OPTIONS)
    except TypeError as error:
        raise SampleError("not JSON", f"{sample.key!r}: {error}") from error


def _caption(sample: Sample) -> str | None:
    segments = sample.document.segments
    texts = [segment.text for segment in segments if segment.kind == "text"]
    return texts[0] if len(texts) == 1 and len(segments) == 2 else None
