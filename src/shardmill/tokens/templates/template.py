"""What a template returns: an ordered list of texts, control tokens and media, each with its loss.

A template says what is said and what is learned; it knows no ids of text. Text that one `Text`
holds is encoded in one go, so that words may merge across its parts. `PlainText` is the simplest
one, and an example for your own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol, TypeAlias, runtime_checkable

from shardmill.errors import SampleError
from shardmill.model.rng import SampleRng
from shardmill.model.sample import ROLES, Sample, Segment
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
    its control tokens ("<|im_end|>"), in this order; "boi" may be called "<boi>" there.
    """

    def find(name: str) -> int:
        if name in space.names:
            return space.names[name]
        if name in tokenizer.roles:
            return tokenizer.roles[name]
        for token in (name, f"<{name}>"):
            if token in tokenizer.specials:
                return tokenizer.specials[token].id
        return space.special(name)

    return find


def ends(
    tokenizer: TextTokenizer, space: TokenSpace, *, bos: bool, eos: bool, learn_bos: bool = False
) -> tuple[list[Token], list[Token]]:
    """Return the control tokens before and after a sample, as far as they are wanted.

    The end is always learned; `learn_bos` is for templates that learn all of a sample.
    """
    find = control_ids(tokenizer, space)
    return (
        [Token(find("bos"), learn_bos)] if bos else [],
        [Token(find("eos"), True)] if eos else [],
    )


def text_runs(segments: Iterable[Segment]) -> list[Segment | list[str]]:
    """Return media as they are, and the texts that stand next to each other as one list."""
    runs: list[Segment | list[str]] = []
    for segment in segments:
        if segment.kind != "text":
            runs.append(segment)
        elif runs and isinstance(runs[-1], list):
            runs[-1].append(segment.text)
        else:
            runs.append([segment.text])
    return runs


def conversation(sample: Sample) -> list[tuple[str, list[Segment]]]:
    """Return the turns of a sample as (role, segments); `SampleError` if it is no conversation."""
    turns: list[tuple[str, list[Segment]]] = []
    # Two turns of one role may follow each other, so that the number of the turn counts too.
    for (role, _), group in groupby(sample.document.segments, lambda s: (s.role, s.turn)):
        if role is None:
            detail = (
                "a segment has no role, as in pairs and plain text: choose another --template, or "
                "ingest chat messages"
            )
            raise SampleError("not a conversation", detail)
        if role not in ROLES:
            raise SampleError("unknown role", f"{role!r} is none of {', '.join(ROLES)}")
        turns.append((role, list(group)))
    if not turns:
        raise SampleError("empty conversation")
    return turns


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainText:
    """[bos] text [eos]: all text of the document, learned; its segments are joined by newlines."""

    bos: bool = False
    eos: bool = True

    def bind(self, tokenizer: TextTokenizer, space: TokenSpace) -> Render:
        """Return the function that renders samples for this tokenizer and this space."""
        first, last = ends(tokenizer, space, bos=self.bos, eos=self.eos, learn_bos=True)

        def render(sample: Sample, rng: SampleRng) -> list[Piece]:
            media = sample.document.media()
            if media:
                what = f"{media[0].kind} {media[0].media!r}"
                raise SampleError("media in plain text", f"{what}: choose another --template")
            return [*first, text(sample.document.text, True), *last]

        return render
