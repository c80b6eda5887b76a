"""What a template returns: an ordered list of texts, control tokens and media, each with its loss.

A template says what is said and what is learned; it knows no ids of text. Text that one `Text`
holds is encoded in one go, so that words may merge across its parts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

from shardmill.model.rng import SampleRng
from shardmill.model.sample import Sample, Segment
from shardmill.model.space import TokenSpace
from shardmill.tokens.text.tokenizer import TextTokenizer


@dataclass(frozen=True, slots=True)
class Text:
    """Text encoded in one go, as parts (text, whether it is learned)."""

    parts: tuple[tuple[str, bool], ...]


@dataclass(frozen=True, slots=True)
class Token:
    """A control token by its id in the space."""

    id: int
    loss: bool = False


@dataclass(frozen=True, slots=True)
class Medium:
    """The block of one medium: delimiters, body, delimiters.

    `loss` is for the body and what follows it, `loss_on_start` for the opening delimiters: a model
    that is told to draw need not learn to open an image. `bare` leaves the delimiters out, where
    a chat template has written them already.
    """

    segment: Segment
    loss: bool = False
    loss_on_start: bool = False
    bare: bool = False


Piece: TypeAlias = Text | Token | Medium
Render: TypeAlias = Callable[[Sample, SampleRng], list[Piece]]


@runtime_checkable
class Template(Protocol):
    """A template as configuration: a frozen dataclass.

    A user's own class needs this one method: `bind` looks up once what it needs, and returns the
    function that turns each sample into pieces. A sample that does not fit is a `SampleError`.
    """

    def bind(self, tokenizer: TextTokenizer, space: TokenSpace) -> Render:
        """Return the function that renders samples for this tokenizer and this space."""


def text(content: str, loss: bool = False) -> Text:
    """Return a piece of one part."""
    return Text(((content, loss),))


def control_ids(tokenizer: TextTokenizer, space: TokenSpace) -> Callable[[str], int]:
    """Return the lookup of a control token by name.

    A name is one of the space, a role of the tokenizer ("bos", "eos") or the very text of one of
    its control tokens ("<|im_end|>"), in this order.
    """

    def find(name: str) -> int:
        if name in space.names:
            return space.names[name]
        if name in tokenizer.roles:
            return tokenizer.roles[name]
        if name in tokenizer.specials:
            return tokenizer.specials[name].id
        return space.special(name)

    return find
