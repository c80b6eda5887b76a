"""Frames: the videos of sample shards become pictures, or stay whole.

A video is read from its tar piece by piece, and only what the chosen frames need of it. A sample
with a video that cannot be read is a reject with its reason; samples without videos pass unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from shardmill.errors import ConfigError, SampleError
from shardmill.io.blob import Blob
from shardmill.io.names import Layout
from shardmill.io.samples import SampleWriter
from shardmill.io.sampleshard import SampleShard, parse_sample
from shardmill.media.framepictures import FramePainter, PictureFormat
from shardmill.media.frames import Clip, decode_each, look_at
from shardmill.media.framesamplers import FrameSampler, WholeVideo
from shardmill.media.videofile import BlobPart, open_video
from shardmill.model.sample import MediaSize, Sample, Segment
from shardmill.model.stage import Draft, Tally, Unit, Work
from shardmill.stages.framedocument import Framed, FramePicture, check_mark, put_frames
from shardmill.stages.samplefiles import media_sizes, open_unit, sample_inputs, sample_units
from shardmill.stages.statistics import count_sample

MAX_FRAMES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleFrames:
    """The spec of taking frames.

    A segment's own `time_s` is the clip of its video that is meant; `clip_s` is that of all others.
    `mark` is a text to write behind each frame, from {at}, {time_s}, {number} and {type}, where
    {at} runs from 0 at the first frame to `time_scale` at the last. `interleave` puts frames
    between the texts that follow a video by their times. A video of which more than `max_frames`
    are chosen is rejected: the pictures of a sample are held in memory.
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

    def units(self) -> Iterator[Unit]:
        """Yield a unit for each shard of samples."""
        return sample_units(self.input_dir, self.limit)

    @contextmanager
    def open(self) -> Iterator[Work]:
        """Yield the work; nothing heavy is needed."""
        yield self._work

    def inputs(self) -> Mapping[str, Any]:
        """Return size and time of the input's manifest."""
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
                    framed = self._frame(_Stored.read(shard, number), sizes_of(number))
                    writer.add(framed.sample, framed.sizes)
                    count_sample(tally, framed.sample, framed.sizes)

    def _frame(self, stored: _Stored, sizes: Mapping[str, MediaSize]) -> Framed:
        videos = stored.sample.document.media("video")
        if isinstance(self.sampler, WholeVideo):
            if self.sampler.check:
                self._check(stored, videos)
            videos = []
        if not videos:
            return Framed(stored.with_media(), sizes)
        frames = [self._frames_of(stored, segment) for segment in videos]
        sample = stored.with_media(without={segment.media for segment in videos})
        return put_frames(sample, sizes, frames, mark=self.mark, interleave=self.interleave)

    def _check(self, stored: _Stored, videos: list[Segment]) -> None:
        for segment in videos:
            with open_video(stored.part(segment.media)) as video:
                look_at(video, self.sampler, segment.time_s)

    def _frames_of(self, stored: _Stored, segment: Segment) -> list[FramePicture]:
        clip = segment.time_s or self.clip_s
        try:
            return self._take(stored.part(segment.media), clip)
        except SampleError as error:
            raise SampleError(error.reason, f"{segment.media}: {error.detail}") from error

    def _take(self, part: BlobPart, clip: Clip | None) -> list[FramePicture]:
        painter = FramePainter(self.pictures.long_side)
        with open_video(part) as video:
            table = look_at(video, self.sampler, clip)
            numbers = table.numbers_at(self.sampler.times(table))
            if len(numbers) > self.max_frames:
                detail = f"{len(numbers)} chosen, the limit is {self.max_frames}"
                raise SampleError("too many frames", detail)
            encoded = decode_each(
                video, table, numbers, lambda frame: painter.encode(frame, self.pictures)
            )
        at = table.positions(self.time_scale)
        return [
            FramePicture(
                content=content,
                size=size,
                ext=self.pictures.format,
                time_s=round(float(table.times_s[number]), 6),
                number=number,
                type="I" if table.is_key[number] else "P" if table.is_forward[number] else "B",
                at=int(at[number]),
            )
            for number, (content, size) in zip(numbers.tolist(), encoded)
        ]


@dataclass(frozen=True, slots=True)
class _Stored:
    """A sample in its tar; its media are read when they are needed."""

    sample: Sample
    blob: Blob
    places: Mapping[str, BlobPart]

    @classmethod
    def read(cls, shard: SampleShard, number: int) -> _Stored:
        members = shard.index.members(number)
        places = {m.ext: BlobPart(shard.blob, m.offset, m.size) for m in members}
        raw = {}
        if "json" in places:
            place = places["json"]
            raw["json"] = memoryview(shard.blob.read(place.offset, place.num_bytes))
        return cls(parse_sample(shard.index.keys[number], raw), shard.blob, places)

    def part(self, name: str) -> BlobPart:
        """Return where a medium lies."""
        if name not in self.places:
            raise SampleError("missing media", f"{self.sample.key!r} has no medium {name!r}")
        return self.places[name]

    def with_media(self, without: set[str] | None = None) -> Sample:
        """Return the sample with the contents of its media, in one request."""
        skipped = {"json", "txt", *(without or ())}
        wanted = {name: part for name, part in self.places.items() if name not in skipped}
        views = self.blob.view_all([(part.offset, part.num_bytes) for part in wanted.values()])
        return replace(self.sample, media=dict(zip(wanted, views)))
