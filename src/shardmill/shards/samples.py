"""Sample shards: WebDataset tars with an index each, read and written.

A sample `K` is the member `K.json` (see `model.sample`), then its media. `K.txt` is added to a
document that is exactly one medium and one text, so that readers of caption pairs work unchanged;
the json stays the truth. The index (`tar.index`) is written in the same pass.

`SampleShard` reads one tar through its index. `SampleDataset` is a whole folder as one list: a
folder of ours (tar and index side by side), or one that `shardmill index` made, whose indexes
point at tars elsewhere.
"""

from __future__ import annotations

import resource
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import accumulate, chain, pairwise
from math import inf
from pathlib import Path
from typing import Self, TypeAlias

import numpy as np
import orjson
import xxhash
from numpy.typing import NDArray

from shardmill.errors import ConfigError, Damaged, FormatError, SampleError
from shardmill.model.manifest import Manifest, ShardEntry
from shardmill.model.sample import (
    EXTRA_NAME,
    INGEST_FIRST,
    MediaSize,
    Sample,
    sample_from_plain,
    sample_to_plain,
)
from shardmill.model.stage import Draft
from shardmill.model.tokenrow import sample_key
from shardmill.shards.arrays import encoded, find_keys
from shardmill.shards.commit import REPAIR, verify_file
from shardmill.shards.ledger import Ledger, open_manifest
from shardmill.shards.tar.header import END_OF_TAR, Layout
from shardmill.shards.tar.index import IndexedTar, IndexRows, TarIndex, index_of, open_tar_index
from shardmill.shards.tar.read import Grouped, group_members, walk_tar
from shardmill.shards.tar.write import Content, lay_out_sample
from shardmill.storage.blob import Blob, open_blob
from shardmill.storage.cache import StagedCopies, fetch_copies
from shardmill.storage.path import as_path

# Samples that are read in order come by chunks of so many bytes; a larger one comes alone.
CHUNK_BYTES = 4 << 20
MAX_OPEN = 1024
# The tar, and the maps of tar and index: each map holds a descriptor of its own.
FILES_A_SHARD = 3
NOT_MEDIA = ("json", "txt")

# The members of a sample by extension.
Members: TypeAlias = dict[str, memoryview]


