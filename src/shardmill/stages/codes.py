"""Codes: the images of sample shards become code shards, encoded once and joined by key later.

A sample is kept when all its images are; its texts and other media stay where they are. One
image of each unit is also encoded in fp32, and the books say how many codes were equal.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ConfigError, SampleError
from shardmill.machine import count_cpus
from shardmill.media.image.decode import resampler
from shardmill.media.image.geometry import Geometry
from shardmill.model.stage import Draft, Tally, Unit, Work
from shardmill.shards.codes import ROLE, ImageCodes, code_dtype, write_codes
from shardmill.shards.samples import SampleShard, parse_sample
from shardmill.stages.encode import Encoder, Flow, Launch, Outcome
from shardmill.stages.inputs import open_unit, sample_inputs, sample_units, shards_hold_bytes
from shardmill.tokens.vq.tokenizer import ImageTokenizer

Precision = Literal["fp32", "tf32", "fp16"]
COMPARED = "codes compared with fp32"
EQUAL = "codes equal to fp32"
THREADS_VARIABLE = "SHARDMILL_THREADS"
BATCH_VARIABLE = "SHARDMILL_BATCH_PIXELS"
GPU_BATCH_PIXELS = 32 * 512 * 512
CPU_BATCH_PIXELS = 2 * 512 * 512


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodeImages:
    """The spec of an encoding; `tokenizer` is pinned to the values of its weights."""

    version: ClassVar[int] = 1
    content: ClassVar[str] = "codes"

    input_dir: Path
    tokenizer: ImageTokenizer
    geometry: Geometry
    precision: Precision = "fp32"
    allow_truncated: bool = False
    limit: int | None = None

    def __post_init__(self) -> None:
        if not self.tokenizer.identity():
            raise ConfigError("the tokenizer is not pinned to its weights: call pinned() on it")
        if self.limit is not None and self.limit < 0:
            raise ConfigError(f"limit must be 0 or more, got {self.limit}")

    def reads(self) -> Mapping[str, tuple[str, ...]]:
        """Return {role: places} of what is read."""
        return {"samples": (str(self.input_dir),)}

    def units(self) -> Iterator[Unit]:
        """Yield a unit for each shard of samples."""
        return sample_units(self.input_dir, self.limit)

    @contextmanager
    def open(self) -> Iterator[Work]:
        """Load the weights and start the threads, once a process."""
        worker = _Worker(self)
        try:
            yield worker.work
        finally:
            worker.flow.close()

    def units_name_content(self) -> bool:
        """Say that units do: they hold the checksums of a shard's files."""
        return shards_hold_bytes(self.input_dir)

    def inputs(self) -> Mapping[str, Any]:
        """Return the fingerprint of the input's manifest."""
        return sample_inputs(self.input_dir)


