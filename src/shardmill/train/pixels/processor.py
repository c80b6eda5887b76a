"""What is asked of a Hugging Face processor, and where media and answers lie in what it wrote.

A processor replaces each placeholder of a rendered chat by delimiters and runs of visual tokens. A
visual rule says the same with each run as one token, so that ids and answers can be followed:

    rendered   user <image> What? assistant A cat. <end>
    written    user <boi><soft><eoi> What? assistant A cat. <end>
    ids        user <boi><soft> x 256 <eoi> What? assistant A cat. <end>

Whatever the rule says can be compared with the processor's own ids, token by token.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ConfigError, SampleError, foreign, need
from shardmill.model.sample import MediaSize, Segment
from shardmill.model.tokenrow import MediaSpan
from shardmill.tokens.visual.rule import Visual, VisualRule, replace_placeholders

# An image of absurd shape, a chat that the template does not take: the sample's fault.
REFUSED = "refused by the processor"


@dataclass(frozen=True, slots=True)
class VideoFrames:
    """Frames of a video as uint8 [frames, 3, height, width], and the size of the whole video.

    In memory the channels lie last, as they were decoded.
    """

    pixels: Any
    numbers: NDArray[np.int64]
    size: MediaSize


@dataclass(frozen=True, slots=True)
class ChatMedium:
    """A medium of a chat and what the processor writes for it."""

    segment: Segment
    visual: Visual


@dataclass(frozen=True, slots=True)
class WrittenChat:
    """A chat as text in which each run is one token; `media` stand in the order of the text.

    `bounds` are the first and last characters of each medium, `ends` where its placeholder ended
    in the rendered chat.
    """

    text: str
    media: tuple[ChatMedium, ...]
    bounds: NDArray[np.int64]
    ends: NDArray[np.int64]

    def moved(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where characters of the rendered chat, none inside a placeholder, have gone."""
        # A placeholder of 3 characters at 10..13 was written as 8: what stood at 20 stands at 25.
        grown: NDArray[np.int64] = np.concatenate([[0], self.bounds[:, 1] - self.ends])
        return positions + grown[np.searchsorted(self.ends, positions, side="right")]


def load_auto(name: str, folder: Path | str) -> Any:
    """Return what a class of transformers loads from a local folder, whose own code is never run.

    If it is not told so, transformers asks on standard input whether to run it.
    """
    auto = getattr(need("transformers", extra="train"), name)
    try:
        return auto.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise ConfigError(
            f"{folder} needs Python code that lies beside it, which is not run: name a model of "
            "transformers itself, or load this one in a program of yours"
        ) from error


def write_media(
    rendered: str, placeholders: Mapping[str, str], media: Sequence[ChatMedium]
) -> WrittenChat:
    """Return the chat with its media written out."""
    by_kind: dict[str, list[ChatMedium]] = {}
    for medium in media:
        by_kind.setdefault(medium.segment.kind, []).append(medium)
    visuals = {kind: [medium.visual for medium in found] for kind, found in by_kind.items()}
    text = replace_placeholders(rendered, placeholders, visuals)
    kind_of = {token: kind for kind, token in placeholders.items() if by_kind.get(kind)}
    queues = {kind: iter(found) for kind, found in by_kind.items()}
    placed, bounds, ends, grown = [], [], [], 0
    for match in re.finditer("|".join(map(re.escape, kind_of)) or r"(?!)", rendered):
        placed.append(next(queues[kind_of[match[0]]]))
        start = match.start() + grown
        bounds.append((start, start + len(placed[-1].visual.text)))
        ends.append(match.end())
        grown = bounds[-1][1] - match.end()
    places = np.array(bounds, np.int64).reshape(-1, 2)
    return WrittenChat(text, tuple(placed), places, np.array(ends, np.int64))


