from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from shardmill.shards.plans import open_lengths
from shardmill.stages import measure as lengthrows
from shardmill.stages.measure import LengthRows, count_written
from shardmill.tokens.count import TextCounter, TokenCount, Written
from shardmill.tokens.text.tokenizer import Ragged, ragged
from shardmill.tokens.visual.rule import Visual


def encode_letters(texts: Sequence[str]) -> Ragged:
    """A tokenizer with a token for each letter."""
    return ragged([[ord(letter) for letter in text] for text in texts])


LETTERS = TextCounter(
    name="letters",
    engine="reference",
    encode_batch=encode_letters,
    num_added=1,
    specials=(),
    chat_template=None,
    variables={},
)
IMAGE = Visual("[i]", 100, num_outer=2)
FILM = Visual("t[v]t[v]", 60, num_runs=2)


def test_counts_by_hand() -> None:
    both = Written("ab[i]ct[v]t[v]", (IMAGE, FILM), True)
    # 14 letters and 1 added; 99 and 58 tokens are not spelled out.
    assert count_written(LETTERS, [both]) == [
        TokenCount(15 + 99 + 58, 160, (3 + 99 + 2) + (8 + 58))
    ]
    assert count_written(LETTERS, [Written("abc", (), True)]) == [TokenCount(4, 0, 0)]


def test_fixed_tokens_are_never_more_than_all() -> None:
    wide = Visual("[image]", 10, num_outer=2)
    [count] = count_written(LETTERS, [Written("[i]", (wide,), True)])
    assert count.num_fixed == count.num_tokens == 4 + 9


@pytest.mark.parametrize("batch_chars", [1, 5, 1 << 22])
def test_rows_stay_in_order_whatever_the_batches(
    batch_chars: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lengthrows, "BATCH_CHARS", batch_chars)
    rows = LengthRows(LETTERS)
    rows.add_written(Written("abc", (), True))
    rows.add_reject("broken")
    rows.add_written(Written("x[i]", (IMAGE,), True))
    rows.add_reject("too odd")
    rows.add_reject("broken")
    rows.add_written(Written("abcde", (), True))
    assert len(rows) == 6
    rows.write(tmp_path / "t", shard="s", source=[0, 1, 0, 0, 0, 1], source_names=["a", "b"])
    table = open_lengths(tmp_path / "t")
    assert table.num_tokens.tolist() == [4, 0, 5 + 99, 0, 0, 6]
    assert table.num_visual.tolist() == [0, 0, 100, 0, 0, 0]
    assert table.reject.tolist() == [0, 1, 0, 2, 1, 0]
    assert table.reject_reasons == ("broken", "too odd")
    assert (table.shard_names, table.shard_starts.tolist()) == (("s",), [0, 6])
    assert table.exact


def test_one_guess_or_estimate_marks_the_table() -> None:
    for add in (
        lambda rows: rows.add_written(Written("a", (), False)),
        lambda rows: rows.add_estimate(TokenCount(3, 0, 0)),
    ):
        rows = LengthRows(LETTERS)
        rows.add_written(Written("abc", (), True))
        assert rows.exact
        add(rows)
        assert not rows.exact
