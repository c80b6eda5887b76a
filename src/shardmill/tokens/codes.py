"""Image codes that exist already: where the codes of a sample's pictures come from.

A code source is a frozen dataclass; `open` yields a live `CodeReader`. `FieldCodes` reads them from
the sample itself: a list of numbers, JSON text of one, or a `.npy` or `.json` member.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from math import isqrt
from typing import Any, Protocol, runtime_checkable

import numpy as np
import orjson
from numpy.typing import NDArray

from shardmill.errors import SampleError
from shardmill.model.sample import Document, Sample, Segment

ABSENT: tuple[Any, ...] = (None, "", "no", [], {})
MAX_CODES = 1 << 24


@dataclass(frozen=True, slots=True, eq=False)
class Codes:
    """Local codes of one picture, row by row."""

    height: int
    width: int
    values: NDArray[Any]


class CodeReader(Protocol):
    """A live source of codes."""

    def complete(self, sample: Sample) -> Sample:
        """Return the sample with a segment for each picture of which only the codes are left."""

    def codes(self, sample: Sample, medium: str) -> Codes:
        """Return the codes of a medium of the sample; `SampleError` if there are none."""


@runtime_checkable
class CodeSource(Protocol):
    """A source of codes as configuration: a frozen dataclass."""

    def open(self) -> AbstractContextManager[CodeReader]:
        """Yield the live reader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldCodes:
    """Codes in a field of the row (Liquid's `vqcode_512`) or a member (`npy`) of the sample.

    A field may hold one picture, or an object that maps media to codes. A sample that has the
    field but no picture gets a picture in front of its text. `height` is the number of rows;
    without it the codes are a square, or have the shape of their array.
    """

    field: str
    height: int | None = None

    @contextmanager
    def open(self) -> Iterator[CodeReader]:
        """Yield the reader, which is this spec itself."""
        yield self

    def complete(self, sample: Sample) -> Sample:
        """Return the sample with its picture as first segment, if only codes stand for it."""
        value = self._value(sample)
        is_absent = not isinstance(value, np.ndarray) and value in ABSENT
        if sample.document.media("image") or is_absent:
            return sample
        return with_pictures(sample, [self.field])

    def codes(self, sample: Sample, medium: str) -> Codes:
        """Return the codes of a medium of the sample."""
        value = self._value(sample)
        if isinstance(value, dict):
            value = value.get(medium)
        if isinstance(value, np.ndarray):
            return self._shaped(value)
        if value in ABSENT:
            raise SampleError("no image codes", f"field {self.field!r} has none for {medium!r}")
        return self._shaped(_as_array(value, self.field))

    def _value(self, sample: Sample) -> Any:
        if self.field in sample.media:
            return _member(self.field, bytes(sample.media[self.field]))
        value = sample.extra.get(self.field)
        if isinstance(value, str) and value not in ABSENT:
            return _parsed(value, self.field)
        return value

    def _shaped(self, values: NDArray[Any]) -> Codes:
        if not 0 < values.size <= MAX_CODES or values.dtype.kind not in "iu":
            raise SampleError("bad image codes", f"{values.size} values of type {values.dtype}")
        if values.ndim == 2 and self.height is None:
            return Codes(values.shape[0], values.shape[1], values.reshape(-1))
        height = self.height or isqrt(values.size)
        if values.size % height or (self.height is None and height * height != values.size):
            raise SampleError("bad image codes", f"{values.size} codes are no {height} rows")
        return Codes(height, values.size // height, values.reshape(-1))


def with_pictures(sample: Sample, names: Sequence[str]) -> Sample:
    """Return the sample with pictures in front of its text, said in the same breath."""
    segments = sample.document.segments
    role, turn = (segments[0].role, segments[0].turn) if segments else (None, 0)
    pictures = (Segment(kind="image", media=name, role=role, turn=turn) for name in names)
    return replace(sample, document=Document((*pictures, *segments)))


def _parsed(value: str | bytes, field: str) -> Any:
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise SampleError("bad image codes", f"field {field!r} is not JSON: {error}") from error


def _member(name: str, content: bytes) -> Any:
    if not name.endswith("npy"):
        return _parsed(content, name)
    try:
        return np.load(io.BytesIO(content), allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise SampleError("bad image codes", f"member {name!r} is not .npy: {error}") from error


def _as_array(value: Any, field: str) -> NDArray[Any]:
    try:
        return np.asarray(value)
    except ValueError as error:
        raise SampleError("bad image codes", f"field {field!r} is ragged: {error}") from error
