"""Packed samples: the fields in which tars and MDS shards store a row or a pack, read back.

    input_ids      the ids of all documents after each other
    loss_mask      1 where a token is learned; all are if it is missing
    lengths, keys  of the documents, in order, if shardmill wrote it
    media          where the tokens of each medium lie, if shardmill wrote it
    image          the names of the images

`rows.packed_samples` makes them. Without "media", the runs of the space's placeholder are the
images: `im_patch` between `im_start` and `im_end`, as video pipelines write them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from math import isqrt
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from shardmill.errors import ConfigError, SampleError
from shardmill.model.manifest import shards_digest
from shardmill.model.sample import SEGMENT_KINDS, Origin
from shardmill.model.space import TokenSpace
from shardmill.model.tokenrow import MediaSpan, TokenRow, spans_of
from shardmill.shards.ledger import open_manifest
from shardmill.shards.samples import SampleDataset, open_samples

# No pack is nearly as long: a list of more numbers is not what it says it is.
MAX_IDS = 1 << 24
# What a packed sample has, its ids in its JSON or in a member beside it.
MARKS = ({"input_ids"}, {"lengths", "keys", "media"})
BAD = "not a packed sample"
MISMATCH = "images and placeholders do not match"


def read_media(fields: Mapping[str, Any], samples: SampleDataset) -> list[tuple[str, memoryview]]:
    """Return (extension, bytes) of each medium of a packed sample, from the folder of samples."""
    owners = [fields["keys"][medium["document"]] for medium in fields["media"]]
    found = []
    for medium, key, number in zip(fields["media"], owners, samples.find_behind(owners).tolist()):
        raw = {} if number < 0 else samples.raw(number)
        name = medium["name"]
        if name not in raw:
            raise ConfigError(f"{samples.folder} has no medium {name!r} of sample {key!r}")
        found.append((name.rpartition(".")[2], raw[name]))
    return found


@lru_cache(maxsize=1)
def open_media(folder: Path) -> SampleDataset:
    """Return the folder of samples whose media are copied, opened once a process."""
    return open_samples(folder)


def identity_of(folder: Path | None) -> str:
    """Return what stands for the content of a finished folder, in the digest of units."""
    return "" if folder is None else shards_digest(open_manifest(folder).shards)


def parse_packed(raw: bytes | memoryview, key: str) -> dict[str, Any]:
    """Return the fields of a packed sample's JSON."""
    try:
        plain = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise SampleError(BAD, f"the json of {key!r}: {error}") from error
    if not isinstance(plain, dict) or not any(names <= plain.keys() for names in MARKS):
        raise SampleError(BAD, f"{key!r} has no 'input_ids'")
    return plain


def packed_row(key: str, fields: Mapping[str, Any], space: TokenSpace, origin: Origin) -> TokenRow:
    """Return a packed sample as one row, whatever documents are in it."""
    ids = _numbers(fields, "input_ids", space.size)
    mask = _numbers(fields, "loss_mask", 2) if "loss_mask" in fields else np.ones(len(ids))
    if len(mask) != len(ids):
        detail = f"{len(ids)} ids, {len(mask)} values of loss_mask"
        raise SampleError("ids and mask differ in length", detail)
    found = "media" not in fields
    media = _found(ids, space, fields) if found else stored_media(fields["media"], len(ids))
    return TokenRow(key=key, ids=ids, loss=spans_of(mask.astype(bool)), media=media, origin=origin)


def packed_documents(row: TokenRow, fields: Mapping[str, Any]) -> tuple[TokenRow, ...]:
    """Return the documents of a packed sample that tells their lengths and keys."""
    lengths, keys = _numbers(fields, "lengths", MAX_IDS).tolist(), fields.get("keys")
    if not isinstance(keys, list) or len(keys) != len(lengths) or sum(lengths) != len(row.ids):
        raise SampleError(BAD, f"{row.key!r}: its lengths, keys and ids do not match")
    ends = np.cumsum(lengths).tolist()
    return tuple(
        cut_document(row, str(key), end - length, end)
        for key, length, end in zip(keys, lengths, ends)
    )


