"""A chat with pictures as a model's processor writes it, without looking at a pixel.

The chat template marks each medium, the visual rule says what the processor puts there. What comes
out is the processor's text with each run of visual tokens written once, and the runs' lengths.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any, Literal, TypeAlias

from shardmill.errors import ConfigError, SampleError
from shardmill.model.frames import UnknownSize
from shardmill.model.sample import MediaSize, Sample, Segment
from shardmill.model.turnfields import change_texts, tools_of, turn_fields
from shardmill.tokens.estimate import TOKENS_PER_MEDIUM, given_sizes
from shardmill.tokens.jinja import Messages, RenderChat, compile_chat
from shardmill.tokens.processed import TextCounter
from shardmill.tokens.template_turns import conversation
from shardmill.tokens.text import check_text
from shardmill.tokens.visual.rule import Visual, VisualRule, replace_placeholders

Sizes: TypeAlias = Mapping[str, MediaSize]
PROBE = "PROBE"


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
        self.rule, self.writing = rule, writing
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
            for segment, given in zip(media, given_sizes(media, sample.extra))
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
