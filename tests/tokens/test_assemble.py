"""Rows are put together from pieces, and loss begins at the right token."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shardmill.errors import SampleError
from shardmill.model.sample import Document, Sample, Segment
from shardmill.model.tokenrow import TokenRow
from shardmill.tokens.assemble import assemble, prepare
from shardmill.tokens.layout import MediaBlock
from shardmill.tokens.templates.template import Medium, Piece, Text, Token
from shardmill.tokens.text.tokenizer import TextTokenizer

SAMPLE = Sample(key="k", document=Document(()))
IMAGE = Segment(kind="image", media="jpg")


def block(*_: object) -> MediaBlock:
    return MediaBlock(np.array([100]), np.array([7, 0, 7]), np.array([101]), (1, 1, 3))


def row_of(pieces: list[Piece], tokenizer: TextTokenizer) -> TokenRow:
    return assemble([prepare(SAMPLE, pieces, block)], tokenizer)[0].row


def learned(row: TokenRow, tokenizer: TextTokenizer) -> list[str]:
    return [tokenizer.decode(row.ids[a : a + n].tolist()) for a, n in row.loss.tolist()]


def test_pieces_follow_each_other_and_runs_of_loss_join(bundled: TextTokenizer) -> None:
    pieces = [Token(1), Text((("Hi", True),)), Medium(IMAGE, loss=True), Token(2, True)]
    row = row_of(pieces, bundled)
    text = bundled.encode("Hi").tolist()
    assert row.ids.tolist() == [1, *text, 100, 7, 0, 7, 101, 2]
    assert row.loss.tolist() == [[1, len(text)], [2 + len(text), 5]]
    (span,) = row.media
    assert (span.position, span.num_tokens, span.before, span.after) == (2 + len(text), 3, 1, 1)


def test_delimiters_can_be_left_out_or_learned(bundled: TextTokenizer) -> None:
    bare = row_of([Medium(IMAGE, bare=True)], bundled)
    assert (bare.ids.tolist(), bare.media[0].start, bare.media[0].end) == ([7, 0, 7], 0, 3)
    whole = row_of([Medium(IMAGE, loss=True, loss_on_start=True)], bundled)
    assert whole.loss.tolist() == [[0, 5]]


def test_placeholders_are_never_learned_but_their_delimiters_may_be(
    bundled: TextTokenizer,
) -> None:
    def placeholders(*_: object) -> MediaBlock:
        return replace(block(), can_be_learned=False)

    pieces: list[Piece] = [Medium(IMAGE, loss=True, loss_on_start=True)]
    (made,) = assemble([prepare(SAMPLE, pieces, placeholders)], bundled)
    assert made.row.loss.tolist() == [[0, 1], [4, 1]]


def test_loss_begins_where_its_text_begins(bundled: TextTokenizer, qwen: TextTokenizer) -> None:
    for tokenizer in (bundled, qwen):
        row = row_of([Text((("Answer:", False), (" blue sky", True)))], tokenizer)
        assert row.ids.tolist() == tokenizer.encode("Answer: blue sky").tolist()
        assert learned(row, tokenizer) in (["blue sky"], [" blue sky"])


def test_a_token_over_the_boundary_is_learned(qwen: TextTokenizer) -> None:
    # "\n\n" is one token, though one newline is the question's and one the answer's.
    row = row_of([Text((("Q\n", False), ("\nA", True), ("!", False)))], qwen)
    assert row.ids.tolist() == qwen.encode("Q\n\nA!").tolist()
    assert learned(row, qwen) == ["\n\nA"]
    row = row_of([Text((("Q\n", True), ("\nA", False)))], qwen)
    assert learned(row, qwen) == ["Q\n\n"]


def test_many_rows_in_one_call_are_the_same_as_one_by_one(bundled: TextTokenizer) -> None:
    batch = [
        prepare(SAMPLE, [Text(((text, False), (" more", True)))], block)
        for text in ("", "one", "a longer text")
    ]
    together = [a.row.ids.tolist() for a in assemble(batch, bundled)]
    assert together == [assemble([item], bundled)[0].row.ids.tolist() for item in batch]
    assert assemble([], bundled) == []


def test_nothing_gives_an_empty_row(bundled: TextTokenizer) -> None:
    row = row_of([Text((("", True),))], bundled)
    assert (len(row.ids), row.loss.tolist()) == (0, [])
    assert len(row_of([], bundled).ids) == 0


def test_broken_text_is_found_before_it_is_encoded() -> None:
    with pytest.raises(SampleError, match="not valid Unicode"):
        prepare(SAMPLE, [Text((("\ud800", True),))], block)
