"""Chat templates: Jinja in a sandbox, and which characters of a rendered chat the assistant said.

Templates may use what those of Hugging Face may. One with `{% generation %}` blocks marks what the
assistant says: two marks are put around it, and the spans come from the rendering itself. For any
other, each answer is replaced by one private character and the chat is rendered again: what differs
is where the answer went.

    rendered   ...assistant\\nBlue.<|im_end|>\\n
    replaced   ...assistant\\nX<|im_end|>\\n        -> the answer is "Blue.", its end <|im_end|>

An answer with tool calls is replaced as a whole, so that the calls are part of what was said.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import date
from typing import Any, TypeAlias

from shardmill.errors import ConfigError, SampleError, foreign, need

Messages: TypeAlias = list[dict[str, Any]]
RenderChat: TypeAlias = Callable[..., str]

# Marks of a generation block: the last two private characters of Unicode, which no text may use.
OPEN, CLOSE = "\U0010fffc", "\U0010fffd"


def compile_chat(source: str, variables: Mapping[str, Any], today: date | None) -> RenderChat:
    """Return `render(messages, tools=None)` of a chat template; a bad one is a `ConfigError`."""
    jinja2 = need("jinja2", extra="text")
    environment = _environment(today)
    try:
        template = environment.from_string(source)
    except jinja2.TemplateError as error:
        raise ConfigError(f"the chat template does not compile: {error}") from error

    def render(messages: Messages, *, tools: Any = None, prompt: bool = False) -> str:
        with foreign("chat template failed", jinja2.TemplateError):
            return str(
                template.render(
                    messages=messages, tools=tools, add_generation_prompt=prompt, **variables
                )
            )

    return render


def _environment(today: date | None) -> Any:
    # The settings of transformers, for which templates are written. The sandbox matters: a template
    # comes with a model that somebody else published.
    sandbox = need("jinja2.sandbox", extra="text")
    environment = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_generation_tag(), "jinja2.ext.loopcontrols"],
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    # Only a date that the user gave: the clock would give the same sample other tokens tomorrow.
    if today is not None:
        environment.globals["strftime_now"] = today.strftime
    return environment


def _generation_tag() -> type:
    nodes, ext = need("jinja2.nodes", extra="text"), need("jinja2.ext", extra="text")

    class GenerationTag(ext.Extension):  # type: ignore[misc, name-defined]
        tags = frozenset({"generation"})

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            call = self.call_method("marked")
            return nodes.CallBlock(call, [], [], body).set_lineno(line)

        def marked(self, caller: Callable[[], str]) -> str:
            return f"{OPEN}{caller()}{CLOSE}"

    return GenerationTag


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes <, > and & for HTML, which no model was trained on.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> None:
    raise need("jinja2.exceptions", extra="text").TemplateError(message)


CharSpans: TypeAlias = list[tuple[int, int]]

PROBE = "\U0010fffb"
LONGEST_TOKEN = 64  # characters of a control token, for a look around a position
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
        start, end = _answer(rendered, render, messages, number, tools, special)
        start, end = (_token_start(rendered, position, special) for position in (start, end))
        # The end token may stand after white space that the template adds ("answer </s>").
        closing = re.compile(rf"\s*(?:{special.pattern})").match(rendered, end)
        spans.append((start, closing.end() if closing else end))
    return spans


def check_calls_shown(rendered: str, render: RenderChat, messages: Messages, tools: Any) -> None:
    """Raise `SampleError` if a template writes a chat as if nobody had called a tool."""
    if not any("tool_calls" in message for message in messages):
        return
    try:
        other = render([_without_calls(message) for message in messages], tools=tools)
    except SampleError:
        return  # it needs them
    if generation_spans(other)[0] == rendered:
        raise SampleError("chat template drops tool calls", "it writes the same without them")


def _answer(
    rendered: str,
    render: RenderChat,
    messages: Messages,
    number: int,
    tools: Any,
    special: re.Pattern[str],
) -> tuple[int, int]:
    probe = {**_without_calls(messages[number]), "content": PROBE}
    try:
        other = render([*messages[:number], probe, *messages[number + 1 :]], tools=tools)
    except SampleError:
        if "tool_calls" not in messages[number]:
            raise
        start, text = _turn_between(rendered, render, messages, number, tools)
        ends = [t.start() for t in special.finditer(text, start) if t.end() == len(text)]
        return start, ends[0] if ends else len(text)
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
    # changes. If what stands before it changes too, the model's prompt is the better start.
    start = _num_shared(rendered, other)
    end = len(rendered) - _num_shared(rendered[start:][::-1], other[start:][::-1])
    before = other[: other.index(PROBE)]
    if rendered.startswith(before):
        return len(before), max(len(before), end)
    given = render(messages[:number], tools=tools, prompt=True)
    if rendered.startswith(given):
        start = len(given)
    return start, max(start, end)


def _turn_between(
    rendered: str, render: RenderChat, messages: Messages, number: int, tools: Any
) -> tuple[int, str]:
    # A tool's answer must follow a call for some templates, so the call cannot be taken away; but
    # it stands between what the model is given and the end of the chat so far.
    given = render(messages[:number], tools=tools, prompt=True)
    so_far = render(messages[: number + 1], tools=tools)
    if not rendered.startswith(so_far) or not so_far.startswith(given):
        raise SampleError(
            "cannot tell what to learn",
            f"message {number}: mark answers in the chat template with {{% generation %}}",
        )
    return len(given), so_far.rstrip()


def _token_start(rendered: str, position: int, special: re.Pattern[str]) -> int:
    """Return where the control token begins that a position cuts (`<|eo` of `<|eom_id|>`)."""
    near = special.finditer(rendered, max(0, position - LONGEST_TOKEN), position + LONGEST_TOKEN)
    return next((t.start() for t in near if t.start() < position < t.end()), position)


def _without_calls(message: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in message.items() if name != "tool_calls"}


def _num_shared(one: str, other: str) -> int:
    pairs = enumerate(zip(one, other))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))
