"""Texts with the codes of at most one image each, a thousand at a time as flat arrays.

Where the samples of a batch are caption pairs, and the code shard has the same keys in the same
order, all is taken from the indexes at once; else each sample is looked at by itself.

Samples as rows of a text with at most one image: its codes, or its bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import SampleError
from shardmill.formats.format import ExportInput, Piece
from shardmill.formats.rows import continues, is_utf8
from shardmill.model.stage import Tally
from shardmill.shards.codes import CodedImage, CodeJoin, CodeShard
from shardmill.shards.samples import Members, SampleShard, parse_sample
from shardmill.shards.weave import Column, between, weave


@dataclass(frozen=True, slots=True, eq=False)
class PairRow:
    """A text, and the codes of its image or its name in `raw`; neither for plain text."""

    key: str
    text: str
    codes: CodedImage | None
    medium: str | None
    raw: Members


def iter_pairs(
    source: ExportInput, name: str, shard: SampleShard, rows: range, tally: Tally
) -> Iterator[PairRow]:
    """Yield samples of a shard that are pairs or texts; each other one is skipped by its reason.

    All of them are counted in; whoever takes a row counts it as kept.
    """
    for key, raw in _member_names(shard, rows):
        tally.num_in += 1
        try:
            row = _row(source, name, key, raw)
        except SampleError as error:
            tally.skip(key, error)
        else:
            yield row


def _member_names(shard: SampleShard, rows: range) -> Iterator[tuple[str, Members]]:
    if shard.blob.mapped() is None:
        yield from shard.iter_raw(rows.start, rows.stop)
    else:
        yield from ((shard.index.keys[number], shard.raw(number)) for number in rows)


def _row(source: ExportInput, shard_name: str, key: str, raw: Members) -> PairRow:
    document = parse_sample(key, raw).document
    media = document.media()
    if not media:
        return PairRow(key, document.text, _codes_alone(source, shard_name, key), None, raw)
    if len(media) > 1 or media[0].kind != "image":
        kinds = ", ".join(segment.kind for segment in media)
        raise SampleError("not one image and text", f"it has {kinds}")
    if source.codes is None:
        return PairRow(key, document.text, None, media[0].media, raw)
    images = source.codes.images(key, shard_name)
    if len(images) != 1:
        raise SampleError("no image codes", f"{key!r} has {len(images)} images in codes")
    return PairRow(key, document.text, images[0], media[0].media, raw)


def _codes_alone(source: ExportInput, shard_name: str, key: str) -> CodedImage | None:
    """Return the codes of an image that the sample itself does not hold any more."""
    if source.codes is None:
        return None
    try:
        images = source.codes.images(key, shard_name)
    except SampleError:  # a plain text of which the codes do not know
        return None
    return images[0] if len(images) == 1 else None


BATCH_ROWS = 2000


@dataclass(frozen=True, slots=True, eq=False)
class PairBatch:
    """Rows in order; row i has the bytes text_bounds[i] to text_bounds[i + 1] of `text`.

    `num_codes` is 0 for plain text; `codes` holds those of all rows, one row after the other.
    """

    text: bytes
    text_bounds: NDArray[np.int64]
    codes: NDArray[Any]
    num_codes: NDArray[np.int64]
    width: NDArray[np.int64]
    height: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.num_codes)

    @property
    def num_chars(self) -> NDArray[np.int64]:
        """The characters of each text."""
        if self.text.isascii():
            return np.diff(self.text_bounds)
        before = np.concatenate([[0], np.cumsum(~continues(self.text))])
        return np.diff(before[self.text_bounds])

    @property
    def code_bounds(self) -> NDArray[np.int64]:
        """Where the codes of each row begin, and the end."""
        return np.concatenate([[0], np.cumsum(self.num_codes)])

    @property
    def texts(self) -> Column:
        """The text of each row, in UTF-8."""
        return between(np.frombuffer(self.text, np.uint8), self.text_bounds)


def pair_batches(
    source: ExportInput, piece: Piece, tally: Tally, size: tuple[int, int] | None
) -> Iterator[PairBatch]:
    """Yield the rows of a unit and keep its books.

    Images without codes, or of another size, are skipped; plain texts need no codes.
    """
    for part in piece.slices:
        name = source.shards[part.shard].name
        with source.sample_shard(part.shard) as shard:
            aligned = _aligned(source.codes, name, shard)
            for start in range(part.start, part.stop, BATCH_ROWS):
                rows = range(start, min(start + BATCH_ROWS, part.stop))
                batch = None if aligned is None else _bulk(shard, aligned, rows)
                if batch is None or not _has_size(batch, size):
                    pairs = iter_pairs(source, name, shard, rows, tally)
                    batch = _gathered(list(_fitting(pairs, size, tally)))
                else:
                    tally.num_in += len(rows)
                tally.num_kept += len(batch)
                yield batch


def _aligned(codes: CodeJoin | None, name: str, shard: SampleShard) -> CodeShard | None:
    """Return the codes of a shard if they are of the same samples in the same order."""
    found = None if codes is None else codes.shard(name)
    if found is None or len(found) != len(shard) or shard.blob.mapped() is None:
        return None
    same = all(
        np.array_equal(shard.index.arrays[column], found.arrays[column])
        for column in ("key_bounds", "key_bytes")
    )
    return found if same else None


def _bulk(shard: SampleShard, codes: CodeShard, rows: range) -> PairBatch | None:
    """Return the rows if each is one image with codes and a text, else None."""
    places = _caption_members(shard, rows)
    first = codes.arrays["first"][rows.start : rows.stop + 1].astype(np.int64)
    if places is None or (np.diff(first) != 1).any():
        return None
    captions = _members(shard, places)
    if captions is None:
        return None
    text_bounds = np.concatenate([[0], np.cumsum(captions.lengths)])
    starts = codes.arrays["start"][first[0] : first[-1] + 1].astype(np.int64)
    images = slice(int(first[0]), int(first[-1]))
    batch = PairBatch(
        weave([captions]).data.tobytes(),
        text_bounds,
        codes.codes[starts[0] : starts[-1]],
        np.diff(starts),
        codes.arrays["width"][images].astype(np.int64) * codes.factor,
        codes.arrays["height"][images].astype(np.int64) * codes.factor,
    )
    return batch if is_utf8(batch.text, batch.text_bounds[:-1]) else None


def _caption_members(shard: SampleShard, rows: range) -> NDArray[np.int64] | None:
    """Return the number of the member "txt" of each sample, None if one has none."""
    index = shard.index
    if "txt" not in index.exts:
        return None
    first = index.arrays["first"][rows.start : rows.stop + 1].astype(np.int64)
    is_text = index.arrays["ext"][first[0] : first[-1]] == index.exts.index("txt")
    places = np.flatnonzero(is_text) + first[0]
    owners = np.searchsorted(first, places, side="right") - 1
    return places if np.array_equal(owners, np.arange(len(rows))) else None


def _members(shard: SampleShard, numbers: NDArray[np.int64]) -> Column | None:
    """Return the bytes of some members where they lie, None if they claim to lie elsewhere."""
    whole, columns = shard.blob.mapped(), shard.index.arrays
    assert whole is not None
    offsets, sizes = (columns[name][numbers].astype(np.int64) for name in ("offset", "size"))
    if len(numbers) and int((offsets + sizes).max()) > len(whole):
        return None
    return Column(np.frombuffer(whole, np.uint8), offsets, sizes)


def _has_size(batch: PairBatch, size: tuple[int, int] | None) -> bool:
    return size is None or bool(((batch.width == size[0]) & (batch.height == size[1])).all())


def _fitting(
    rows: Iterator[PairRow], size: tuple[int, int] | None, tally: Tally
) -> Iterator[PairRow]:
    for row in rows:
        found = None if row.codes is None else (row.codes.width, row.codes.height)
        if row.medium is not None and found is None:
            tally.skip(row.key, SampleError("no image codes", "name their folder with --codes"))
        elif size is None or found in (None, size):
            yield row
        else:
            assert found is not None
            reason = f"not {size[0]} x {size[1]} pixels"
            tally.skip(row.key, SampleError(reason, f"{found[0]} x {found[1]}"))


def _gathered(rows: Sequence[PairRow]) -> PairBatch:
    texts = [row.text.encode() for row in rows]
    codes = [row.codes.codes for row in rows if row.codes]
    return PairBatch(
        b"".join(texts),
        np.cumsum([0, *map(len, texts)]),
        np.concatenate(codes) if codes else np.empty(0, np.uint16),
        np.array([len(row.codes.codes) if row.codes else 0 for row in rows], np.int64),
        np.array([row.codes.width if row.codes else 0 for row in rows], np.int64),
        np.array([row.codes.height if row.codes else 0 for row in rows], np.int64),
    )