@dataclass(frozen=True, slots=True)
class EncodedText:
    """The tokens of a text: their ids, and the first and last character of each."""

    ids: NDArray[np.int64]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class EncodedChat:
    """The tokens of a written chat with each run at its length.

    Token i of `text` stands `counts[i]` times in `ids`; those in `runs` stand for a run.
    """

    written: WrittenChat
    text: EncodedText
    ids: NDArray[np.int64]
    counts: NDArray[np.int64]
    runs: NDArray[np.int64]

    def check(self, ids: NDArray[np.int64]) -> None:
        """Raise `SampleError` unless these are the ids, as a processor made them."""
        if not np.array_equal(self.ids, ids):
            raise SampleError(
                "processor and visual rule differ",
                f"{len(ids)} tokens, {len(self.ids)} by the rule: give PixelReader the rule of "
                "this processor",
            )

    def media_spans(self) -> tuple[MediaSpan, ...]:
        """Return a span for each run; what stands around it inside its medium belongs to it."""
        spans: list[MediaSpan] = []
        runs = iter(self.runs.tolist())
        positions = np.cumsum(self.counts) - self.counts
        for medium, (start, end) in zip(self.written.media, self.written.bounds.tolist()):
            visual, outer = medium.visual, medium.visual.num_outer // 2
            # Tokens that lie in the medium, even in part: text may merge across its edge.
            begin = int(np.searchsorted(self.text.ends, start, side="right")) - outer
            stop = int(np.searchsorted(self.text.starts, end, side="left")) + outer
            for number in range(1, visual.num_runs + 1):
                run = next(runs)
                is_last = number == visual.num_runs
                spans.append(
                    MediaSpan(
                        name=medium.segment.media,
                        kind=medium.segment.kind,
                        position=int(positions[run]),
                        num_tokens=int(self.counts[run]),
                        grid=visual.grid if visual.num_runs == 1 else (1, *visual.grid[1:]),
                        before=max(0, run - begin),
                        after=max(0, stop - run - 1) if is_last else 0,
                    )
                )
                begin = run + 1
        return tuple(spans)

    def tokens_within(self, spans: Sequence[tuple[int, int]]) -> NDArray[np.bool_]:
        """Return which `ids` lie wholly inside spans of characters of the rendered chat."""
        inside = np.zeros(len(self.counts), np.bool_)
        starts, ends = self.text.starts, self.text.ends
        for start, end in self.written.moved(np.array(spans, np.int64).reshape(-1, 2)).tolist():
            # A token of no characters, such as one that the tokenizer adds, is in no span.
            inside |= (starts >= start) & (ends <= end) & (ends > starts)
        return np.repeat(inside, self.counts)


