"""Chat templates run in a sandbox; what they raise is a reason, not a crash."""

from __future__ import annotations

from datetime import date

import pytest

from shardmill.errors import ConfigError, SampleError
from shardmill.tokens.templates.jinja import CLOSE, OPEN, compile_chat

MESSAGES = [{"role": "user", "content": "<b>é"}]


def test_messages_tools_and_variables_reach_the_template() -> None:
    source = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}{{ tools | tojson }}"
    render = compile_chat(source, {"bos_token": "<s>"}, None)
    assert render(MESSAGES, tools=[{"name": "é<"}]) == '<s><b>é[{"name": "é<"}]'


def test_generation_blocks_leave_marks() -> None:
    render = compile_chat("a{% generation %}b{% endgeneration %}c", {}, None)
    assert render(MESSAGES) == f"a{OPEN}b{CLOSE}c"


def test_the_date_is_given_and_never_today() -> None:
    source = "{{ strftime_now('%d %b %Y') if strftime_now is defined else 'none' }}"
    assert compile_chat(source, {}, date(2024, 7, 26))(MESSAGES) == "26 Jul 2024"
    assert compile_chat(source, {}, None)(MESSAGES) == "none"


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[7].content }}",
        "{{ messages[0]['content'] + 1 }}",
        "{{ ''.__class__.__mro__ }}",
        "{% for i in range(10000000000) %}x{% endfor %}",
        "{{ messages.append(1) }}",
        "{{ missing.field }}",
    ],
)
def test_a_template_that_fails_is_a_reject(source: str) -> None:
    with pytest.raises(SampleError, match="chat template failed"):
        compile_chat(source, {}, None)(MESSAGES)


def test_a_template_that_does_not_compile_is_an_error() -> None:
    with pytest.raises(ConfigError, match="does not compile"):
        compile_chat("{% for %}", {}, None)
