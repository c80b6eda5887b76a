"""Puts frames into a document where its video stood; everything else that it says stays.

    [video] "A dog runs."       ->  [0.jpg 0.8 s] [1.jpg 2.4 s] "A dog runs."
    with marks "#{at}"          ->  [0.jpg] "#250" [1.jpg] "#750" "A dog runs."
    interleaved, text at 2 s    ->  [0.jpg 0.8 s] "A dog runs." [1.jpg 2.4 s]

Media are numbered anew in the order of the document, so the tenth frame is `9.jpg`; `extra.frames`
lists, in order, each frame's number in its video, its type (I, P or B) and its place on the scale.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from math import inf
from typing import Any, NamedTuple

from shardmill.errors import ConfigError, SampleError
from shardmill.media.videotable import VideoTable
from shardmill.model.frames import FrameNumbers
from shardmill.model.sample import Document, MediaSize, Sample, Segment

MARK_FIELDS = ("at", "time_s", "number", "type")


class Picture(NamedTuple):
    """An encoded picture, or another medium that stays as it is."""

    content: bytes | memoryview
    size: MediaSize
    ext: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FramePicture:
    """An encoded frame: where it was in its video, and its place `at` on the time scale."""

    picture: Picture
    time_s: float
    number: int
    type: str
    at: int


@dataclass(frozen=True, slots=True)
class Framed:
    """A sample whose videos are frames, and the sizes of its media by their new names."""

    sample: Sample
    sizes: Mapping[str, MediaSize]


def check_mark(mark: str) -> None:
    """Raise `ConfigError` unless a mark uses only the fields of a frame."""
    try:
        mark.format(at=1, time_s=1.0, number=1, type="I")
    except (KeyError, IndexError, ValueError) as error:
        fields = ", ".join(f"{{{name}}}" for name in MARK_FIELDS)
        raise ConfigError(f"mark {mark!r} is not a pattern of {fields}: {error}") from error


def describe_frames(
    table: VideoTable, numbers: FrameNumbers, pictures: Sequence[Picture], time_scale: int
) -> list[FramePicture]:
    """Return the pictures of the frames with these numbers, with what their table says of them."""
    at = table.positions(time_scale)
    return [
        FramePicture(
            picture=picture,
            time_s=round(float(table.times_s[number]), 6),
            number=table.first_number + number,
            type=table.type_of(number),
            at=int(at[number]),
        )
        for number, picture in zip(numbers.tolist(), pictures)
    ]


def put_frames(
    sample: Sample,
    sizes: Mapping[str, MediaSize],
    frames: Mapping[int, Sequence[FramePicture]],
    *,
    mark: str = "",
    interleave: bool = False,
) -> Framed:
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
            building.show(item, segment) if isinstance(item, FramePicture) else building.keep(item)
    return building.finish()


def _texts_of(video: Segment, following: Sequence[Segment]) -> list[Segment]:
    """Return the texts right after a video, if they say of which time they speak."""
    texts = list(takewhile(lambda s: s.kind == "text" and _voice(s) == _voice(video), following))
    return texts if any(text.time_s is not None for text in texts) else []


def _voice(segment: Segment) -> tuple[str | None, int]:
    return segment.role, segment.turn


def _merged(
    frames: Sequence[FramePicture], texts: Sequence[Segment]
) -> Iterator[FramePicture | Segment]:
    """Yield frames and texts by time, a frame before a text of its time.

    A text without a time stays behind the text before it. Without texts the frames stay in the
    order in which they were chosen.
    """
    if not texts:
        yield from frames
        return
    timed: list[tuple[float, int, FramePicture | Segment]] = [(f.time_s, 0, f) for f in frames]
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
        if old not in self._names:
            size = self._old_sizes.get(old, MediaSize(num_frames=0))
            ext = old.rpartition(".")[2]
            self._names[old] = self._add(Picture(self._old.media[old], size, ext))
        self._segments.append(replace(segment, media=self._names[old]))

    def show(self, frame: FramePicture, video: Segment) -> None:
        """Append a frame, and the mark behind it."""
        name = self._add(frame.picture)
        time_s = (frame.time_s, frame.time_s)
        shown = Segment(kind="image", media=name, role=video.role, turn=video.turn, time_s=time_s)
        self._segments.append(shown)
        about = {"number": frame.number, "type": frame.type, "at": frame.at}
        self._frames.append({"media": name, **about})
        if self._mark:
            text = self._mark.format(time_s=frame.time_s, **about)
            self._segments.append(replace(shown, kind="text", media="", text=text))

    def finish(self) -> Framed:
        """Return the sample; what its row said of media goes with their new names."""
        extra = {**self._old.extra, "frames": self._frames}
        infos = extra.get("media_info")
        if isinstance(infos, Mapping):
            extra["media_info"] = {self._names.get(k, k): v for k, v in infos.items()}
        sample = replace(
            self._old, document=Document(tuple(self._segments)), media=self._media, extra=extra
        )
        return Framed(sample, self._sizes)

    def _add(self, medium: Picture) -> str:
        name = f"{len(self._media)}.{medium.ext}"
        self._media[name], self._sizes[name] = medium.content, medium.size
        return name
