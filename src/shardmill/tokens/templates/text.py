"""Plain text: [bos] text [eos], all of it learned."""

from __future__ import annotations

from dataclasses import dataclass

from shardmill.errors import SampleError
from shardmill.model.rng import SampleRng
from shardmill.model.sample import Sample
from shardmill.model.space import TokenSpace
from shardmill.tokens.templates.template import Piece, Render, Token, control_ids, text
from shardmill.tokens.text.tokenizer import TextTokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainText:
    """All text of the document; its segments are joined by newlines."""

    bos: bool = False
    eos: bool = True

    def bind(self, tokenizer: TextTokenizer, space: TokenSpace) -> Render:
        """Return the function that renders samples for this tokenizer and this space."""
        first, last = self.ends(tokenizer, space)

        def render(sample: Sample, rng: SampleRng) -> list[Piece]:
            media = sample.document.media()
            if media:
                raise SampleError("media in plain text", f"{media[0].kind} {media[0].media!r}")
            return [*first, text(sample.document.text, True), *last]

        return render

    def ends(self, tokenizer: TextTokenizer, space: TokenSpace) -> tuple[list[Token], list[Token]]:
        """Return the control tokens before and after each text."""
        find = control_ids(tokenizer, space)
        return (
            [Token(find("bos"), True)] if self.bos else [],
            [Token(find("eos"), True)] if self.eos else [],
        )
