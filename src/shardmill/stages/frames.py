"""Frames: the videos of sample shards become images, or stay whole.

A video is read from its tar piece by piece, and only what the chosen frames need of it. A sample
with a video that cannot be read is a reject with its reason; samples without videos pass unchanged.
Frames go where the video stood; everything else that the document says stays:

    [video] "A dog runs."       ->  [0.jpg 0.8 s] [1.jpg 2.4 s] "A dog runs."
    with marks "#{at}"          ->  [0.jpg] "#250" [1.jpg] "#750" "A dog runs."
    interleaved, text at 2 s    ->  [0.jpg 0.8 s] "A dog runs." [1.jpg 2.4 s]

Media are numbered again in the order of the document, so the tenth frame is `9.jpg`; `extra.frames`
lists, in order, each frame's number in its video, its type (I, P or B) and its place on the scale.

Images that follow each other can be treated as a video that others took frames of: each is a key
frame, at a given rate or at the time that its segment has, so that every sampler that needs no
decoding can choose among them. The chosen images stay as they are, the others go.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain, groupby, takewhile
from math import inf
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ConfigError, SampleError
from shardmill.media.frames import FrameConverter, ImageFormat, decode_each, look_at
from shardmill.media.samplers import By, FrameSampler, VideoTable, WholeVideo, make_table
from shardmill.media.video import BlobPart, open_video
from shardmill.model.frames import FrameNumbers
from shardmill.model.sample import Document, MediaSize, Sample, Segment
from shardmill.model.stage import Draft, Tally, Unit, Work
from shardmill.shards.samples import SampleShard, SampleWriter, parse_sample
from shardmill.shards.tar.header import Layout
from shardmill.stages.inputs import (
    OverSamples,
    SizedSample,
    check_numbers,
    count_sample,
    media_sizes,
    num_wanted,
    open_unit,
    sample_units,
)
from shardmill.storage.blob import Blob

MARK_FIELDS = ("at", "time_s", "number", "type")
MIN_FRAMES = 2  # that make a list: one image is an image
THOUSANDTHS = 1000  # of a second, the ticks of a list
NO_MEDIA = ("json", "txt")
MAX_FRAMES = 1024
CORRECTED = "corrected videos"  # the group of counts by what was wrong with their times
_BY_TIME = {"sampler": "uniform", "quality": 90, "mark": "", "at_by": "time"}
_VDP = {**_BY_TIME, "quality": 100, "at_by": "number"}
# What "un" and "kf" of Video-Data-Pipeline take and write; None is what is chosen without one.
PRESETS: Mapping[str | None, Mapping[str, Any]] = {
    None: _BY_TIME,
    "vdp-un": {**_VDP, "sampler": "uniform,by=number,repeat=true"},
    "vdp-kf": {**_VDP, "sampler": "keyframes,spacing=step,types=decoder", "mark": "#{at}"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleFrames(OverSamples):
    """The spec of taking frames.

    A segment's own `time_s` is the clip of its video that is meant; `clip_s` is that of all others.
    `mark` is a text to write behind each frame, from {at}, {time_s}, {number} and {type}, where
    {at} runs from 0 at the first frame to `time_scale` at the last, `at_by` time or number (see
    `VideoTable.positions`). `interleave` puts frames
    between the texts that follow a video by their times. With `list_fps`, images that follow each
    other are a video, at that rate if their segments have no times. A video of which more than
    `max_frames` are chosen is rejected: the images of a sample are held in memory.
    """

    version: ClassVar[int] = 1
    content: ClassVar[str] = "samples"
    works_on: ClassVar[str] = "videos"

    sampler: FrameSampler
    images: ImageFormat = field(default_factory=ImageFormat)
    clip_s: tuple[float, float] | None = None
    mark: str = ""
    time_scale: int = 1000
    at_by: By = "time"
    interleave: bool = False
    max_frames: int = MAX_FRAMES
    layout: Layout = "dashed"
    list_fps: float | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        check_mark(self.mark)
        check_numbers(self, "time_scale", "max_frames")
        if self.clip_s is not None and not 0 <= self.clip_s[0] < self.clip_s[1]:
            raise ConfigError(f"clip_s must be start < end in seconds, got {self.clip_s}")
        if self.list_fps is not None and not self.list_fps > 0:
            raise ConfigError(f"list_fps must be positive, got {self.list_fps}")
        if self.list_fps is not None and getattr(self.sampler, "needs_changes", False):
            raise ConfigError("scenes are found in videos, not in lists of frames: no list_fps")

    @property
    def needs(self) -> tuple[str, ...]:
        """The packages that read videos and write frames."""
        if isinstance(self.sampler, WholeVideo):
            return ("av",) if self.sampler.check else ()
        return ("av", "simplejpeg" if self.images.format == "jpg" else "pillow")

    def units(self) -> Iterator[Unit]:
        """Yield a unit for each shard of samples."""
        return sample_units(self.input_dir, self.limit)

    @contextmanager
    def open(self) -> Iterator[Work]:
        """Yield the work; nothing heavy is needed."""
        yield self._work

    def _work(self, unit: Unit, draft: Draft, tally: Tally) -> None:
        with (
            open_unit(self.input_dir, unit) as shard,
            SampleWriter(draft, lambda _: unit.name, layout=self.layout) as writer,
        ):
            sizes_of = media_sizes(shard.index)
            for number in range(num_wanted(unit, shard)):
                with tally.sample(shard.index.keys[number]):
                    stored = StoredSample.read(shard, number)
                    self._count_videos(tally, stored.sample.document.segments)
                    notes: dict[str, list[str]] = {}
                    sample, sizes = self._frame(stored, sizes_of(number), notes)
                    if notes:
                        sample = replace(sample, extra={**sample.extra, "corrected": notes})
                    for note in chain.from_iterable(notes.values()):
                        tally.count(f"{CORRECTED}|{note.partition(':')[0]}")
                    writer.add(sample, sizes)
                    count_sample(tally, sample, sizes)

    def _count_videos(self, tally: Tally, segments: Sequence[Segment]) -> None:
        num_lists = 0 if self.list_fps is None else len(list(find_lists(segments)))
        num_videos = sum(segment.kind == "video" for segment in segments) + num_lists
        if num_videos:
            tally.count(self.works_on, num_videos)

    def _frame(
        self, stored: StoredSample, sizes: Mapping[str, MediaSize], notes: dict[str, list[str]]
    ) -> SizedSample:
        """Return a sample with its frames; `notes` gets what was corrected of each video."""
        segments = stored.sample.document.segments
        videos = [place for place, segment in enumerate(segments) if segment.kind == "video"]
        if isinstance(self.sampler, WholeVideo):
            if self.sampler.check:
                for place in videos:
                    self._check(stored, segments[place], notes)
            return SizedSample(stored.with_media(), sizes)
        lists = [] if self.list_fps is None else list(find_lists(segments))
        if not videos and not lists:
            return SizedSample(stored.with_media(), sizes)
        frames = {place: self._frames_of(stored, segments[place], notes) for place in videos}
        # Videos were read piece by piece, and are not held in memory as a whole even now.
        sample = stored.with_media(without={segments[place].media for place in videos})
        for places in lists:
            frames |= self._chosen(stored, sample, sizes, places)
        return put_frames(sample, sizes, frames, mark=self.mark, interleave=self.interleave)

    def _check(self, stored: StoredSample, segment: Segment, notes: dict[str, list[str]]) -> None:
        with named(segment.media), open_video(stored.part(segment.media)) as video:
            _note(notes, segment, look_at(video, self.sampler, segment.time_s))

    def _frames_of(
        self, stored: StoredSample, segment: Segment, notes: dict[str, list[str]]
    ) -> list[FrameImage]:
        sampler = sampler_for(self.sampler, stored.info(segment.media))
        part, clip = stored.part(segment.media), segment.time_s or self.clip_s
        with named(segment.media), open_video(part) as video:
            converter = FrameConverter(self.images.long_side, video.stream.sample_aspect_ratio)
            table = look_at(video, sampler, clip)
            _note(notes, segment, table)
            numbers = self._numbers(sampler, table)
            encoded = decode_each(
                video, table, numbers, lambda frame: converter.encode(frame, self.images)
            )
        images = [EncodedMedium(*made, self.images.format) for made in encoded]
        return self._described(table, numbers, images)

    def _chosen(
        self, stored: StoredSample, sample: Sample, sizes: Mapping[str, MediaSize], places: range
    ) -> dict[int, list[FrameImage]]:
        """Return the chosen frames of a list at its last place, and none at the others."""
        assert self.list_fps is not None
        listed = sample.document.segments[places.start : places.stop]
        sampler = sampler_for(self.sampler, stored.info(listed[0].media))
        table = list_table(listed, self.list_fps)
        numbers = self._numbers(sampler, table)
        names = [listed[number].media for number in numbers if stored.part(listed[number].media)]
        images = [EncodedMedium(sample.media[n], sizes[n], n.rpartition(".")[2]) for n in names]
        frames = self._described(table, numbers, images)
        return {place: [] for place in places} | {places[-1]: frames}

    def _described(
        self, table: VideoTable, numbers: FrameNumbers, images: Sequence[EncodedMedium]
    ) -> list[FrameImage]:
        at = table.positions(self.time_scale, self.at_by)
        return describe_frames(table, numbers, images, at)

    def _numbers(self, sampler: FrameSampler, table: VideoTable) -> FrameNumbers:
        numbers = table.numbers_at(sampler.times(table))
        if len(numbers) > self.max_frames:
            detail = f"{len(numbers)} chosen, the limit is {self.max_frames}"
            raise SampleError("too many frames", detail)
        return numbers


def _note(notes: dict[str, list[str]], segment: Segment, table: VideoTable) -> None:
    if table.corrected:
        notes[segment.media] = list(table.corrected)


@dataclass(frozen=True, slots=True)
class StoredSample:
    """A sample as it lies in its tar: the document is read at once, a medium when it is needed."""

    sample: Sample
    blob: Blob
    places: Mapping[str, BlobPart]

    @classmethod
    def read(cls, shard: SampleShard, number: int) -> StoredSample:
        """Read the document of a sample; one that has none is a `SampleError`."""
        members = shard.index.members(number)
        places = {m.ext: BlobPart(shard.blob, m.offset, m.size) for m in members}
        # Only the document: a video of gigabytes may lie beside it in the same sample.
        json = places.get("json")
        raw = {}
        if json is not None:
            raw["json"] = memoryview(shard.blob.read(json.offset, json.num_bytes))
        return cls(parse_sample(shard.index.keys[number], raw), shard.blob, places)

    def part(self, name: str) -> BlobPart:
        """Return where a medium lies."""
        if name not in self.places:
            raise SampleError("missing media", f"{self.sample.key!r} has no medium {name!r}")
        return self.places[name]

    def info(self, name: str) -> dict[str, Any]:
        """Return what the row said of a medium, or of all."""
        infos = self.sample.extra.get("media_info")
        info = infos.get(name) if isinstance(infos, Mapping) else None
        return {**self.sample.extra, **(info if isinstance(info, Mapping) else {})}

    def with_media(self, without: Collection[str] = ()) -> Sample:
        """Return the sample with the contents of its media, read in one request."""
        parts = {
            name: part
            for name, part in self.places.items()
            if name not in NO_MEDIA and name not in without
        }
        views = self.blob.view_all([(part.offset, part.num_bytes) for part in parts.values()])
        return replace(self.sample, media=dict(zip(parts, views)))


class EncodedMedium(NamedTuple):
    """An encoded image, or another medium that stays as it is."""

    content: bytes | memoryview
    size: MediaSize
    ext: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameImage:
    """An encoded frame: where it was in its video, and its place `at` on the time scale."""

    image: EncodedMedium
    time_s: float
    number: int
    type: str
    at: int


def check_mark(mark: str) -> None:
    """Raise `ConfigError` unless a mark uses only the fields of a frame."""
    try:
        mark.format(at=1, time_s=1.0, number=1, type="I")
    except (KeyError, IndexError, ValueError) as error:
        fields = ", ".join(f"{{{name}}}" for name in MARK_FIELDS)
        raise ConfigError(f"mark {mark!r} is not a pattern of {fields}: {error}") from error


def describe_frames(
    table: VideoTable,
    numbers: FrameNumbers,
    images: Sequence[EncodedMedium],
    at: NDArray[np.int64],
) -> list[FrameImage]:
    """Return the images of the frames with these numbers, with what their table says of them.

    `at` are the positions of all frames of the table.
    """
    return [
        FrameImage(
            image=image,
            time_s=round(float(table.times_s[number]), 6),
            number=table.first_number + number,
            type=table.type_of(number),
            at=int(at[number]),
        )
        for number, image in zip(numbers.tolist(), images)
    ]


def put_frames(
    sample: Sample,
    sizes: Mapping[str, MediaSize],
    frames: Mapping[int, Sequence[FrameImage]],
    *,
    mark: str = "",
    interleave: bool = False,
) -> SizedSample:
    """Return the sample in which each segment whose place is in `frames` became those frames."""
    building = _Building(sample, sizes, mark)
    segments, place = sample.document.segments, 0
    while place < len(segments):
        segment, shown = segments[place], frames.get(place)
        place += 1
        if shown is None:
            building.keep(segment)
            continue
        texts = _texts_of(segment, segments[place:]) if interleave and shown else []
        place += len(texts)
        for item in _merged(shown, texts):
            building.show(item, segment) if isinstance(item, FrameImage) else building.keep(item)
    return building.finish()


def _texts_of(video: Segment, following: Sequence[Segment]) -> list[Segment]:
    """Return the texts right after a video, if they say of which time they speak."""
    texts = list(
        takewhile(lambda s: s.kind == "text" and _speaker(s) == _speaker(video), following)
    )
    return texts if any(text.time_s is not None for text in texts) else []


def _speaker(segment: Segment) -> tuple[str | None, int]:
    return segment.role, segment.turn


def _merged(
    frames: Sequence[FrameImage], texts: Sequence[Segment]
) -> Iterator[FrameImage | Segment]:
    """Yield frames and texts by time, a frame before a text of its time.

    A text without a time stays behind the text before it. Without texts the frames stay in the
    order in which they were chosen.
    """
    if not texts:
        yield from frames
        return
    timed: list[tuple[float, int, FrameImage | Segment]] = [(f.time_s, 0, f) for f in frames]
    time = -inf
    for text in texts:
        time = text.time_s[0] if text.time_s is not None else time
        timed.append((time, 1, text))
    yield from (item for _, _, item in sorted(timed, key=lambda entry: entry[:2]))


class _Building:
    """A document in the making."""

    def __init__(self, sample: Sample, sizes: Mapping[str, MediaSize], mark: str) -> None:
        self._old, self._old_sizes, self._mark = sample, sizes, mark
        self._segments: list[Segment] = []
        self._media: dict[str, Any] = {}
        self._sizes: dict[str, MediaSize] = {}
        self._frames: list[dict[str, Any]] = []
        self._names: dict[str, str] = {}

    def keep(self, segment: Segment) -> None:
        """Append a segment that is no video."""
        if segment.kind == "text":
            self._segments.append(segment)
            return
        old = segment.media
        if old not in self._old.media:
            raise SampleError("missing media", f"{self._old.key!r} has no medium {old!r}")
        # A medium that the document shows twice is stored once.
        if old not in self._names:
            size = self._old_sizes.get(old, MediaSize(num_frames=0))
            ext = old.rpartition(".")[2]
            self._names[old] = self._add(EncodedMedium(self._old.media[old], size, ext))
        self._segments.append(replace(segment, media=self._names[old]))

    def show(self, frame: FrameImage, video: Segment) -> None:
        """Append a frame, and the mark behind it."""
        name = self._add(frame.image)
        time_s = (frame.time_s, frame.time_s)
        shown = Segment(kind="image", media=name, role=video.role, turn=video.turn, time_s=time_s)
        self._segments.append(shown)
        about = {"number": frame.number, "type": frame.type, "at": frame.at}
        self._frames.append({"media": name, **about})
        if self._mark:
            text = self._mark.format(time_s=frame.time_s, **about)
            self._segments.append(replace(shown, kind="text", media="", text=text))

    def finish(self) -> SizedSample:
        """Return the sample; what its row said of media goes with their new names."""
        extra = {**self._old.extra, "frames": self._frames}
        infos = extra.get("media_info")
        if isinstance(infos, Mapping):
            extra["media_info"] = {self._names.get(k, k): v for k, v in infos.items()}
        sample = replace(
            self._old, document=Document(tuple(self._segments)), media=self._media, extra=extra
        )
        return SizedSample(sample, self._sizes)

    def _add(self, medium: EncodedMedium) -> str:
        name = f"{len(self._media)}.{medium.ext}"
        self._media[name], self._sizes[name] = medium.content, medium.size
        return name


def find_lists(segments: Sequence[Segment]) -> Iterator[range]:
    """Yield the places of images that follow each other in one turn."""
    numbered = groupby(range(len(segments)), key=lambda place: _speaker_and_kind(segments[place]))
    for (kind, *_), group in numbered:
        places = list(group)
        if kind == "image" and len(places) >= MIN_FRAMES:
            yield range(places[0], places[-1] + 1)


def list_table(segments: Sequence[Segment], fps: float) -> VideoTable:
    """Return a list of images as the table of a video."""
    starts = [segment.time_s[0] for segment in segments if segment.time_s is not None]
    if len(starts) != len(segments):
        starts = [number / fps for number in range(len(segments))]
    # Whole ticks, as a container has them, so that samplers meet lists and videos alike.
    pts = np.rint(np.array(starts) * THOUSANDTHS).astype(np.int64)
    if (np.diff(pts) <= 0).any():
        raise SampleError("broken timestamps", "the frames of a list are not in order of time")
    every = np.ones(len(segments), bool)
    return make_table(
        pts, every, every, time_base=1 / THOUSANDTHS, origin_s=0.0, last_duration_s=1 / fps
    )


def _speaker_and_kind(segment: Segment) -> tuple[str, str | None, int]:
    return segment.kind, segment.role, segment.turn


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
