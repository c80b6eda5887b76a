"""Chats by the tokenizer's own Jinja template; the assistant's turns and their ends are learned.

Control tokens come from the template and never from what people wrote: before rendering, the text
of a control token inside a message, a tool or a tool call becomes a private character, and then it
is put back into text that is encoded without control tokens. Media stand in the text as private
characters too, or the template writes its own placeholder for them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Literal

from shardmill.errors import ConfigError, SampleError
from shardmill.model.rng import SampleRng
from shardmill.model.sample import Sample, Segment, change_texts, tools_of, turn_fields
from shardmill.model.space import TokenSpace
from shardmill.tokens.templates.jinja import (
    CharSpans,
    Messages,
    RenderChat,
    answer_spans,
    check_calls_shown,
    compile_chat,
    generation_spans,
)
from shardmill.tokens.templates.template import Medium, Piece, Render, Text, Token, conversation
from shardmill.tokens.text.tokenizer import Special, TextTokenizer, check_text

# Private characters: control tokens that people wrote, then the media of the sample.
FIRST, LAST, FIRST_MEDIUM = 0xF0000, 0x10FFFD, 0x100000
PRIVATE = re.compile(f"[{chr(FIRST)}-{chr(LAST)}]")
# A private character of the text itself travels as this one and six hexadecimal digits.
ESCAPE = "\U000ffffd"
ESCAPED = re.compile(f"{ESCAPE}([0-9a-f]{{6}})")
NEVER = r"(?!)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """A conversation as the chat template writes it.

    `template` is a file with the template; without it the tokenizer's own is used. `media` says
    who writes images: "inline" puts their block where they stand in the message, "template"
    hands them to the template as items and replaces `placeholders` (its token for each kind).
    `tools_field` names the field of the row that lists tools; tool calls come with their turns (see
    `model.turnfields`), and the template gets both as transformers hands them over. `today` is what
    a template gets that asks for the date, as YYYY-MM-DD.
    """

    template: Path | None = None
    learn: Literal["assistant", "all"] = "assistant"
    media: Literal["inline", "template"] = "inline"
    placeholders: Mapping[str, str] | None = None
    tools_field: str = "tools"
    today: str | None = None

    def bind(self, tokenizer: TextTokenizer, space: TokenSpace) -> Render:
        """Return the function that renders samples for this tokenizer and this space."""
        try:
            render = compile_chat(self._source(tokenizer), tokenizer.variables, self._date())
        except ConfigError as error:
            raise ConfigError(f"{self.template or tokenizer.name}: {error}") from error
        kinds = self._kinds(tokenizer)
        writer = _Writer(tokenizer.specials, kinds)

        def pieces(sample: Sample, rng: SampleRng) -> list[Piece]:
            messages, media = self._messages(sample, writer)
            tools = change_texts(tools_of(sample, self.tools_field), writer.hide)
            text, spans = self._render(render, messages, tools, writer)
            return writer.pieces(text, spans, media)

        return pieces

    def _source(self, tokenizer: TextTokenizer) -> str:
        if self.template is not None:
            try:
                return self.template.read_text("utf-8")
            except OSError as error:
                raise ConfigError(f"cannot read the chat template: {error}") from error
        if tokenizer.chat_template is None:
            raise ConfigError(
                f"{tokenizer.name} has no chat template: name a file by --template "
                "chat,template=FILE"
            )
        return tokenizer.chat_template

    def _date(self) -> date | None:
        try:
            return None if self.today is None else date.fromisoformat(self.today)
        except ValueError as error:
            raise ConfigError(f"today must be YYYY-MM-DD, got {self.today!r}") from error

    def _kinds(self, tokenizer: TextTokenizer) -> dict[str, str]:
        if self.media == "inline":
            return {}
        placeholders = self.placeholders or {"image": "<|image_pad|>", "video": "<|video_pad|>"}
        unknown = [token for token in placeholders.values() if token not in tokenizer.specials]
        if unknown:
            raise ConfigError(f"{unknown[0]!r} is no control token of {tokenizer.name}")
        return {token: kind for kind, token in placeholders.items()}

    def _messages(self, sample: Sample, writer: _Writer) -> tuple[Messages, list[Segment]]:
        messages: Messages = []
        media: list[Segment] = []
        more = change_texts(turn_fields(sample), writer.hide)
        for role, segments in conversation(sample):
            items: list[dict[str, str]] = []
            for segment in segments:
                if segment.kind == "text":
                    items.append({"type": "text", "text": writer.hide(segment.text)})
                else:
                    items.append({"type": segment.kind, "text": chr(FIRST_MEDIUM + len(media))})
                    media.append(segment)
            if self.media == "inline" or all(item["type"] == "text" for item in items):
                content: Any = "".join(item["text"] for item in items)
            else:
                content = [i if i["type"] == "text" else {"type": i["type"]} for i in items]
            more_of_turn = more.get(segments[0].turn, {})
            messages.append({"role": role, "content": content, **more_of_turn})
        return messages, media

    def _render(
        self, render: RenderChat, messages: Messages, tools: Any, writer: _Writer
    ) -> tuple[str, CharSpans]:
        rendered, spans = generation_spans(render(messages, tools=tools))
        check_calls_shown(rendered, render, messages, tools)
        if self.learn == "all":
            return rendered, [(0, len(rendered))]
        if not spans:
            spans = answer_spans(rendered, render, messages, tools, writer.special)
        return rendered, spans


class _Writer:
    """Hides what must not be read as control, and takes a rendered chat apart into pieces."""

    def __init__(self, specials: Mapping[str, Special], kinds: Mapping[str, str]) -> None:
        self.specials, self.kinds = specials, kinds
        longest_first = sorted(specials, key=len, reverse=True)
        self.special = re.compile("|".join(map(re.escape, longest_first)) or NEVER)
        self.hidden = {token: chr(FIRST + i) for i, token in enumerate(longest_first)}
        self.shown = {ord(private): token for token, private in self.hidden.items()}
        media = f"[{chr(FIRST_MEDIUM)}-{chr(LAST)}]"
        self.splitter = re.compile(f"({self.special.pattern}|{media})")

    def hide(self, text: str) -> str:
        """Return the text with private characters for control tokens that people wrote."""
        check_text(text)
        if not text.isascii():
            text = PRIVATE.sub(lambda match: f"{ESCAPE}{ord(match[0]):06x}", text)
        return self.special.sub(lambda match: self.hidden[match[0]], text)

    def pieces(self, text: str, spans: CharSpans, media: Sequence[Segment]) -> list[Piece]:
        """Return the pieces of a rendered chat; it must show every medium once."""
        queues = {kind: iter([s for s in media if s.kind == kind]) for kind in self.kinds.values()}
        pieces: list[Piece] = []
        position, strip_next = 0, False
        for part in self.splitter.split(text):
            start, position = position, position + len(part)
            learned = any(first <= start < last for first, last in spans)
            special = self.specials.get(part)
            if special is not None:
                if special.lstrip:
                    _strip_end(pieces)
                pieces.append(self._control(part, special, learned, queues))
            elif len(part) == 1 and FIRST_MEDIUM <= ord(part) <= LAST:
                pieces.append(Medium(media[ord(part) - FIRST_MEDIUM], learned, learned))
            elif part:
                run = list(self._parts(part, start, spans))
                pieces.append(Text(tuple(_lstripped(run) if strip_next else run)))
            strip_next = special is not None and special.rstrip
        num_shown = sum(isinstance(piece, Medium) for piece in pieces)
        if num_shown != len(media):
            raise _mismatch(f"the chat template wrote {num_shown} of {len(media)} media")
        return [piece for piece in pieces if not isinstance(piece, Text) or piece.parts]

    def _control(
        self, part: str, special: Special, learned: bool, queues: Mapping[str, Iterator[Segment]]
    ) -> Piece:
        if part not in self.kinds:
            return Token(special.id, learned)
        segment = next(queues[self.kinds[part]], None)
        if segment is None:
            raise _mismatch(f"the chat template wrote one {part} too many")
        return Medium(segment, loss=learned, bare=True)

    def _parts(self, text: str, start: int, spans: CharSpans) -> Iterator[tuple[str, bool]]:
        end, position = start + len(text), start
        for first, last in spans:
            first, last = max(first, position), min(last, end)
            if first >= last:
                continue
            if first > position:
                yield self._show(text[position - start : first - start]), False
            yield self._show(text[first - start : last - start]), True
            position = last
        if position < end:
            yield self._show(text[position - start :]), False

    def _show(self, text: str) -> str:
        if text.isascii():
            return text
        return ESCAPED.sub(lambda match: chr(int(match[1], 16)), text.translate(self.shown))


def _mismatch(detail: str) -> SampleError:
    return SampleError("placeholders and media do not match", detail)


def _strip_end(pieces: list[Piece]) -> None:
    if pieces and isinstance(pieces[-1], Text):
        *rest, (last, loss) = pieces[-1].parts
        kept = last.rstrip()
        pieces[-1] = Text((*rest, (kept, loss)) if kept else tuple(rest))


def _lstripped(parts: list[tuple[str, bool]]) -> list[tuple[str, bool]]:
    first, loss = parts[0]
    kept = first.lstrip()
    return [(kept, loss), *parts[1:]] if kept else parts[1:]
