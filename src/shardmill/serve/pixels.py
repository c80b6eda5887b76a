"""Documents for models that take pixels: a Hugging Face processor works in the worker.

The sample is read from its tar, its pictures are decoded, the chat template is rendered and the
processor makes ids and tensors of both. Which tokens carry loss (what the assistant said, with the
end token) is found in the rendered text and carried over: the processor writes each placeholder as
a run of visual tokens, and leaves every other token as it is.

    rendered   user <image> What? assistant A cat. <end>
    loss       0    0       0     0         1 1    1
    processor  user <image> x 64 What? assistant A cat. <end>
"""

from __future__ import annotations

import re
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
from shardmill.model.sample import Sample, Segment
from shardmill.model.tokenrow import MediaSpan, TokenRow, spans_of
from shardmill.remote.path import as_path
from shardmill.serve.document import Document
from shardmill.serve.rawread import RawReader
from shardmill.tokens.chatspans import answer_spans
from shardmill.tokens.template_turns import conversation

# Tokenizers of Hugging Face are not made for threads; decoding pictures is.
LOCK = threading.Lock()
# What a processor returns beside the tensors that the model gets.
NOT_MEDIA = ("input_ids", "attention_mask", "mm_token_type_ids", "token_type_ids")


@dataclass(slots=True)
class PixelReader:
    """Samples with pictures, through a processor; `tools_field` names the tools of a chat."""

    samples: SampleSet
    processor: Any
    tools_field: str = "tools"
    reader: RawReader = field(init=False, repr=False)
    _special: re.Pattern[str] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.reader = RawReader(self.samples)

    @classmethod
    def open(cls, folder: Path | str, processor: Any) -> PixelReader:
        """Return the reader of a finished folder of samples; a processor may be a local path."""
        if isinstance(processor, str | Path):
            auto = need("transformers", extra="train").AutoProcessor
            processor = auto.from_pretrained(str(processor), local_files_only=True)
        return cls(open_samples(as_path(folder)), processor)

    @property
    def shards(self) -> tuple[ShardEntry, ...]:
        """The shards it reads."""
        return self.samples.entries

    def __len__(self) -> int:
        return len(self.samples)

    def prefetch(self, rows: Sequence[int]) -> None:
        """Have these samples fetched together."""
        self.reader.announce(rows)

    def read(self, row: int) -> Document:
        """Return the processor's ids and tensors of a sample, with loss on the answers."""
        (raw,) = self.reader.views([row])
        sample = parse_sample(raw.key, raw.members)
        pictures = [_picture(sample, segment) for segment in sample.document.media()]
        with LOCK:
            return self._process(sample, pictures)

    def _process(self, sample: Sample, pictures: list[Any]) -> Document:
        messages = [_message(role, segments) for role, segments in conversation(sample)]
        tools = sample.extra.get(self.tools_field)
        rendered = self._render(messages, tools=tools)
        made = self.processor(
            text=[rendered], images=[pictures] if pictures else None, return_tensors="pt"
        )
        ids = np.asarray(made["input_ids"][0], np.int64)
        plain_ids, learned = self._learned(rendered, messages, tools)
        media = self._media(ids, sample, made)
        loss = spread_loss(plain_ids, learned, ids, self._image_id())
        tensors = {name: tensor for name, tensor in made.items() if name not in NOT_MEDIA}
        return Document(
            TokenRow(key=sample.key, ids=ids, loss=spans_of(loss), media=media), tensors
        )

    def describe(self, row: int) -> str:
        """Return shard, place and key."""
        shard, inside = self.samples.locate(row)
        name = self.samples.entries[shard].name
        return f"sample {inside} of shard {name}"

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

    def _learned(
        self, rendered: str, messages: list[dict[str, Any]], tools: Any
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        spans = answer_spans(rendered, self._render, messages, tools, self._specials())
        encoded = self.processor.tokenizer(rendered, return_offsets_mapping=True)
        starts, ends = np.asarray(encoded["offset_mapping"], np.int64).reshape(-1, 2).T
        learned = np.zeros(len(starts), np.bool_)
        for start, end in spans:
            learned |= (starts >= start) & (ends <= end) & (ends > starts)
        return np.asarray(encoded["input_ids"], np.int64), learned

    def _media(
        self, ids: NDArray[np.int64], sample: Sample, made: Mapping[str, Any]
    ) -> tuple[MediaSpan, ...]:
        segments = sample.document.media()
        runs = spans_of(ids == self._image_id())
        if len(runs) != len(segments):
            raise SampleError(
                "placeholders and media do not match",
                f"{len(runs)} runs of image tokens for {len(segments)} pictures",
            )
        grids = made.get("image_grid_thw")
        listed = [(0, 0, 0)] * len(segments) if grids is None else grids.tolist()
        return tuple(
            MediaSpan(
                name=segment.media,
                kind="image",
                position=position,
                num_tokens=count,
                grid=tuple(grid),
            )
            for segment, (position, count), grid in zip(segments, runs.tolist(), listed)
        )

    def _image_id(self) -> int:
        token = getattr(self.processor, "image_token", None)
        if token is None:
            return -1
        return int(self.processor.tokenizer.convert_tokens_to_ids(token))

    def _specials(self) -> re.Pattern[str]:
        if self._special is None:
            tokens = sorted(self.processor.tokenizer.get_added_vocab(), key=len, reverse=True)
            self._special = re.compile("|".join(map(re.escape, tokens)) or r"(?!)")
        return self._special


def spread_loss(
    plain: NDArray[np.int64], learned: NDArray[np.bool_], ids: NDArray[np.int64], image_id: int
) -> NDArray[np.bool_]:
    """Return the loss of ids in which each placeholder of `plain` became a run of itself."""
    counts = np.ones(len(plain), np.int64)
    places, runs = np.flatnonzero(plain == image_id), spans_of(ids == image_id)
    if len(places) == len(runs):
        counts[places] = runs[:, 1]
    if not np.array_equal(np.repeat(plain, counts), ids):
        raise ConfigError(
            "this processor writes more than a run of image tokens for a placeholder, so its "
            "answers cannot be found: give it a chat template that writes one token a picture"
        )
    return np.repeat(learned, counts)


def _message(role: str, segments: list[Segment]) -> dict[str, Any]:
    items = [
        {"type": "text", "text": segment.text} if segment.kind == "text" else {"type": segment.kind}
        for segment in segments
    ]
    return {"role": role, "content": items}


def _picture(sample: Sample, segment: Segment) -> Any:
    if segment.kind != "image":
        raise SampleError(
            f"cannot serve {segment.kind} as pixels", "turn videos into frames before packing"
        )
    content = sample.media.get(segment.media)
    if content is None:
        raise SampleError("missing media", segment.media)
    return need("PIL.Image", extra="image").fromarray(decode_picture(content))
