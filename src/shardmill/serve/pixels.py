"""Documents for models that take pixels: a Hugging Face processor works in the worker.

The sample is read from its tar, its pictures and the chosen frames of its videos are decoded, the
chat template is rendered and the processor makes ids and tensors of both. The visual rule that
counted the tokens (see `tokens.visual`) says which frames to take and how the processor writes
media into the text, so that the answers, which carry loss, are found again in its ids (see
`serve.written`). Without a rule, pictures are served by processors that write each placeholder as
a run of itself.
"""

from __future__ import annotations

import logging
import re
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ConfigError, SampleError
from shardmill.extras import need
from shardmill.io.sampleset import SampleSet, open_samples
from shardmill.io.sampleshard import parse_sample
from shardmill.media.image import decode_picture
from shardmill.model.manifest import ShardEntry
from shardmill.model.sample import MediaSize, Sample, Segment
from shardmill.model.tokenrow import TokenRow, spans_of
from shardmill.model.turnfields import tools_of, turn_fields
from shardmill.remote.path import as_path
from shardmill.serve.document import Document
from shardmill.serve.pixelvideo import ChosenFrames, read_video
from shardmill.serve.rawread import RawReader
from shardmill.serve.written import (
    Encoded,
    Medium,
    Writing,
    expand,
    learned_tokens,
    media_spans,
    write_media,
)
from shardmill.tokens.chatspans import answer_spans
from shardmill.tokens.template_turns import conversation
from shardmill.tokens.visual.pretrained import rule_of_folder
from shardmill.tokens.visual.rule import Visual, VisualRule

log = logging.getLogger(__name__)
# Tokenizers of Hugging Face are not made for threads; decoding pictures is.
LOCK = threading.Lock()
# What a processor returns beside the tensors that the model gets.
NOT_MEDIA = ("input_ids", "attention_mask", "mm_token_type_ids", "token_type_ids")