class SampleShard:
    """The samples of one tar; numbers count from 0. Views hold on to the memory they show."""

    def __init__(self, blob: Blob, index: TarIndex) -> None:
        self.blob, self.index = blob, index
        self._num_samples, self._whole = len(index), blob.mapped()
        # At hand, since looking them up costs as much as the rest of a random read.
        self._views, self._copies = index.table.views, index.table.copies
        if blob.num_bytes != index.num_bytes:
            raise FormatError(
                f"has {blob.num_bytes} bytes, its index {index.arrays.path} says "
                f"{index.num_bytes}: make the index again",
                path=blob.url,
            )

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, number: int) -> Sample:
        return parse_sample(self.index.keys[number], self.raw(number))

    def __iter__(self) -> Iterator[Sample]:
        return (parse_sample(key, raw) for key, raw in self.iter_raw())

    def find(self, key: str) -> int | None:
        """Return the number of the sample with this key, or None."""
        return self.index.find(key)

    def raw(self, number: int) -> Members:
        """Return the members of a sample by extension, as they lie in the tar."""
        if not 0 <= number < self._num_samples:
            raise self._absent(number)
        if self._whole is not None:
            return self._views(number, self._whole, 0)
        start, end = self.index.span(number)
        (chunk,) = self.blob.view_all([(start, end - start)])
        return self._views(number, chunk, start)

    def copies(self, number: int) -> dict[str, bytes]:
        """Return the same as bytes, which hold on to nothing."""
        if self._whole is None:
            return {ext: bytes(view) for ext, view in self.raw(number).items()}
        if not 0 <= number < self._num_samples:
            raise self._absent(number)
        return self._copies(number, self._whole, 0)

    def iter_raw(self, first: int = 0, last: int | None = None) -> Iterator[tuple[str, Members]]:
        """Yield key and members of the samples first .. last in order, read in large chunks."""
        chunks = self._chunks(first, len(self) if last is None else last)
        for chunk, following in pairwise(chain(chunks, [None])):
            assert chunk is not None
            if following is not None:
                self.blob.prefetch([following[1]])
            numbers, (start, length) = chunk
            content = memoryview(self.blob.read(start, length))
            for number in numbers:
                yield self.index.keys[number], self._views(number, content, start)

    def in_order(self, last: int | None = None) -> Iterator[tuple[str, Members]]:
        """Yield key and members of the samples; of a mapped tar only what is looked at is read."""
        if self._whole is None:
            return self.iter_raw(0, last)
        numbers = range(len(self) if last is None else last)
        return ((self.index.keys[number], self.raw(number)) for number in numbers)

    def prefetch(self, numbers: Sequence[int]) -> None:
        """Say that these samples will be read soon."""
        spans = map(self.index.span, numbers)
        self.blob.prefetch([(start, end - start) for start, end in spans])

    def close(self) -> None:
        """Release the file; views that are in use stay valid."""
        self._whole = None
        self.blob.close()

    def _chunks(self, first: int, last: int) -> Iterator[tuple[range, tuple[int, int]]]:
        """Yield neighbouring samples that are read together, and their (offset, length)."""
        number = first
        while number < last:
            start, end = self.index.span(number)
            stop = number + 1
            while stop < last and self.index.span(stop)[1] - start <= CHUNK_BYTES:
                end = self.index.span(stop)[1]
                stop += 1
            yield range(number, stop), (start, end - start)
            number = stop

    def _absent(self, number: int) -> IndexError:
        return IndexError(f"sample {number} of {len(self)} in {self.blob.url}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_shard(url: str, index_path: Path) -> SampleShard:
    """Open a tar by its index."""
    return SampleShard(open_blob(url), open_tar_index(index_path))


def open_entry(folder: Path, entry: ShardEntry, staged: StagedCopies | None = None) -> SampleShard:
    """Open a shard of a folder: its tar, the foreign tar of its index, or a staged copy."""
    index = entry_index(folder, entry)
    url, relative = tar_place(folder, entry, index)
    return SampleShard(open_blob(staged.find(url, relative) if staged else url), index)


def entry_index(folder: Path, entry: ShardEntry) -> TarIndex:
    """Open the index of a shard; it must hold as many samples as the receipt says."""
    path = folder / entry.files["idx"].path
    index = open_tar_index(path)
    if len(index) != entry.num_samples:
        raise FormatError(
            f"holds {len(index)} samples, its receipt says {entry.num_samples}", path=path
        )
    return index


def tar_place(folder: Path, entry: ShardEntry, index: TarIndex) -> tuple[str, str]:
    """Return the path or url of a shard's tar, and the relative path that a copy of it has."""
    if "tar" in entry.files:
        relative = entry.files["tar"].path
        return str(folder / relative), relative
    return foreign_tar(folder, entry.name), f"shards/{entry.name}.tar"


def foreign_tar(folder: Path, shard: str) -> str:
    """Return the path or url of the tar that a shard of an index of tars elsewhere describes."""
    return _foreign(folder, shard)[0]


def foreign_name(folder: Path, shard: str) -> str:
    """Return the name of that tar, which `ingest` puts before the keys of its samples."""
    return _foreign(folder, shard)[1]


def _foreign(folder: Path, shard: str) -> tuple[str, str]:
    path = folder / "units.jsonl"
    try:
        info = path.stat()
        return _foreign_tars(folder, info.st_size, info.st_mtime_ns)[shard]
    except (FileNotFoundError, KeyError) as error:
        raise FormatError(f"does not say where the tar of {shard} is", path=path) from error


@lru_cache(maxsize=8)
def _foreign_tars(folder: Path, *_: int) -> dict[str, tuple[str, str]]:
    units = (unit for unit in Ledger(folder).read_units() if unit.places)
    return {unit.name: (unit.places[0], str(unit.input.get("name"))) for unit in units}


def open_foreign(url: str, *, interleaved: bool = True) -> tuple[SampleShard, Grouped]:
    """Open a tar without an index by walking its headers; also return what the walk found."""
    blob = open_blob(url)
    try:
        walk = walk_tar(blob)
        grouped = group_members(walk, interleaved=interleaved)
        arrays = IndexRows.of(grouped).arrays(as_path(url), end=walk.end, num_bytes=blob.num_bytes)
        return SampleShard(blob, index_of(arrays)), grouped
    except FormatError:
        blob.close()
        raise


def parse_sample(key: str, raw: Members) -> Sample:
    """Return the sample in the members that `SampleWriter` wrote; otherwise a `SampleError`."""
    if "json" not in raw:
        raise SampleError("not a document", f"{key!r} has no json: {INGEST_FIRST}")
    try:
        plain = orjson.loads(raw["json"])
    except orjson.JSONDecodeError as error:
        raise SampleError("not a document", f"the json of {key!r}: {error}") from error
    media = {ext: content for ext, content in raw.items() if ext not in NOT_MEDIA}
    return sample_from_plain(key, plain, media)


class SampleDataset:
    """All samples of a folder by number or key, whichever shard they lie in.

    Shards are opened when first touched; the least recently used one is closed when there are too
    many. Copies of the tars may be staged in `staged_dir`. A dataset can be sent to another
    process, which opens its own files.
    """

    def __init__(
        self, folder: Path, entries: Sequence[ShardEntry], staged_dir: Path | None = None
    ) -> None:
        self.folder, self.staged_dir = folder, staged_dir
        self._staged = None if staged_dir is None else StagedCopies(staged_dir)
        self.entries = tuple(entry for entry in entries if entry.num_samples)
        self._starts = list(accumulate((e.num_samples for e in self.entries), initial=0))
        self._open: OrderedDict[int, SampleShard] = OrderedDict()
        self._max_open = max_open_shards()
        self._is_crowded = len(self.entries) > self._max_open
        self._hashes: tuple[NDArray[np.uint64], NDArray[np.int64]] | None = None
        self._verified: set[int] = set()

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, number: int) -> Sample:
        shard, inside = self.locate(number)
        return self.shard(shard)[inside]

    def __iter__(self) -> Iterator[Sample]:
        return (sample for shard in range(len(self.entries)) for sample in self.shard(shard))

    def __reduce__(self) -> tuple[object, ...]:
        return SampleDataset, (self.folder, self.entries, self.staged_dir)

    def locate(self, number: int) -> tuple[int, int]:
        """Return (shard number, number in the shard) of a sample."""
        shard = bisect_right(self._starts, number) - 1
        if number < 0 or shard >= len(self.entries):
            raise IndexError(f"sample {number} of {len(self)}")
        return shard, number - self._starts[shard]

    def raw(self, number: int) -> Members:
        """Return the members of a sample by extension."""
        shard, inside = self.locate(number)
        return self.shard(shard).raw(inside)

    def copies(self, number: int) -> dict[str, bytes]:
        """Return the members of a sample by extension, as bytes."""
        shard, inside = self.locate(number)
        return self.shard(shard).copies(inside)

    def verify(self, number: int) -> None:
        """Raise `Damaged` unless a sample has the hash of its content that stands in the index."""
        place, inside = self.locate(number)
        shard, entry = self.shard(place), self.entries[place]
        if place not in self._verified:
            verify_file(self.folder / entry.files["idx"].path, entry.files["idx"])
            self._verified.add(place)
        stored = shard.index.column("content")[inside].tolist()
        if not any(stored):
            raise ConfigError(
                f"{self.folder} is an index of tars that others wrote, without checksums of "
                "samples: train without verify, or ingest them first"
            )
        with suppress(SampleError):
            if divmod(content_hash(shard[inside]), 1 << 64) == tuple(stored):
                return
        start, end = shard.index.span(inside)
        raise Damaged(
            f"{shard.blob.url}: sample {inside}, {shard.index.keys[inside]!r}, at the bytes "
            f"{start} to {end}, is not what was written: {REPAIR}"
        )

    def key(self, number: int) -> str:
        """Return the key of a sample."""
        shard, inside = self.locate(number)
        return self.shard(shard).index.keys[inside]

    def find(self, key: str) -> int | None:
        """Return the number of the sample with this key, or None."""
        number = int(self.find_all([key])[0])
        return None if number < 0 else number

    def find_all(self, keys: Sequence[str]) -> NDArray[np.int64]:
        """Return the numbers of the samples with these keys, -1 where there is none."""
        hashes, numbers = self._all_hashes()
        return find_keys(keys, hashes, numbers, lambda number: encoded(self.key(number)))

    def find_behind(self, row_keys: Sequence[str]) -> NDArray[np.int64]:
        """Return the numbers of the samples that rows of tokens were made from, -1 without one."""
        return self.find_all([sample_key(key) for key in row_keys])

    def shard(self, number: int) -> SampleShard:
        """Return an open shard."""
        found = self._open.get(number)
        if found is not None:
            if self._is_crowded:
                self._open.move_to_end(number)
            return found
        while len(self._open) >= self._max_open:
            self._open.popitem(last=False)[1].close()
        found = self._open[number] = open_entry(self.folder, self.entries[number], self._staged)
        return found

    def renew(self) -> bool:
        """Close all shards if more copies have been staged; say whether they have."""
        if self._staged is None or not self._staged.has_news():
            return False
        self.close()
        return True

    def close(self) -> None:
        """Close all shards; they open again when they are needed."""
        while self._open:
            self._open.popitem()[1].close()

    def _all_hashes(self) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        if self._hashes is None:
            fetch_copies(self.folder / entry.files["idx"].path for entry in self.entries)
            hashes = [np.empty(0, np.uint64)]
            numbers = [np.empty(0, np.int64)]
            for entry, start in zip(self.entries, self._starts):
                index = entry_index(self.folder, entry)
                hashes.append(index.arrays["hash"])
                numbers.append(start + index.arrays["hash_order"].astype(np.int64))
            joined = np.concatenate(hashes)
            order = np.argsort(joined, kind="stable")
            self._hashes = joined[order], np.concatenate(numbers)[order]
        return self._hashes


