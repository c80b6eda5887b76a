"""What the assistant said is found from the rendering, however the template treats it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from shardmill.errors import SampleError
from shardmill.tokens.templates.jinja import (
    CLOSE,
    OPEN,
    answer_spans,
    check_calls_shown,
    compile_chat,
    generation_spans,
)

END = re.compile(re.escape("<end>"))


def spans_text(source: str, *turns: tuple[str, str]) -> list[str]:
    messages = [{"role": role, "content": content} for role, content in turns]
    render = compile_chat(source, {}, None)
    rendered = render(messages)
    return [rendered[a:b] for a, b in answer_spans(rendered, render, messages, None, END)]


PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}<end>\n{% endfor %}"


def test_each_answer_and_its_end_is_found() -> None:
    turns = [("user", "A"), ("assistant", "A"), ("user", "b"), ("assistant", "")]
    assert spans_text(PLAIN, *turns) == ["A<end>", "<end>"]


def test_an_answer_that_stands_elsewhere_too_is_not_mistaken() -> None:
    turns = [("user", "assistant: yes"), ("assistant", "yes"), ("user", "yes")]
    assert spans_text(PLAIN, *turns) == ["yes<end>"]


def test_a_template_may_trim() -> None:
    source = "{% for m in messages %}[{{ m.content | trim }} <end>]{% endfor %}"
    assert spans_text(source, ("user", " q "), ("assistant", " a ")) == ["a <end>"]


def test_a_template_may_take_thoughts_out_of_the_past() -> None:
    source = (
        "{% for m in messages %}{{ m.role }}:"
        "{% if m.role == 'assistant' and not loop.last %}{{ m.content.split('</t>')[-1] }}"
        "{% elif m.role == 'assistant' and '</t>' in m.content %}"
        "<t>{{ m.content.split('</t>')[0].strip('<t>') }}</t>{{ m.content.split('</t>')[-1] }}"
        "{% else %}{{ m.content }}{% endif %}<end>{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}"
    )
    turns = [
        ("user", "q"),
        ("assistant", "<t>x</t>one"),
        ("user", "r"),
        ("assistant", "<t>y</t>two"),
    ]
    assert spans_text(source, *turns) == ["one<end>", "<t>y</t>two<end>"]


def test_a_template_that_drops_an_answer_is_a_reject() -> None:
    with pytest.raises(SampleError, match="drops an answer"):
        spans_text("{{ messages[0].content }}", ("user", "q"), ("assistant", "a"))


def test_marks_become_spans() -> None:
    marked = f"a{OPEN}bc{CLOSE}d{OPEN}{CLOSE}{OPEN}e{OPEN}f{CLOSE}{CLOSE}"
    assert generation_spans(marked) == ("abcdef", [(1, 3), (4, 6)])
    assert generation_spans("plain") == ("plain", [])


def calls_text(source: str, special: str, *more: dict[str, Any]) -> list[str]:
    calling = {"role": "assistant", "content": "", "tool_calls": [{"name": "f"}]}
    messages = [{"role": "user", "content": "q"}, calling, *more]
    render = compile_chat(source, {}, None)
    rendered = render(messages)
    spans = answer_spans(rendered, render, messages, None, re.compile(special))
    return [rendered[a:b] for a, b in spans]


TOOL = {"role": "tool", "content": "2"}


def test_a_call_may_end_with_a_token_of_its_own() -> None:
    source = (
        "{% for m in messages %}<|start|>{{ m.role }}:"
        "{% if m.tool_calls %}<|py|>{{ m.tool_calls[0].name }}<|eom|>"
        "{% else %}{{ m.content }}<|eot|>{% endif %}{% endfor %}"
    )
    assert calls_text(source, r"<\|\w+\|>", TOOL) == ["<|py|>f<|eom|>"]


NEEDS_CALLS = (
    "{% for m in messages %}"
    "{% if m.role == 'tool' and not messages[loop.index0 - 1].tool_calls %}"
    "{{ raise_exception('who called?') }}{% endif %}"
    "{% if m.tool_calls %}[CALL] {{ m.tool_calls[0].name }}<end>"
    "{% else %}[{{ m.role }}]{{ m.content }}{{ '<end>' if m.role == 'assistant' }}{% endif %}"
    "{% endfor %}"
)


def test_a_call_that_must_be_there_stands_after_what_the_model_is_given() -> None:
    assert calls_text(NEEDS_CALLS, r"<end>|\[\w+\]", TOOL) == ["[CALL] f<end>"]


def test_a_call_that_cannot_be_told_apart_is_a_reject() -> None:
    source = "{{ messages | length }}" + NEEDS_CALLS
    with pytest.raises(SampleError, match="cannot tell what to learn"):
        calls_text(source, "<end>", TOOL)


def test_a_template_must_show_the_calls() -> None:
    messages = [{"role": "assistant", "content": "a", "tool_calls": [{"name": "f"}]}]
    render = compile_chat(PLAIN, {}, None)
    with pytest.raises(SampleError, match="drops tool calls"):
        check_calls_shown(render(messages), render, messages, None)
    render = compile_chat(NEEDS_CALLS, {}, None)
    check_calls_shown(render(messages), render, messages, None)
