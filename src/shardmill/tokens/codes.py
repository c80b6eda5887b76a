"""Where the codes of a sample's images come from, when it is tokenized.

A code source is a frozen dataclass; `open` yields a live `CodeReader`. `FieldCodes` reads codes
from the sample itself: a list of numbers, JSON text of one, or a `.npy` or `.json` member.
`ShardCodes` joins code shards by key and medium, so that images are encoded once however often they
are tokenized.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from math import isqrt
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import orjson
from numpy.typing import NDArray

from shardmill.errors import ConfigError, SampleError
from shardmill.model.sample import Document, Sample, Segment
from shardmill.model.space import TokenSpace
from shardmill.shards.arrays import load_npy
from shardmill.shards.codes import CodeJoin, join_codes

ABSENT: tuple[Any, ...] = (None, "", "no", [], {})
MAX_CODES = 1 << 24  # a damaged field must not fill the memory; 4096 x 4096 codes


class CodeReader(Protocol):
    """A live source of codes."""

    def complete(self, sample: Sample) -> Sample:
        """Return the sample with a segment for each image of which only the codes are left."""

    def codes(self, sample: Sample, medium: str) -> NDArray[Any]:
        """Return the local codes [height, width] of a medium of the sample.

        A medium without codes is a `SampleError`.
        """


@runtime_checkable
class CodeSource(Protocol):
    """A source of codes as configuration: a frozen dataclass."""

    def open(self) -> AbstractContextManager[CodeReader]:
        """Yield the live reader."""

    def reads(self) -> Mapping[str, tuple[str, ...]]:
        """Return the folders that it reads besides the samples, by role."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldCodes:
    """Codes in a field of the row (Liquid's `vqcode_512`) or a member (`npy`) of the sample.

    A field may hold one image, or an object that maps media to codes. A sample that has the
    field but no image gets an image in front of its text. `height` is the number of rows; without
    it the codes have the shape of their array, or that of the row's `width` and `height` in pixels
    if these are as many squares as there are codes, or they are a square.
    """

    field: str
    height: int | None = None

    def reads(self) -> Mapping[str, tuple[str, ...]]:
        """Return nothing: the codes lie in the samples."""
        return {}

    @contextmanager
    def open(self) -> Iterator[CodeReader]:
        """Yield the reader, which is this spec itself."""
        yield self

    def complete(self, sample: Sample) -> Sample:
        """Return the sample with its image as first segment, if only codes stand for it."""
        value = self._value(sample)
        is_absent = not isinstance(value, np.ndarray) and value in ABSENT
        if sample.document.media("image") or is_absent:
            return sample
        return with_images(sample, [self.field])

    def codes(self, sample: Sample, medium: str) -> NDArray[Any]:
        """Return the codes of a medium of the sample."""
        value = self._value(sample)
        if isinstance(value, dict):
            value = value.get(medium)
        if isinstance(value, np.ndarray):
            return self._shaped(value, sample)
        if value in ABSENT:
            raise SampleError("no image codes", f"field {self.field!r} has none for {medium!r}")
        return self._shaped(_as_array(value, self.field), sample)

    def _value(self, sample: Sample) -> Any:
        if self.field in sample.media:
            return _member(self.field, bytes(sample.media[self.field]))
        value = sample.extra.get(self.field)
        if isinstance(value, str) and value not in ABSENT:
            return _parsed(value, self.field)
        return value

    def _shaped(self, values: NDArray[Any], sample: Sample) -> NDArray[Any]:
        if not 0 < values.size <= MAX_CODES or values.dtype.kind not in "iu":
            raise SampleError("bad image codes", f"{values.size} values of type {values.dtype}")
        if values.ndim == 2 and self.height is None:
            return values
        height = self.height or _height_in(sample.extra, values.size)
        if height is None or values.size % height:
            what = "square, and width and height do not fit" if height is None else f"{height} rows"
            raise SampleError("bad image codes", f"{values.size} codes are no {what}")
        return values.reshape(height, -1)


def _height_in(fields: Mapping[str, Any], num_codes: int) -> int | None:
    """Return the rows of codes of an image of `width` x `height` pixels, else those of a square.

    960 codes of 640 x 384 are squares of 16 pixels, since 640 * 384 = 960 * 16 * 16: 24 rows.
    """
    with suppress(KeyError, TypeError, ValueError, OverflowError):
        width, height = int(fields["width"]), int(fields["height"])
        factor = isqrt(width * height // num_codes)
        is_whole = factor and factor**2 * num_codes == width * height and not height % factor
        if is_whole and height > 0:
            return height // factor
    side = isqrt(num_codes)
    return side if side * side == num_codes else None


def with_images(sample: Sample, names: Sequence[str]) -> Sample:
    """Return the sample with images in front of its text, said in the same breath."""
    segments = sample.document.segments
    role, turn = (segments[0].role, segments[0].turn) if segments else (None, 0)
    images = (Segment(kind="image", media=name, role=role, turn=turn) for name in names)
    return replace(sample, document=Document((*images, *segments)))


def _parsed(value: str | bytes, field: str) -> Any:
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise SampleError("bad image codes", f"field {field!r} is not JSON: {error}") from error


def _member(name: str, content: bytes) -> Any:
    if not name.endswith("npy"):
        return _parsed(content, name)
    return load_npy(content, "bad image codes", f"member {name!r}")


def _as_array(value: Any, field: str) -> NDArray[Any]:
    try:
        return np.asarray(value)
    except ValueError as error:
        raise SampleError("bad image codes", f"field {field!r} is ragged: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardCodes:
    """A finished folder of code shards; `identity` says which one, so that it cannot change."""

    folder: Path
    identity: str = ""

    def __post_init__(self) -> None:
        if not self.identity:
            object.__setattr__(self, "identity", join_codes(self.folder).identity)

    def reads(self) -> Mapping[str, tuple[str, ...]]:
        """Return the folder of codes."""
        return {"codes": (str(self.folder),)}

    @property
    def num_codes(self) -> int:
        """The size of the codebook."""
        return join_codes(self.folder).num_codes

    def check_space(self, space: TokenSpace) -> None:
        """Raise `ConfigError` if the codebook has more codes than a token space has room for."""
        if self.num_codes > space.num_codes:
            raise ConfigError(
                f"the codes in {self.folder} are of a codebook of {self.num_codes}, the token "
                f"space has room for {space.num_codes}: give it num_codes={self.num_codes} "
                "(--space)"
            )

    @contextmanager
    def open(self) -> Iterator[CodeReader]:
        """Yield the reader over all shards of the folder."""
        join = join_codes(self.folder)
        if join.identity != self.identity:
            raise ConfigError(f"{self.folder} has other codes than when this run was planned")
        yield ShardReader(join)


@dataclass(frozen=True, slots=True)
class ShardReader:
    """Finds the codes of a sample by its key."""

    join: CodeJoin

    def complete(self, sample: Sample) -> Sample:
        """Return the sample with the images in front of which only codes are left."""
        if sample.document.media("image"):
            return sample
        try:
            images = self.join.images(sample.key)
        except SampleError:  # a plain text of which the codes do not know
            return sample
        return with_images(sample, [image.medium for image in images])

    def codes(self, sample: Sample, medium: str) -> NDArray[Any]:
        """Return the codes of a medium of the sample.

        One that was filtered when codes were made is filtered here, and costs no budget either.
        """
        for image in self.join.images(sample.key):
            if image.medium == medium:
                return image.codes
        raise SampleError("no image codes", f"{sample.key!r} has none for {medium!r}")