def expand(written: WrittenChat, text: EncodedText, visual_ids: Sequence[int]) -> EncodedChat:
    """Return the chat with runs at their lengths; a run that is no medium is a `SampleError`."""
    runs = np.flatnonzero(np.isin(text.ids, visual_ids))
    visuals = [medium.visual for medium in written.media]
    num_runs = np.array([visual.num_runs for visual in visuals], np.int64)
    each = np.array([visual.num_visual // visual.num_runs for visual in visuals], np.int64)
    if len(runs) != int(num_runs.sum()):
        raise SampleError(
            "placeholders and media do not match",
            f"{len(runs)} runs of visual tokens in the text, {int(num_runs.sum())} of its media",
        )
    counts = np.ones(len(text.ids), np.int64)
    counts[runs] = np.repeat(each, num_runs)
    return EncodedChat(written, text, np.repeat(text.ids, counts), counts, runs)


@dataclass(slots=True)
class PixelProcessor:
    """A processor and its visual rule, which may not be known."""

    processor: Any
    rule: VisualRule | None
    _specials: re.Pattern[str] | None = field(default=None, repr=False)

    def render(self, messages: list[dict[str, Any]], *, tools: Any, prompt: bool = False) -> str:
        """Return a chat as the template writes it, with a placeholder for each medium."""
        listed = [
            {**message, "content": [{"type": "text", "text": message["content"]}]}
            if isinstance(message["content"], str)
            else message
            for message in messages
        ]
        with foreign(REFUSED):
            return str(
                self.processor.apply_chat_template(
                    listed, tokenize=False, tools=tools, add_generation_prompt=prompt
                )
            )

    def make(self, text: str, media: Sequence[Any]) -> Mapping[str, Any]:
        """Return ids and tensors of a text and the media that its placeholders stand for.

        Media are images as arrays [height, width, 3], and `VideoFrames`.
        """
        images = _pictures(medium for medium in media if not isinstance(medium, VideoFrames))
        videos = [medium for medium in media if isinstance(medium, VideoFrames)]
        options: dict[str, Any] = {"images": [images]} if images else {}
        if videos:
            describe = need("transformers.video_utils", extra="train").VideoMetadata
            options |= {
                "videos": [video.pixels for video in videos],
                "video_metadata": [
                    describe(
                        total_num_frames=video.size.num_frames,
                        fps=video.size.fps,
                        frames_indices=video.numbers.tolist(),
                    )
                    for video in videos
                ],
                "do_sample_frames": False,
            }
        with foreign(REFUSED):
            made: Mapping[str, Any] = self.processor(
                text=[text], return_tensors="pt", **options, **self._begun(text)
            )
        return made

    def make_media(self, segments: Sequence[Segment], media: Sequence[Any]) -> Mapping[str, Any]:
        """Return the tensors of media, for which the rule writes the text."""
        if not media:
            return {}
        has_grids = self.rule is not None and self.rule.image_grids is not None
        if has_grids and all(segment.kind == "image" for segment in segments):
            with foreign(REFUSED):
                made: Mapping[str, Any] = self.processor.image_processor(
                    images=_pictures(media), return_tensors="pt"
                )
            return made
        return self.make(self.marks(segments), media)

    def check_media(self, media: Sequence[ChatMedium], made: Mapping[str, Any]) -> None:
        """Raise `SampleError` unless media take as many tokens as the rule says."""
        if "input_ids" in made:
            marks = self.marks([medium.segment for medium in media])
            bare = write_media(marks, self.placeholders(), media)
            chat = expand(bare, self.encode(bare.text), self.visual_ids())
            chat.check(np.asarray(made["input_ids"][0], np.int64))
            return
        grids = [list(medium.visual.grid) for medium in media]
        name = None if self.rule is None else self.rule.image_grids
        found = made[name].tolist() if media and name is not None else []
        if grids != found:
            raise SampleError(
                "processor and visual rule differ", f"grids {found}, {grids} by the rule"
            )

    def marks(self, segments: Sequence[Segment]) -> str:
        """Return the shortest text that shows these media: their placeholders alone."""
        placeholders = self.placeholders()
        for segment in segments:
            if segment.kind not in placeholders:
                raise SampleError(f"the model takes no {segment.kind}")
        return "".join(placeholders[segment.kind] for segment in segments)

    def placeholders(self) -> Mapping[str, str]:
        """Return what the template writes for each kind of medium."""
        if self.rule is not None:
            return self.rule.placeholders()
        token = getattr(self.processor, "image_token", None)
        return {} if token is None else {"image": token}

    def visual_ids(self) -> list[int]:
        """Return the ids that runs of visual tokens are made of."""
        # To some processors the image token is what begins an image; their tokenizers know better.
        owners = (self.processor.tokenizer, self.processor)
        names = ("image_token_id", "video_token_id")
        found = [[getattr(owner, name, None) for owner in owners] for name in names]
        chosen = [next((i for i in ids if i is not None), None) for ids in found]
        return [int(token) for token in chosen if token is not None]

    def encode(self, text: str) -> EncodedText:
        """Return the tokens of a text as the processor's tokenizer makes them."""
        # The engine itself: what transformers puts around it takes as long again.
        encode = self.processor.tokenizer.backend_tokenizer.encode
        with foreign(REFUSED, Exception):
            found = encode(text, add_special_tokens=not self._begun(text))
        starts, ends = np.array(found.offsets, np.int64).reshape(-1, 2).T
        return EncodedText(np.array(found.ids, np.int64), starts, ends)

    def specials(self) -> re.Pattern[str]:
        """Return a pattern of all control tokens."""
        if self._specials is None:
            tokens = sorted(self.processor.tokenizer.get_added_vocab(), key=len, reverse=True)
            self._specials = re.compile("|".join(map(re.escape, tokens)) or r"(?!)")
        return self._specials

    def _begun(self, text: str) -> dict[str, bool]:
        # As `apply_chat_template` does: what a template has begun with is not added again.
        begun = self.processor.tokenizer.bos_token
        return {"add_special_tokens": False} if begun and text.startswith(begun) else {}


def _pictures(images: Iterable[NDArray[np.uint8]]) -> list[Any]:
    # Of PIL, since processors guess where the channels of a bare array are.
    make = need("PIL.Image", extra="image").fromarray
    return [make(image) for image in images]
