"""Writes sample shards: `K.json` first, then the media, and the index in the same pass.

`K.txt` is added to a document that is exactly one medium and one text, so that readers of caption
pairs work unchanged; the json stays the truth.

A sample shard without some of its samples: the others keep their bytes, header for header.

Runs of neighbours are copied by the kernel, nothing is parsed; the index loses the same rows and
its places move up.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from math import inf
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import orjson
import xxhash
from numpy.typing import NDArray

from shardmill.errors import FormatError, SampleError
from shardmill.model.sample import EXTRA_NAME, MediaSize, Sample, sample_to_plain
from shardmill.model.stage import Draft
from shardmill.model.tokenrow import spans_of
from shardmill.shards.arrays import write_arrays
from shardmill.shards.columns import Strings, pack_strings
from shardmill.shards.tar.header import END_OF_TAR
from shardmill.shards.tar.index import FORMAT, MEMBER_COLUMNS, IndexRows, ShardIndex, open_index
from shardmill.shards.tar.names import Layout
from shardmill.shards.tar.write import Content, TarWriter, plan_sample
from shardmill.storage.atomic import open_to_write

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


COPY_BYTES = 1 << 30


def cut_shard(
    tar_path: Path, index_path: Path, keep: NDArray[np.bool_], new_tar: Path, new_index: Path
) -> None:
    """Write the samples that are kept to a new tar and its index."""
    index = open_index(index_path)
    if tar_path.stat().st_size != index.num_bytes:
        raise FormatError(f"does not have the {index.num_bytes} bytes of its index", path=tar_path)
    num_bytes = _copy_samples(tar_path, index, keep, new_tar)
    meta = {**index.arrays.meta, "num_bytes": num_bytes}
    with open_to_write(new_index) as file:
        write_arrays(file, FORMAT, _cut_arrays(index, keep), meta)


def _copy_samples(tar_path: Path, index: ShardIndex, keep: NDArray[np.bool_], new_tar: Path) -> int:
    start = index.arrays["start"].astype(np.int64)
    with tar_path.open("rb") as source, new_tar.open("wb", buffering=0) as target:
        for first, count in spans_of(keep).tolist():
            _copy(source.fileno(), int(start[first]), int(start[first + count]), target.fileno())
        target.write(END_OF_TAR)
        return target.tell()


def _copy(source: int, start: int, end: int, target: int) -> None:
    while start < end:
        copied = os.sendfile(target, source, start, min(end - start, COPY_BYTES))
        if copied == 0:
            raise OSError(f"the tar ends {end - start} bytes too early")
        start += copied


def _cut_arrays(index: ShardIndex, keep: NDArray[np.bool_]) -> dict[str, NDArray[Any]]:
    arrays = index.arrays
    first, start = (arrays[name].astype(np.int64) for name in ("first", "start"))
    counts, sizes = np.diff(first), np.diff(start)
    of_member = np.repeat(keep, counts)
    new_start = np.concatenate([[0], np.cumsum(sizes[keep])])
    # How far each kept sample moves up, for each of its members.
    moved = np.repeat(start[:-1][keep] - new_start[:-1], counts[keep])
    order = arrays["hash_order"].astype(np.int64)
    cut = {
        "start": new_start.astype(np.uint64),
        "first": np.concatenate([[0], np.cumsum(counts[keep])]).astype(np.uint64),
        "offset": (arrays["offset"][of_member].astype(np.int64) - moved).astype(np.uint64),
        **_cut_keys(index.keys, keep),
        "hash": arrays["hash"][keep[order]],
        "hash_order": (np.cumsum(keep) - 1)[order[keep[order]]].astype(np.uint32),
    }
    return {name: cut[name] if name in cut else _cut_column(index, name, keep, of_member)
            for name in arrays}  # fmt: skip


def _cut_column(
    index: ShardIndex, name: str, keep: NDArray[np.bool_], of_member: NDArray[np.bool_]
) -> NDArray[Any]:
    column = index.arrays[name]
    if name in ("size", "ext", *MEMBER_COLUMNS):
        return column[of_member]
    is_table = name.endswith(("_bytes", "_bounds"))
    return column if is_table else column[keep]


def _cut_keys(keys: Strings, keep: NDArray[np.bool_]) -> dict[str, NDArray[Any]]:
    return pack_strings("key", [bytes(keys.raw(n)) for n in np.flatnonzero(keep).tolist()])