class _Worker:
    """What a process holds while it encodes shard after shard."""

    def __init__(self, spec: EncodeImages) -> None:
        from shardmill.tokens.vq.encode import BatchEncoder, choose_device, num_gpus

        self._spec, device = spec, choose_device()
        self._live = spec.tokenizer.load(spec.precision, device)
        self._reference: Encoder | None = None
        check_sizes(spec.geometry, self._live.factor)
        on_gpu = device.startswith("cuda")
        default_threads = max(1, count_cpus() // max(1, num_gpus() if on_gpu else 1))
        self.flow = Flow(
            spec.geometry,
            BatchEncoder(self._live, device),
            num_threads=_setting(THREADS_VARIABLE, default_threads),
            batch_pixels=_setting(BATCH_VARIABLE, GPU_BATCH_PIXELS if on_gpu else CPU_BATCH_PIXELS),
            pin=on_gpu,
            allow_truncated=spec.allow_truncated,
        )
        if spec.precision != "fp32":
            self._reference = BatchEncoder(spec.tokenizer.load("fp32", device), device)

    def work(self, unit: Unit, draft: Draft, tally: Tally) -> None:
        """Encode the images of one shard."""
        with open_unit(self._spec.input_dir, unit) as shard:
            limit = unit.input.get("limit", len(shard))
            assert isinstance(limit, int)
            reading = _Reading(shard, limit)
            comparison = _Comparison(self._reference)
            outcomes = self.flow.encode(reading.images(), comparison.begin)
            comparison.finish(outcomes, tally)
        rows = reading.rows(outcomes, tally, self._live.num_codes)
        write_codes(
            draft.file(unit.name, ROLE),
            rows,
            num_codes=self._live.num_codes,
            factor=self._live.factor,
            about={"weights": self._spec.tokenizer.identity(), "resized_by": resampler()},
        )
        draft.finish(unit.name, num_samples=len(rows))


class _Comparison:
    """Encodes one image of a unit in fp32 too, while the others are on their way."""

    def __init__(self, reference: Encoder | None) -> None:
        self._reference = reference
        self._begun: tuple[int, Launch] | None = None

    def begin(self, number: int, pixels: Any) -> None:
        """Begin to encode an image; without a reference there is nothing to compare with."""
        if self._reference is not None:
            self._begun = number, self._reference.launch(pixels[None])

    def finish(self, outcomes: list[Outcome], tally: Tally) -> None:
        """Count the codes that were compared, and those that are equal."""
        if self._begun is not None:
            number, launch = self._begun
            exact = launch.wait()[0]
            tally.count(COMPARED, exact.size)
            tally.count(EQUAL, int((exact == outcomes[number]).sum()))


class _Reading:
    """The samples of a shard in order, and which images belong to which."""

    def __init__(self, shard: SampleShard, limit: int) -> None:
        self._shard, self._limit = shard, limit
        self._samples: list[tuple[str, list[str] | SampleError]] = []

    def images(self) -> Iterator[memoryview | bytes]:
        """Yield every image of every sample, in the order of `rows`."""
        for key, raw in self._shard.iter_raw(0, self._limit):
            try:
                sample = parse_sample(key, raw)
                media = [segment.media for segment in sample.document.media("image")]
                missing = [name for name in media if name not in sample.media]
                if missing:
                    raise SampleError("missing media", f"{key!r} has no medium {missing[0]!r}")
            except SampleError as error:
                self._samples.append((key, error))
                continue
            self._samples.append((key, media))
            yield from (sample.media[name] for name in media)

    def rows(
        self, outcomes: list[Outcome], tally: Tally, num_codes: int
    ) -> list[tuple[str, list[ImageCodes]]]:
        """Return key and codes of each sample that is kept, and account for all of them."""
        rows, dtype, rest = [], code_dtype(num_codes), iter(outcomes)
        for key, media in self._samples:
            with tally.sample(key):
                if isinstance(media, SampleError):
                    raise media
                found = [(name, next(rest)) for name in media]
                images = [ImageCodes(name, _codes(o).astype(dtype)) for name, o in found]
                rows.append((key, images))
                count_images(tally, images)
        return rows


def count_images(tally: Tally, images: list[ImageCodes]) -> None:
    """Count the images of a sample, by their size in codes, and their codes."""
    for image in images:
        rows, columns = image.codes.shape
        tally.count("images")
        tally.count("codes", image.codes.size)
        tally.count(f"code grid|{columns}x{rows}")


def check_sizes(geometry: Geometry, factor: int) -> None:
    """Raise `ConfigError` unless all sizes are whole numbers of codes."""
    for width, height in geometry.sizes():
        if width % factor or height % factor:
            raise ConfigError(f"{width} x {height} pixels: one code is {factor} x {factor}")
    if getattr(geometry, "factor", factor) % factor:
        raise ConfigError(f"the geometry's factor must be a multiple of {factor}")


def _codes(outcome: Outcome) -> NDArray[Any]:
    if isinstance(outcome, SampleError):
        raise outcome
    return np.asarray(outcome)


def _setting(variable: str, default: int) -> int:
    text = os.environ.get(variable, "")
    if not text:
        return default
    if not text.isdigit() or int(text) < 1:
        raise ConfigError(f"{variable} must be a number of at least 1, got {text!r}")
    return int(text)