@dataclass(slots=True)
class PixelReader:
    """Samples with pictures and videos, through a processor.

    `rule` is the visual rule of the processor; `tools_field` names the tools of a chat.
    """

    samples: SampleSet
    processor: Any
    rule: VisualRule | None = None
    tools_field: str = "tools"
    reader: RawReader = field(init=False, repr=False)
    _special: re.Pattern[str] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.reader = RawReader(self.samples)

    @classmethod
    def open(
        cls,
        folder: Path | str,
        processor: Any,
        rule: VisualRule | None = None,
        near: Path | str | None = None,
    ) -> PixelReader:
        """Return the reader of a finished folder of samples; a processor may be a local path.

        Without a rule, the one that the processor's own settings describe is taken. Copies of the
        shards may arrive `near` by.
        """
        rule = rule_of(processor) if rule is None else rule
        if isinstance(processor, str | Path):
            auto = need("transformers", extra="train").AutoProcessor
            processor = auto.from_pretrained(str(processor), local_files_only=True)
        where = None if near is None else Path(near)
        return cls(open_samples(as_path(folder), where), processor, rule)

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

    def read(self, row: int) -> Document:
        """Return the processor's ids and tensors of a sample, with loss on the answers."""
        (raw,) = self.reader.views([row])
        sample = parse_sample(raw.key, raw.members)
        segments = sample.document.media()
        sizes = self.reader.sizes(row) if any(s.kind == "video" for s in segments) else {}
        shown = [self._decode(sample, segment, sizes) for segment in segments]
        with LOCK:
            return self._process(sample, segments, shown)

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
            return need("PIL.Image", extra="image").fromarray(decode_picture(content))
        if segment.kind != "video" or self.rule is None:
            raise SampleError(
                f"cannot serve {segment.kind} as pixels", "the processor's rule is not known"
            )
        if segment.time_s is not None:
            raise SampleError("part of a video", "cut clips out before packing")
        return read_video(content, sizes[segment.media], self.rule)

    def _process(
        self, sample: Sample, segments: Sequence[Segment], shown: Sequence[Any]
    ) -> Document:
        messages = _messages(sample)
        tools = tools_of(sample, self.tools_field)
        rendered = self._render(messages, tools=tools)
        made = self.processor(
            text=[rendered], return_tensors="pt", **_media(shown), **self._begun(rendered)
        )
        ids = np.asarray(made["input_ids"][0], np.int64)
        visuals = self._visuals(segments, shown, ids, made)
        media = [Medium(segment, visual) for segment, visual in zip(segments, visuals)]
        writing = write_media(rendered, self._placeholders(), media)
        encoded = self._encode(writing)
        expanded = expand(writing, encoded, self._visual_ids(), ids)
        answers = answer_spans(rendered, self._render, messages, tools, self._specials())
        learned = learned_tokens(encoded, writing.moved(np.array(answers, np.int64).reshape(-1, 2)))
        row = TokenRow(
            key=sample.key,
            ids=ids,
            loss=spans_of(np.repeat(learned, expanded.counts)),
            media=media_spans(writing, encoded, expanded),
        )
        tensors = {name: tensor for name, tensor in made.items() if name not in NOT_MEDIA}
        return Document(row, tensors)

    def _render(self, messages: list[dict[str, Any]], *, tools: Any, prompt: bool = False) -> str:
        listed = [
            {**message, "content": [{"type": "text", "text": message["content"]}]}
            if isinstance(message["content"], str)
            else message
            for message in messages
        ]
        return str(
            self.processor.apply_chat_template(
                listed, tokenize=False, tools=tools, add_generation_prompt=prompt
            )
        )

    def _visuals(
        self, segments: Sequence[Segment], shown: Sequence[Any], ids: NDArray[Any], made: Any
    ) -> list[Visual]:
        if self.rule is not None:
            return [self.rule.count(s.kind, _size(medium)) for s, medium in zip(segments, shown)]
        runs = spans_of(np.isin(ids, self._visual_ids()))
        if len(runs) != len(segments):
            raise SampleError(
                "placeholders and media do not match",
                f"{len(runs)} runs of image tokens for {len(segments)} pictures",
            )
        grids = made.get("image_grid_thw")
        listed = [(0, 0, 0)] * len(runs) if grids is None else grids.tolist()
        token = str(self.processor.image_token) if len(runs) else ""
        return [
            Visual(token, count, grid=tuple(grid))
            for (_, count), grid in zip(runs.tolist(), listed)
        ]

    def _placeholders(self) -> Mapping[str, str]:
        if self.rule is not None:
            return self.rule.placeholders()
        token = getattr(self.processor, "image_token", None)
        return {} if token is None else {"image": token}

    def _visual_ids(self) -> list[int]:
        # To Gemma's processor the image token is what begins a picture; its tokenizer knows better.
        owners = (self.processor.tokenizer, self.processor)
        names = ("image_token_id", "video_token_id")
        found = [[getattr(owner, name, None) for owner in owners] for name in names]
        chosen = [next((i for i in ids if i is not None), None) for ids in found]
        return [int(token) for token in chosen if token is not None]

    def _encode(self, writing: Writing) -> Encoded:
        encoded = self.processor.tokenizer(
            writing.text, return_offsets_mapping=True, **self._begun(writing.text)
        )
        starts, ends = np.asarray(encoded["offset_mapping"], np.int64).reshape(-1, 2).T
        return Encoded(np.asarray(encoded["input_ids"], np.int64), starts, ends)

    def _begun(self, text: str) -> dict[str, bool]:
        # As `apply_chat_template` does: what a template has begun with is not added again.
        begun = self.processor.tokenizer.bos_token
        return {"add_special_tokens": False} if begun and text.startswith(begun) else {}

    def _specials(self) -> re.Pattern[str]:
        if self._special is None:
            tokens = sorted(self.processor.tokenizer.get_added_vocab(), key=len, reverse=True)
            self._special = re.compile("|".join(map(re.escape, tokens)) or r"(?!)")
        return self._special


def rule_of(processor: Any) -> VisualRule | None:
    """Return the visual rule of a processor or its folder, or None if that is not known."""
    try:
        if isinstance(processor, str | Path):
            return rule_of_folder(Path(processor))
        with tempfile.TemporaryDirectory() as folder:
            processor.save_pretrained(folder)
            return rule_of_folder(Path(folder))
    except ConfigError as error:
        log.warning("only pictures can be served: %s", error)
        return None


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


def _media(shown: Sequence[Any]) -> dict[str, Any]:
    pictures = [medium for medium in shown if not isinstance(medium, ChosenFrames)]
    videos = [medium for medium in shown if isinstance(medium, ChosenFrames)]
    options: dict[str, Any] = {"images": [pictures]} if pictures else {}
    if videos:
        options |= {
            "videos": [video.pixels for video in videos],
            "video_metadata": [video.metadata() for video in videos],
            "do_sample_frames": False,
        }
    return options


def _size(medium: Any) -> MediaSize:
    if isinstance(medium, ChosenFrames):
        return medium.size
    return MediaSize(width=medium.width, height=medium.height)
