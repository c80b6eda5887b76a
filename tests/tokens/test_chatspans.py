"""What the assistant said is found from the rendering, however the template treats it."""

from __future__ import annotations

import re

import pytest

from shardmill.errors import SampleError
from shardmill.tokens.chatspans import answer_spans, generation_spans
from shardmill.tokens.jinja import CLOSE, OPEN, compile_chat

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
