"""How many tokens a sample has for a model that takes pixels, without looking at a pixel.

Exact: `ChatWriter` writes a sample as the model's processor would. The chat template marks each
medium, the visual rule says what the processor puts there, and `TextCounter` counts the text.

Estimated, and marked so, where there is no tokenizer: a third of the bytes, and 500 tokens for a
medium of unknown size. Bytes of UTF-8 rather than characters, so that a Chinese character counts as
one token and an English text as a third of its letters. A row's own `_text_tokens` is believed for
its text, its `mm_inputs_meta` for the sizes of its media where the index has none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Literal, TypeAlias

from shardmill.errors import ConfigError, SampleError
from shardmill.model.frames import UnknownSize
from shardmill.model.sample import (
    Document,
    MediaSize,
    Sample,
    Segment,
    change_texts,
    tools_of,
    turn_fields,
)
from shardmill.tokens.templates.jinja import Messages, RenderChat, compile_chat
from shardmill.tokens.templates.template import conversation
from shardmill.tokens.text.huggingface import TextCounter
from shardmill.tokens.text.tokenizer import check_text
from shardmill.tokens.visual.rule import Visual, VisualRule, replace_placeholders

# What NeMo's neat packing takes, though of bytes and not of characters.
BYTES_PER_TOKEN = 3
TOKENS_PER_MEDIUM = 500
TOKENS_PER_TURN = 5  # role, delimiters and newlines of a chat template
TOKENS_AROUND_MEDIUM = 2
PROBE = "PROBE"

Sizes: TypeAlias = Mapping[str, MediaSize]


@dataclass(frozen=True, slots=True)
class TokenCount:
    """The columns of one sample in a length table."""

    num_tokens: int
    num_visual: int
    num_fixed: int


def estimate_sample(
    document: Document,
    extra: Mapping[str, Any],
    sizes: Sequence[MediaSize | None],
    rule: VisualRule | None = None,
) -> TokenCount:
    """Return an estimate; `sizes` are those of the document's media in order, None if unknown."""
    kinds = [segment.kind for segment in document.media()]
    known = [size or given for size, given in zip(sizes, given_sizes(kinds, extra))]
    visual = sum(estimate_medium(kind, size, rule) for kind, size in zip(kinds, known))
    fixed = visual + TOKENS_AROUND_MEDIUM * len(kinds)
    num_turns = len({(segment.role, segment.turn) for segment in document.segments if segment.role})
    text = estimate_text((s.text for s in document.segments), extra) + TOKENS_PER_TURN * num_turns
    return TokenCount(max(1, text + fixed), visual, fixed)


def estimate_text(texts: Iterable[str], extra: Mapping[str, Any]) -> int:
    """Return the tokens of all texts; the row's own count, `_text_tokens`, if it has one."""
    counted = extra.get("_text_tokens")
    if isinstance(counted, int) and counted >= 0 and not isinstance(counted, bool):
        return counted
    return sum(len(text.encode("utf-8", "replace")) for text in texts) // BYTES_PER_TOKEN


def estimate_medium(kind: str, size: MediaSize | int | None, rule: VisualRule | None) -> int:
    """Return the visual tokens of a medium: by the rule if its size is known, else 500."""
    if isinstance(size, int):
        return size
    if rule is None or size is None or kind not in rule.placeholders():
        return TOKENS_PER_MEDIUM
    try:
        return rule.count(kind, size).num_visual
    except SampleError:
        return TOKENS_PER_MEDIUM


def given_sizes(kinds: Iterable[str], extra: Mapping[str, Any]) -> Iterator[MediaSize | int | None]:
    """Yield what the row's `mm_inputs_meta` says of each medium: a size, a count, or nothing."""
    meta = extra.get("mm_inputs_meta")
    lists = {
        kind: iter(found if isinstance(found, list) else ())
        for kind in ("image", "video")
        for found in [meta.get(f"{kind}s_meta") if isinstance(meta, dict) else None]
    }
    for kind in kinds:
        yield _size_of_entry(kind, next(lists.get(kind, iter(())), None))


def _size_of_entry(kind: str, entry: Any) -> MediaSize | int | None:
    # [h, w], [frames, h, w, fps, duration] or {"n_tokens": n}, as people write them
    if isinstance(entry, dict):
        count = entry.get("n_tokens")
        return count if isinstance(count, int) and count > 0 else None
    # Rows come from anywhere: what is not of this form counts as unknown, never as an error.
    wanted = 2 if kind == "image" else 5
    if not isinstance(entry, list) or len(entry) != wanted:
        return None
    if not all(isinstance(value, int | float) and 0 <= value < 1e9 for value in entry):
        return None
    if kind == "image":
        return MediaSize(height=int(entry[0]), width=int(entry[1]))
    num_frames, height, width, fps, duration_s = entry
    return MediaSize(
        height=int(height),
        width=int(width),
        num_frames=int(num_frames) or int(duration_s * fps),
        fps=float(fps) or (num_frames / duration_s if duration_s else 0.0),
        duration_s=float(duration_s),
    )


