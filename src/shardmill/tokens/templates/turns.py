"""Conversations and captions without role markers: bos, then each turn, answers end with eos.

    turns      bos question answer eos question answer eos      learned: each answer with its eos
    captions   bos [frame] ... [frame] caption eos              learned: caption, eos
               bos [frame]#0 ... [frame]#1000 caption eos       with marks behind the frames
               bos [frame] caption eos [frame] caption eos      clips, each with its caption

Every turn is encoded on its own, as the pipelines do that concatenate such rows to 8k. In captions,
media ask and what is said of them answers; a document that has roles is said as in `turns`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import groupby

from shardmill.errors import SampleError
from shardmill.model.rng import SampleRng
from shardmill.model.sample import ROLES, Document, Sample, Segment, turn_fields
from shardmill.model.space import TokenSpace
from shardmill.tokens.templates.interleaved import text_runs
from shardmill.tokens.templates.template import Medium, Piece, Render, Text, Token, control_ids
from shardmill.tokens.text.tokenizer import TextTokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """Turns one after the other; the text of a turn is split only by its media."""

    bos: bool = True

    def bind(self, tokenizer: TextTokenizer, space: TokenSpace) -> Render:
        """Return the function that renders samples for this tokenizer and this space."""
        find = control_ids(tokenizer, space)
        bos = [Token(find("bos"))] if self.bos else []
        eos = Token(find("eos"), True)

        def render(sample: Sample, rng: SampleRng) -> list[Piece]:
            if any("tool_calls" in fields for fields in turn_fields(sample).values()):
                raise SampleError("tool calls", "turns without markers cannot say them: use chat")
            pieces: list[Piece] = list(bos)
            for role, segments in conversation(sample):
                learned = role == "assistant"
                for run in text_runs(segments):
                    if isinstance(run, Segment):
                        pieces.append(Medium(run, loss=learned, loss_on_start=learned))
                    else:
                        pieces.append(Text((("\n".join(run), learned),)))
                if learned:
                    pieces.append(eos)
            return pieces

        return render


def conversation(sample: Sample) -> list[tuple[str, list[Segment]]]:
    """Return the turns of a sample as (role, segments); `SampleError` if it is no conversation."""
    turns: list[tuple[str, list[Segment]]] = []
    for (role, _), group in groupby(sample.document.segments, lambda s: (s.role, s.turn)):
        if role is None:
            detail = "a segment has no role, as in pairs and plain text: write it as chat messages"
            raise SampleError("not a conversation", detail)
        if role not in ROLES:
            raise SampleError("unknown role", f"{role!r} is none of {', '.join(ROLES)}")
        turns.append((role, list(group)))
    if not turns:
        raise SampleError("empty conversation")
    return turns


@dataclass(frozen=True, slots=True, kw_only=True)
class Captions:
    """Every caption is an answer; one of the `questions`, if there are any, follows its media."""

    questions: tuple[str, ...] = ()
    turns: Turns = field(default_factory=Turns)

    def bind(self, tokenizer: TextTokenizer, space: TokenSpace) -> Render:
        """Return the function that renders samples for this tokenizer and this space."""
        say = self.turns.bind(tokenizer, space)

        def render(sample: Sample, rng: SampleRng) -> list[Piece]:
            if any(segment.role is not None for segment in sample.document.segments):
                return say(sample, rng)
            question = rng.choose("question", self.questions) if self.questions else ""
            turns = tuple(with_roles(sample.document, question))
            return say(replace(sample, document=Document(turns)), rng)

        return render


def with_roles(document: Document, question: str = "") -> Iterator[Segment]:
    """Yield the segments with roles: media and their marks are the user's, text answers them."""
    if not document.text.strip():
        raise SampleError("missing caption", "its media have no text")
    turn, before = 0, None
    for segment in document.segments:
        role = "user" if segment.kind != "text" or _is_mark(segment, before) else "assistant"
        if before is not None and role != before.role:
            if role == "assistant" and question:
                yield Segment(kind="text", text=question, role="user", turn=turn)
            turn += 1
        before = replace(segment, role=role, turn=turn)
        yield before


def _is_mark(text: Segment, before: Segment | None) -> bool:
    """Say whether a text only names the moment of the image before it, as `frames` writes it."""
    is_moment = text.time_s is not None and text.time_s[0] == text.time_s[1]
    return (
        before is not None
        and before.kind == "image"
        and is_moment
        and (before.time_s == text.time_s)
    )
