"""Chat templates: Jinja in a sandbox, with what Hugging Face chat templates may use.

`{% generation %}` blocks mark what the assistant says; here they put two marks around it, so that
the spans come from the rendering itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import date
from typing import Any, TypeAlias

from shardmill.errors import ConfigError, SampleError
from shardmill.extras import need

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
        try:
            return str(
                template.render(
                    messages=messages, tools=tools, add_generation_prompt=prompt, **variables
                )
            )
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, OverflowError) as error:
            raise SampleError("chat template failed", f"{type(error).__name__}: {error}") from error

    return render


def _environment(today: date | None) -> Any:
    sandbox = need("jinja2.sandbox", extra="text")
    environment = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_generation_tag(), "jinja2.ext.loopcontrols"],
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
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
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> None:
    raise need("jinja2.exceptions", extra="text").TemplateError(message)