@dataclass(frozen=True, slots=True)
class Written:
    """A sample as text with its media; `exact` is False if a medium's size had to be guessed."""

    text: str
    visuals: tuple[Visual, ...]
    exact: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatWriting:
    """How samples become text for a processor.

    `unknown` says what becomes of media whose size the index does not have: the sample is
    rejected, or its length is guessed and marked so. `control` says what becomes of a control
    token that a person wrote: processors take it for one ("count"), or the sample is rejected.
    """

    unknown: Literal["reject", "estimate"] = "reject"
    control: Literal["count", "reject"] = "count"
    tools_field: str = "tools"
    today: date | None = None


class ChatWriter:
    """Writes samples with one tokenizer's template and one model's rule."""

    def __init__(
        self, counter: TextCounter, rule: VisualRule, template: str, writing: ChatWriting
    ) -> None:
        self.counter, self.rule, self.writing = counter, rule, writing
        self.placeholders = dict(rule.placeholders())
        _check_placeholders(self.placeholders, counter)
        self.render = compile_chat(template, counter.variables, writing.today)
        self.takes_items = takes_items(self.render)
        self.control = re.compile("|".join(map(re.escape, counter.specials)) or r"(?!)")

    def write(self, sample: Sample, sizes: Sizes) -> Written:
        """Return the processor's text; whatever it could not take is a `SampleError`."""
        messages = self._messages(sample)
        tools = change_texts(tools_of(sample, self.writing.tools_field), self._checked)
        rendered = self.render(messages, tools=tools)
        media = sample.document.media()
        found = [
            self._visual(segment, sizes, given)
            for segment, given in zip(media, given_sizes((s.kind for s in media), sample.extra))
        ]
        by_kind: dict[str, list[Visual]] = {}
        for segment, (visual, _) in zip(media, found):
            by_kind.setdefault(segment.kind, []).append(visual)
        text = replace_placeholders(rendered, self.placeholders, by_kind)
        if not text:
            raise SampleError("no tokens", "the chat template wrote nothing")
        return Written(text, tuple(v for v, _ in found), all(exact for _, exact in found))

    def _messages(self, sample: Sample) -> Messages:
        messages: Messages = []
        more = change_texts(turn_fields(sample), self._checked)
        for role, segments in conversation(sample):
            content: Any = [self._item(segment) for segment in segments]
            if not self.takes_items:
                content = "".join(item.get("text", "") for item in content)
            messages.append({"role": role, "content": content, **more.get(segments[0].turn, {})})
        return messages

    def _item(self, segment: Segment) -> dict[str, str]:
        if segment.kind != "text":
            return {"type": segment.kind}
        return {"type": "text", "text": self._checked(segment.text)}

    def _checked(self, text: str) -> str:
        check_text(text)
        if self.writing.control == "reject" and (found := self.control.search(text)):
            raise SampleError("control token in text", found[0])
        return text

    def _visual(
        self, segment: Segment, sizes: Sizes, given: MediaSize | int | None
    ) -> tuple[Visual, bool]:
        size = sizes.get(segment.media)
        if size is None:
            raise SampleError("missing media", f"the index has no {segment.media!r}")
        try:
            return self.rule.count(segment.kind, _whole(segment, size)), True
        except UnknownSize:
            if self.writing.unknown == "reject":
                raise
            return self._guess(segment.kind, given), False

    def _guess(self, kind: str, given: MediaSize | int | None) -> Visual:
        if isinstance(given, MediaSize):
            try:
                return self.rule.count(kind, given)
            except UnknownSize:
                given = None
        return Visual(self.placeholders[kind], given or TOKENS_PER_MEDIUM)


def takes_items(render: RenderChat) -> bool:
    """Say whether a template reads a message as a list of items, or only as one text.

    One that knows only text writes the list as Python would, or fails although text is fine.
    """
    as_items = _probe(render, [{"type": "text", "text": PROBE}])
    if as_items is None:
        return _probe(render, PROBE) is None
    return repr(PROBE) not in as_items


def _probe(render: RenderChat, content: Any) -> str | None:
    try:
        return render([{"role": "user", "content": content}])
    except SampleError:
        return None


def _whole(segment: Segment, size: MediaSize) -> MediaSize:
    if segment.time_s is not None and segment.kind == "video":
        raise UnknownSize("part of a video", "cut clips out first: how long they get is not known")
    return size


def _check_placeholders(placeholders: Mapping[str, Any], counter: TextCounter) -> None:
    if counter.specials and not any(
        token in text for text in placeholders.values() for token in counter.specials
    ):
        raise ConfigError(
            f"{counter.name} has no control token of {', '.join(placeholders.values())}: is it "
            "the tokenizer of this model?"
        )