def cut_document(row: TokenRow, key: str, start: int, end: int) -> TokenRow:
    """Return the tokens start .. end of a row as a row of its own.

    A loss span (2, 6), tokens 2 to 7, cut to 4 .. 10 is (0, 4): tokens 4 to 7.
    """
    first = np.maximum(row.loss[:, 0], start)
    last = np.minimum(row.loss.sum(axis=1), end)
    loss = np.stack([first - start, last - first], axis=1)[last > first]
    media = tuple(
        replace(span, position=span.position - start)
        for span in row.media
        if start <= span.start and span.end <= end
    )
    ids = row.ids[start:end]
    return replace(row, key=key, ids=ids, loss=loss, media=media, continues=start > 0)


def _numbers(fields: Mapping[str, Any], name: str, end: int) -> NDArray[np.int64]:
    values = fields.get(name)
    if not isinstance(values, list | np.ndarray) or len(values) > MAX_IDS:
        raise SampleError(BAD, f"{name!r} is no list of numbers")
    try:
        numbers = np.asarray(values, np.int64)
    except (ValueError, TypeError, OverflowError) as error:
        raise SampleError(BAD, f"{name!r}: {error}") from error
    if numbers.ndim != 1:
        raise SampleError(BAD, f"{name!r} is no list of numbers")
    if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < end:
        detail = f"{name!r} reaches from {numbers.min()} to {numbers.max()}, not 0 to {end - 1}"
        raise SampleError("id out of range", detail)
    return numbers


def _found(
    ids: NDArray[np.int64], space: TokenSpace, fields: Mapping[str, Any]
) -> tuple[MediaSpan, ...]:
    """Return the runs of placeholders; there must be as many as images."""
    names = space.names
    if not {"im_patch", "im_start", "im_end"} <= names.keys():
        return ()
    starts = np.flatnonzero(ids == names["im_start"]).tolist()
    ends = np.flatnonzero(ids == names["im_end"]).tolist()
    given = fields.get("image")
    num_images = len(given) if isinstance(given, list) else len(starts)
    if not num_images == len(starts) == len(ends):
        detail = f"{num_images} images, {len(starts)} im_start, {len(ends)} im_end"
        raise SampleError(MISMATCH, detail)
    for start, end in zip(starts, ends):
        if end <= start or not (ids[start + 1 : end] == names["im_patch"]).all():
            raise SampleError(MISMATCH, f"im_start at {start} is followed by other tokens")
    return tuple(
        _image(number, start + 1, end - start - 1, num_images)
        for number, (start, end) in enumerate(zip(starts, ends))
    )


def _image(number: int, position: int, count: int, num_images: int) -> MediaSpan:
    side = isqrt(count)
    grid = (1, side, side) if side * side == count else (1, 1, count)
    # As `ingest` names the images of the same tar, so that tokens and samples can be joined.
    name = "jpg" if num_images == 1 else f"{number}.jpg"
    return MediaSpan(
        name=name, kind="image", position=position, num_tokens=count, grid=grid, before=1, after=1
    )


def stored_media(stored: Any, length: int) -> tuple[MediaSpan, ...]:
    """Return the media of a row of so many tokens, as `rows.batch_media` writes them."""
    try:
        spans = tuple(_stored_medium(medium) for medium in stored)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SampleError(BAD, f"its media: {error!r}") from error
    for span in spans:
        if span.start < 0 or span.end > length or span.kind not in SEGMENT_KINDS[1:]:
            raise SampleError(BAD, "a medium lies outside of its tokens")
    return spans


def _stored_medium(plain: Mapping[str, Any]) -> MediaSpan:
    t, h, w = plain["grid"]
    return MediaSpan(
        name=str(plain.get("name", "")),
        kind=plain["kind"],
        position=int(plain["position"]),
        num_tokens=int(plain["num_tokens"]),
        grid=(int(t), int(h), int(w)),
        before=int(plain.get("before", 0)),
        after=int(plain.get("after", 0)),
    )
