"""Conversations for Megatron without role markers: bos, then each turn, answers end with eos.

    bos question answer eos question answer eos     learned: each answer with its eos

Every turn is encoded on its own, as the pipelines do that concatenate such rows to 8k.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from shardmill.errors import SampleError
from shardmill.model.sample import ROLES, Sample, Segment
from shardmill.model.space import TokenSpace
from shardmill.model.turnfields import turn_fields
from shardmill.tokens.dice import Dice
from shardmill.tokens.pieces import Medium, Piece, Render, Text, Token, control_ids
from shardmill.tokens.template_interleaved import text_runs
from shardmill.tokens.text import TextTokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """Turns one after the other; the text of a turn is split only by its media."""

    bos: bool = True

    def bind(self, tokenizer: TextTokenizer, space: TokenSpace) -> Render:
        """Return the function that renders samples for this tokenizer and this space."""
        find = control_ids(tokenizer, space)
        bos = [Token(find("bos"))] if self.bos else []
        eos = Token(find("eos"), True)

        def render(sample: Sample, dice: Dice) -> list[Piece]:
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
