"""Documents for models that take pixels: a Hugging Face processor works in the loader worker.

The sample is read from its tar, its images and the chosen frames of its videos are decoded, the
chat template is rendered and tokenized, and the processor makes tensors of the media; those of
images are made by `levels` where it can, which is faster. The visual rule that counted the tokens
says which frames to take and how the processor writes media into the text, so that the answers,
which carry loss, are found in its ids (see `processor`). What it says of media is compared with the
processor for every sample, the whole text and the pixels for the first samples of each process.
Without a rule, images are served by processors that write each placeholder as a run of itself.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from shardmill.errors import ConfigError, SampleError, need
from shardmill.media.frames import FrameConverter, decode_each
from shardmill.media.image import decode_image
from shardmill.media.video import open_video, probe_video
from shardmill.model.manifest import ShardEntry
from shardmill.model.sample import MediaSize, Sample, Segment, tools_of, turn_fields
from shardmill.model.tokenrow import TokenRow, spans_of
from shardmill.shards.samples import SampleDataset, open_samples, parse_sample
from shardmill.tokens.templates.jinja import answer_spans
from shardmill.tokens.templates.template import conversation
from shardmill.tokens.visual.rule import (
    Resize,
    Visual,
    VisualRule,
    rule_of_folder,
    rule_of_processor,
)
from shardmill.train.documents import TrainRow
from shardmill.train.pixels.levels import Levels, Media
from shardmill.train.pixels.processor import (
    ChatMedium,
    PixelProcessor,
    VideoFrames,
    expand,
    load_auto,
    write_media,
)
from shardmill.train.samples import RawReader

log = logging.getLogger(__name__)

# Tokenizers of Hugging Face are not made for threads; decoding images is.
LOCK = threading.Lock()
# Samples a process whose text is compared with the processor's; a wrong rule shows at once.
NUM_CHECKED = 4
# What a processor returns beside the tensors that the model gets.
NOT_MEDIA = ("input_ids", "attention_mask", "mm_token_type_ids", "token_type_ids")


@dataclass(slots=True)
class PixelReader:
    """Samples with images and videos, through a processor.

    `rule` is the visual rule of the processor; `tools_field` names the tools of a chat.
    """

    samples: SampleDataset
    processor: Any
    rule: VisualRule | None = None
    tools_field: str = "tools"
    reader: RawReader = field(init=False, repr=False)
    asked: PixelProcessor = field(init=False, repr=False)
    levels: Levels | None = field(init=False, repr=False)
    videos: Media | None = field(init=False, repr=False)
    _num_checked: Counter[str] = field(default_factory=Counter, repr=False)

    def __post_init__(self) -> None:
        self.reader = RawReader(self.samples)
        self.asked = PixelProcessor(self.processor, self.rule)
        self.levels = Levels.of(self.processor, self.rule)
        self.videos = Media.of(getattr(self.processor, "video_processor", None))

    @classmethod
    def open(
        cls,
        folder: Path | str,
        processor: Any,
        rule: VisualRule | None = None,
        staged_dir: Path | str | None = None,
    ) -> PixelReader:
        """Return the reader of a finished folder of samples; a processor may be a local path.

        Without a rule, the one that the processor's own settings describe is taken. Copies of the
        shards may be staged in `staged_dir`.
        """
        rule = find_rule(processor) if rule is None else rule
        if isinstance(processor, str | Path):
            processor = load_auto("AutoProcessor", processor)
        where = None if staged_dir is None else Path(staged_dir)
        return cls(open_samples(folder, staged_dir=where), processor, rule)

    @property
    def shards(self) -> tuple[ShardEntry, ...]:
        """The shards it reads."""
        return self.samples.entries

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def is_remote(self) -> bool:
        """Whether tars lie in a store."""
        return self.reader.is_remote

    def prefetch(self, rows: Sequence[int]) -> None:
        """Have these samples fetched together."""
        self.reader.announce(rows)

    def read(self, row: int) -> TrainRow:
        """Return the processor's ids and tensors of a sample, with loss on the answers.

        Pixels may be uint8: `Levels.finish` makes them what the model takes.
        """
        (raw,) = self.reader.views([row])
        sample = parse_sample(raw.key, raw.members)
        segments = sample.document.media()
        sizes = self.reader.sizes(row) if any(s.kind == "video" for s in segments) else {}
        media = [self._decode(sample, segment, sizes) for segment in segments]
        levels = self.levels.make(media) if media and self.levels is not None else None
        with LOCK:
            return self._process(sample, segments, media, levels)

    def verify(self, row: int) -> None:
        """Raise `Damaged` unless the sample is what was written."""
        self.samples.verify(row)

    def describe(self, row: int) -> str:
        """Return shard, place and key."""
        shard, inside = self.samples.locate(row)
        name = self.samples.entries[shard].name
        return f"sample {inside} of shard {name}"

    def _decode(self, sample: Sample, segment: Segment, sizes: Mapping[str, MediaSize]) -> Any:
        content = sample.media.get(segment.media)
        if content is None:
            raise SampleError("missing media", segment.media)
        if segment.kind == "image":
            return decode_image(content)
        if segment.kind != "video" or self.rule is None:
            raise SampleError(
                f"cannot serve {segment.kind} as pixels", "the processor's rule is not known"
            )
        if segment.time_s is not None:
            raise SampleError("part of a video", "cut clips out before packing")
        resize = None if self.videos is None else self.videos.resize
        return read_video(content, sizes[segment.media], self.rule, resize)

    def _process(
        self,
        sample: Sample,
        segments: Sequence[Segment],
        media: Sequence[Any],
        levels: Mapping[str, Any] | None,
    ) -> TrainRow:
        messages = _messages(sample)
        tools = tools_of(sample, self.tools_field)
        rendered = self.asked.render(messages, tools=tools)
        # The whole text takes a processor long; it is compared for the first samples of each kind.
        kinds = {segment.kind for segment in segments} or {"text"}
        is_whole = self.rule is None or any(self._num_checked[k] < NUM_CHECKED for k in kinds)
        if is_whole:
            made = self.asked.make(rendered, media)
            levels = self._checked(levels, made, kinds)
        elif levels is not None:
            made = levels
        else:
            made = self.asked.make_media(segments, media)
        visuals = self._visuals(segments, media, made)
        listed = [ChatMedium(segment, visual) for segment, visual in zip(segments, visuals)]
        written = write_media(rendered, self.asked.placeholders(), listed)
        chat = expand(written, self.asked.encode(written.text), self.asked.visual_ids())
        if is_whole:
            chat.check(np.asarray(made["input_ids"][0], np.int64))
        elif levels is None:
            self.asked.check_media(listed, made)
        if is_whole:
            self._num_checked.update(kinds)
        answers = answer_spans(rendered, self.asked.render, messages, tools, self.asked.specials())
        row = TokenRow(
            key=sample.key,
            ids=chat.ids,
            loss=spans_of(chat.tokens_within(answers)),
            media=chat.media_spans(),
        )
        return TrainRow(row, _tensors(made) if levels is None else levels)

    def _checked(
        self, levels: Mapping[str, Any] | None, made: Mapping[str, Any], kinds: Iterable[str]
    ) -> Mapping[str, Any] | None:
        # What is not the processor's own is never served, however fast it is.
        if levels is None or self.levels is None:
            return None
        difference = self.levels.differs(levels, _tensors(made))
        if not difference:
            return levels
        named = " and ".join(f"{kind}s" for kind in sorted(kinds))
        log.warning("%s go through the processor, which is slower: %s", named, difference)
        self.levels = self.levels.without(kinds)
        return None

    def _visuals(
        self, segments: Sequence[Segment], media: Sequence[Any], made: Mapping[str, Any]
    ) -> list[Visual]:
        if self.rule is not None:
            return [self.rule.count(s.kind, _size(medium)) for s, medium in zip(segments, media)]
        ids = np.asarray(made["input_ids"][0], np.int64)
        runs = spans_of(np.isin(ids, self.asked.visual_ids()))
        if len(runs) != len(segments):
            raise SampleError(
                "placeholders and media do not match",
                f"{len(runs)} runs of image tokens for {len(segments)} images",
            )
        grids = made.get("image_grid_thw")
        listed = [(0, 0, 0)] * len(runs) if grids is None else grids.tolist()
        token = str(self.processor.image_token) if len(runs) else ""
        return [
            Visual(token, count, grid=tuple(grid))
            for (_, count), grid in zip(runs.tolist(), listed)
        ]


def find_rule(processor: Any) -> VisualRule | None:
    """Return the visual rule of a processor or its folder, or None if that is not known."""
    try:
        if isinstance(processor, str | Path):
            return rule_of_folder(Path(processor))
        return rule_of_processor(processor)
    except ConfigError as error:
        log.warning("only images can be served: %s", error)
        return None


def read_video(
    content: bytes | memoryview, size: MediaSize, rule: VisualRule, resize: Resize | None = None
) -> VideoFrames:
    """Return the frames of a video that the rule chooses, at the size that the model sees.

    `size` is what the index says of the video, by which its tokens were counted: a video that is
    not so is a `SampleError`. Without `resize` the frames stay as they are.
    """
    torch = need("torch", extra="train")
    numbers, target = rule.frames(size), rule.frame_size(size)
    converter = FrameConverter()

    def make(frame: Any) -> Any:
        pixels = torch.from_numpy(converter.rgb(frame))
        _check_video("size", (size.height, size.width), tuple(pixels.shape[:2]))
        return pixels if target is None or resize is None else resize(pixels, target)

    with open_video(content) as opened:
        table = probe_video(opened)
        _check_video("number of frames", size.num_frames, len(table))
        frames = decode_each(opened, table, np.asarray(numbers), make)
    return VideoFrames(torch.stack(frames).permute(0, 3, 1, 2), numbers, size)


def _check_video(what: str, indexed: Any, found: Any) -> None:
    if indexed != found:
        raise SampleError("not the video in the index", f"{what} {found}, the index says {indexed}")


def _messages(sample: Sample) -> list[dict[str, Any]]:
    more = turn_fields(sample)
    return [
        {
            "role": role,
            "content": [
                {"type": "text", "text": s.text} if s.kind == "text" else {"type": s.kind}
                for s in segments
            ],
            **more.get(segments[0].turn, {}),
        }
        for role, segments in conversation(sample)
    ]


def _tensors(made: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tensor for name, tensor in made.items() if name not in NOT_MEDIA}


def _size(medium: Any) -> MediaSize:
    if isinstance(medium, VideoFrames):
        return medium.size
    height, width = medium.shape[:2]
    return MediaSize(width=width, height=height)
