"""A user's own function from the size of a medium to a number of tokens, as a visual rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module

from shardmill.errors import ConfigError
from shardmill.model.sample import MediaSize
from shardmill.tokens.visual.rule import Visual, VisualRule, refuse


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionRule(VisualRule):
    """`path` is "package.module:function", called as f(kind, size) -> number of visual tokens.

    `tokens` gives what the chat template writes for each kind; the processor repeats that token.
    """

    path: str
    tokens: Mapping[str, str] = field(default_factory=lambda: {"image": "<image>"})

    def placeholders(self) -> Mapping[str, str]:
        return self.tokens

    def count(self, kind: str, size: MediaSize) -> Visual:
        if kind not in self.tokens:
            raise refuse(self.path, kind)
        num_tokens = load_function(self.path)(kind, size)
        if not isinstance(num_tokens, int) or num_tokens < 1:
            raise ConfigError(f"{self.path} must return a positive int, got {num_tokens!r}")
        return Visual(self.tokens[kind], num_tokens)


@cache
def load_function(path: str) -> Callable[[str, MediaSize], object]:
    """Return the function that 'package.module:function' names."""
    module, colon, name = path.partition(":")
    try:
        found = getattr(import_module(module), name) if colon else None
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"cannot load {path!r}: {error}") from error
    if not callable(found):
        raise ConfigError(f"{path!r} is not a function of the form 'package.module:function'")
    return found  # type: ignore[no-any-return]
