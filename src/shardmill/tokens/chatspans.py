"""Which characters of a rendered chat the assistant said, taken from the rendering.

A template with `{% generation %}` blocks says so itself. For any other, each answer is replaced by
one private character and the chat is rendered again: what differs is where the answer went.

    rendered   ...assistant\\nBlue.<|im_end|>\\n
    replaced   ...assistant\\nX<|im_end|>\\n        -> the answer is "Blue.", its end <|im_end|>
"""

from __future__ import annotations

import re
from typing import Any, TypeAlias

from shardmill.errors import SampleError
from shardmill.tokens.jinja import CLOSE, OPEN, Messages, RenderChat

CharSpans: TypeAlias = list[tuple[int, int]]

PROBE = "\U0010fffb"
MARKS = re.compile(f"[{OPEN}{CLOSE}]")


def generation_spans(marked: str) -> tuple[str, CharSpans]:
    """Return the text without marks, and the spans that lay between them."""
    spans: CharSpans = []
    parts: list[str] = []
    position = depth = start = last = 0
    for mark in MARKS.finditer(marked):
        parts.append(marked[last : mark.start()])
        position += mark.start() - last
        last = mark.end()
        if mark[0] == OPEN:
            start = position if depth == 0 else start
            depth += 1
        else:
            depth -= 1
            if depth == 0 and position > start:
                spans.append((start, position))
    return "".join([*parts, marked[last:]]), spans


def answer_spans(
    rendered: str,
    render: RenderChat,
    messages: Messages,
    tools: Any,
    special: re.Pattern[str],
) -> CharSpans:
    """Return the span of each assistant turn with its end token."""
    spans: CharSpans = []
    for number, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        start, end = _answer(rendered, render, messages, number, tools)
        # The end token may stand after white space that the template adds ("answer </s>").
        closing = re.compile(rf"\s*(?:{special.pattern})").match(rendered, end)
        spans.append((start, closing.end() if closing else end))
    return spans


def _answer(
    rendered: str, render: RenderChat, messages: Messages, number: int, tools: Any
) -> tuple[int, int]:
    probe = {**messages[number], "content": PROBE}
    other = render([*messages[:number], probe, *messages[number + 1 :]], tools=tools)
    before, found, after = other.partition(PROBE)
    if not found:
        raise SampleError("chat template drops an answer", f"message {number}")
    if rendered.startswith(before) and rendered.endswith(after):
        return len(before), max(len(before), len(rendered) - len(after))
    return _answer_by_difference(rendered, other, render, messages, number, tools)


def _answer_by_difference(
    rendered: str, other: str, render: RenderChat, messages: Messages, number: int, tools: Any
) -> tuple[int, int]:
    # The template looks into the answer (it takes thoughts apart), so more than the answer
    # changes. What the model would be given to go on with is then the better start.
    start = _num_shared(rendered, other)
    end = len(rendered) - _num_shared(rendered[start:][::-1], other[start:][::-1])
    given = render(messages[:number], tools=tools, prompt=True)
    if rendered.startswith(given):
        start = len(given)
    return start, max(start, end)


def _num_shared(one: str, other: str) -> int:
    pairs = enumerate(zip(one, other))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))
