"""Frames: the videos of sample shards become pictures, or stay whole.

A video is read from its tar piece by piece, and only what the chosen frames need of it. A sample
with a video that cannot be read is a reject with its reason; samples without videos pass unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from shardmill.errors import ConfigError, SampleError
from shardmill.io.names import Layout
from shardmill.io.samples import SampleWriter
from shardmill.media.framepictures import FramePainter, PictureFormat
from shardmill.media.frames import decode_each, look_at
from shardmill.media.framesamplers import FrameSampler, WholeVideo
from shardmill.media.videofile import open_video
from shardmill.media.videotable import VideoTable
from shardmill.model.frames import FrameNumbers
from shardmill.model.sample import MediaSize, Sample, Segment
from shardmill.model.stage import Draft, Tally, Unit, Work
from shardmill.stages.framedocument import (
    Framed,
    FramePicture,
    Picture,
    check_mark,
    describe_frames,
    put_frames,
)
from shardmill.stages.framelists import find_lists, list_table
from shardmill.stages.framesample import StoredSample
from shardmill.stages.samplefiles import (
    media_sizes,
    open_unit,
    sample_inputs,
    sample_units,
    shards_hold_bytes,
)
from shardmill.stages.statistics import count_sample

MAX_FRAMES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleFrames:
    """The spec of taking frames.

    A segment's own `time_s` is the clip of its video that is meant; `clip_s` is that of all others.
    `mark` is a text to write behind each frame, from {at}, {time_s}, {number} and {type}, where
    {at} runs from 0 at the first frame to `time_scale` at the last. `interleave` puts frames
    between the texts that follow a video by their times. With `list_fps`, pictures that follow each
    other are a video, at that rate if their segments have no times. A video of which more than
    `max_frames` are chosen is rejected: the pictures of a sample are held in memory.
    """

    version: ClassVar[int] = 1

    input_dir: Path
    sampler: FrameSampler
    pictures: PictureFormat = field(default_factory=PictureFormat)
    clip_s: tuple[float, float] | None = None
    mark: str = ""
    time_scale: int = 1000
    interleave: bool = False
    max_frames: int = MAX_FRAMES
    layout: Layout = "dashed"
    list_fps: float | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        check_mark(self.mark)
        for name in ("time_scale", "max_frames"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.limit is not None and self.limit < 0:
            raise ConfigError(f"limit must be 0 or more, got {self.limit}")
        if self.clip_s is not None and not 0 <= self.clip_s[0] < self.clip_s[1]:
            raise ConfigError(f"clip_s must be start < end in seconds, got {self.clip_s}")
        if self.list_fps is not None and not self.list_fps > 0:
            raise ConfigError(f"list_fps must be positive, got {self.list_fps}")
        if self.list_fps is not None and getattr(self.sampler, "needs_changes", False):
            raise ConfigError("scenes are found in videos, not in lists of frames: no list_fps")

    def units(self) -> Iterator[Unit]:
        """Yield a unit for each shard of samples."""
        return sample_units(self.input_dir, self.limit)

    @contextmanager
    def open(self) -> Iterator[Work]:
        """Yield the work; nothing heavy is needed."""
        yield self._work

    def units_name_content(self) -> bool:
        """Say that units do: they hold the checksums of a shard's files."""
        return shards_hold_bytes(self.input_dir)

    def inputs(self) -> Mapping[str, Any]:
        """Return the fingerprint of the input's manifest."""
        return sample_inputs(self.input_dir)

    def _work(self, unit: Unit, draft: Draft, tally: Tally) -> None:
        with (
            open_unit(self.input_dir, unit) as shard,
            SampleWriter(draft, lambda _: unit.name, layout=self.layout) as writer,
        ):
            sizes_of = media_sizes(shard.index)
            limit = unit.input.get("limit", len(shard))
            assert isinstance(limit, int)
            for number in range(limit):
                with tally.sample(shard.index.keys[number]):
                    framed = self._frame(StoredSample.read(shard, number), sizes_of(number))
                    writer.add(framed.sample, framed.sizes)
                    count_sample(tally, framed.sample, framed.sizes)

    def _frame(self, stored: StoredSample, sizes: Mapping[str, MediaSize]) -> Framed:
        segments = stored.sample.document.segments
        videos = [place for place, segment in enumerate(segments) if segment.kind == "video"]
        if isinstance(self.sampler, WholeVideo):
            if self.sampler.check:
                self._check(stored, [segments[place] for place in videos])
            return Framed(stored.with_media(), sizes)
        lists = [] if self.list_fps is None else list(find_lists(segments))
        if not videos and not lists:
            return Framed(stored.with_media(), sizes)
        frames = {place: self._frames_of(stored, segments[place]) for place in videos}
        sample = stored.with_media(without={segments[place].media for place in videos})
        for places in lists:
            frames |= self._chosen(stored, sample, sizes, places)
        return put_frames(sample, sizes, frames, mark=self.mark, interleave=self.interleave)

    def _check(self, stored: StoredSample, videos: list[Segment]) -> None:
        for segment in videos:
            with named(segment.media), open_video(stored.part(segment.media)) as video:
                look_at(video, self.sampler, segment.time_s)

    def _frames_of(self, stored: StoredSample, segment: Segment) -> list[FramePicture]:
        sampler = sampler_for(self.sampler, stored.info(segment.media))
        part, clip = stored.part(segment.media), segment.time_s or self.clip_s
        with named(segment.media), open_video(part) as video:
            painter = FramePainter(self.pictures.long_side, video.stream.sample_aspect_ratio)
            table = look_at(video, sampler, clip)
            numbers = self._numbers(sampler, table)
            encoded = decode_each(
                video, table, numbers, lambda frame: painter.encode(frame, self.pictures)
            )
        pictures = [Picture(*made, self.pictures.format) for made in encoded]
        return describe_frames(table, numbers, pictures, self.time_scale)

    def _chosen(
        self, stored: StoredSample, sample: Sample, sizes: Mapping[str, MediaSize], places: range
    ) -> dict[int, list[FramePicture]]:
        """Return the chosen frames of a list at its last place, and none at the others."""
        assert self.list_fps is not None
        listed = sample.document.segments[places.start : places.stop]
        sampler = sampler_for(self.sampler, stored.info(listed[0].media))
        table = list_table(listed, self.list_fps)
        numbers = self._numbers(sampler, table)
        names = [listed[number].media for number in numbers if stored.part(listed[number].media)]
        pictures = [Picture(sample.media[n], sizes[n], n.rpartition(".")[2]) for n in names]
        frames = describe_frames(table, numbers, pictures, self.time_scale)
        return {place: [] for place in places} | {places[-1]: frames}

    def _numbers(self, sampler: FrameSampler, table: VideoTable) -> FrameNumbers:
        numbers = table.numbers_at(sampler.times(table))
        if len(numbers) > self.max_frames:
            detail = f"{len(numbers)} chosen, the limit is {self.max_frames}"
            raise SampleError("too many frames", detail)
        return numbers


@contextmanager
def named(medium: str) -> Iterator[None]:
    """Say in the detail of a `SampleError` which medium is meant."""
    try:
        yield
    except SampleError as error:
        raise SampleError(error.reason, f"{medium}: {error.detail}") from error


def sampler_for(sampler: FrameSampler, fields: Mapping[str, Any]) -> FrameSampler:
    """Return the sampler of one row: some are told by a field what to take."""
    of_row = getattr(sampler, "of_row", None)
    return sampler if of_row is None else of_row(fields)