def open_samples(
    folder: Path | str, manifest: Manifest | None = None, *, staged_dir: Path | None = None
) -> SampleDataset:
    """Open a finished folder of sample shards, or of indexes of foreign tars.

    `manifest` is that of the folder, if it is at hand; copies of the tars may be staged in
    `staged_dir`. A folder that is unfinished or holds something else is an error that says so.
    """
    entries = (manifest or open_manifest(folder)).shards
    for entry in entries:
        # Tokens have an idx of their own, that of Megatron, beside their bin.
        if "idx" not in entry.files or "bin" in entry.files:
            raise FormatError(
                f"shard {entry.name} has no index: this is not a folder of samples", path=folder
            )
    return SampleDataset(as_path(folder), entries, staged_dir)


def max_open_shards() -> int:
    """Return how many shards may be open: 1024, or a share of what the process may open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MAX_OPEN
    return max(1, min(MAX_OPEN, soft * 3 // 4 // FILES_A_SHARD))


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
        self._tar: IndexedTar | None = None

    def add(self, sample: Sample, sizes: Mapping[str, MediaSize] | None = None) -> None:
        """Append a sample; `sizes` gives what is known of its media, by their names."""
        planned = lay_out_sample(sample.key, sample_members(sample), self._layout)
        tar = self._tar_with_room(planned.num_bytes)
        tar.append(planned)
        tar.rows.describe(
            [sizes.get(ext) for ext in planned.exts] if sizes else (),
            sum(len(segment.text) for segment in sample.document.segments),
            content_hash(sample),
            sample.origin.source if sample.origin else "",
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._finish_shard()
        elif self._tar is not None:
            self._tar.abandon()

    def _tar_with_room(self, num_bytes: int) -> IndexedTar:
        tar = self._tar
        if tar is not None and tar.num_bytes + num_bytes + len(END_OF_TAR) > self._max_bytes:
            self._finish_shard()
            tar = None
        if tar is None:
            name = self._name_of_split(self._num_splits)
            files = (self._draft.file(name, role) for role in ("tar", "idx"))
            tar = self._tar = IndexedTar(*files)
        return tar

    def _finish_shard(self) -> None:
        if self._tar is None:
            return
        self._tar.close()
        name = self._name_of_split(self._num_splits)
        self._draft.finish(name, num_samples=len(self._tar.rows))
        self._tar = None
        self._num_splits += 1


def sample_members(sample: Sample) -> list[tuple[str, Content]]:
    """Return extension and content of each member: json, txt for a caption pair, the media."""
    for name in sample.media:
        if name in NOT_MEDIA:
            raise SampleError("bad extension", f"a medium of {sample.key!r} is named {name!r}")
    segments = sample.document.segments
    for segment in sample.document.media():
        if segment.media not in sample.media:
            raise SampleError("missing media", f"{sample.key!r} has no medium {segment.media!r}")
    try:
        content = orjson.dumps(sample_to_plain(sample), option=orjson.OPT_SORT_KEYS)
    except TypeError as error:
        raise SampleError("not JSON", f"{sample.key!r}: {error}") from error
    members: list[tuple[str, Content]] = [("json", content)]
    texts = [segment.text for segment in segments if segment.kind == "text"]
    if len(texts) == 1 and len(segments) == 2:
        members.append(("txt", texts[0].encode()))
    members.extend(sample.media.items())
    return members


def content_hash(sample: Sample) -> int:
    """Return the xxh3-128 of what a sample says and shows; key, origin and names do not count."""
    hasher = xxhash.xxh3_128()
    segments = [(s.kind, s.text, s.role, s.turn, s.time_s) for s in sample.document.segments]
    hasher.update(orjson.dumps(segments))
    if EXTRA_NAME in sample.extra:
        hasher.update(orjson.dumps(sample.extra[EXTRA_NAME], option=orjson.OPT_SORT_KEYS))
    for content in sample.media.values():
        # Lengths keep "ab" + "c" apart from "a" + "bc".
        hasher.update(len(content).to_bytes(8, "little"))
        hasher.update(content)
    return int(hasher.intdigest())
