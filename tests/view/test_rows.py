from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis.strategies import text

from shardmill.model.tokenrow import MediaSpan, TokenRow
from shardmill.tokens.text.sentencepiece import SentencePieceText
from shardmill.tokens.text.tokenizer import load_once
from shardmill.view.access import AccessPolicy
from shardmill.view.context import Context
from shardmill.view.query import Budget
from shardmill.view.rows import Decoder, filter_rows, open_decoder, pieces, shortened, show_row

POLICY = AccessPolicy.below(Path(__file__).parent)
SPACE = {"text_size": 32768}
BUNDLED = {"kind": "text/sentencepiece", "path": "bundled"}


@settings(max_examples=60)
@given(text(max_size=40))
def test_pieces_together_are_the_text(written: str) -> None:
    tokenizer = load_once(SentencePieceText(path=Path("bundled"), engine="reference"))
    try:
        ids = tokenizer.encode(written).tolist()
    except UnicodeEncodeError:
        return
    assert "".join(pieces(tokenizer.decode, ids)).strip() == tokenizer.decode(ids).strip()


def test_runs_hold_every_token_in_order(context: Context) -> None:
    row = show_row(context.folder("tokens"), 2, open_decoder(context, "tokens"))
    place = 0
    for run in row["runs"]:
        assert run["start"] == place
        place += run["tokens"]
        if "texts" in run:
            assert len(run["texts"]) == run["tokens"]
    assert place == row["tokens"] == 348
    in_loss = [run for run in row["runs"] if run["in_loss"]]
    assert sum(run["tokens"] for run in in_loss) == row["loss_tokens"] == 55
    assert "".join(in_loss[0]["texts"]).strip().startswith("He looks through")
    assert [run["kind"] for run in row["runs"]].count("image") == 1


def test_a_folder_cannot_choose_what_is_imported_or_read() -> None:
    hostile = Decoder({"tokenizer": {"kind": "antigravity:x", "path": "a"}, "space": SPACE}, POLICY)
    assert "does not load" in hostile.problem
    elsewhere = Decoder({"tokenizer": {**BUNDLED, "path": "/etc/passwd"}, "space": SPACE}, POLICY)
    assert "--allow /etc" in elsewhere.problem
    row = TokenRow(key="k", ids=np.arange(3))
    assert [run["texts"] for run in hostile.runs(row)] == [["0 ", "1 ", "2 "]]
    assert Decoder({"tokenizer": BUNDLED, "space": SPACE}, POLICY).problem == ""


def test_a_long_row_is_cut_before_the_medium_that_does_not_fit() -> None:
    media = tuple(
        MediaSpan(name="jpg", kind="image", position=p, num_tokens=10) for p in (5, 40, 95)
    )
    row = TokenRow(key="k", ids=np.arange(200), loss=np.array([[0, 3], [60, 100]]), media=media)
    cut = shortened(row, 100)
    assert len(cut.ids) == 100
    assert [span.position for span in cut.media] == [5, 40]
    assert cut.loss.tolist() == [[0, 3], [60, 40]]
    assert shortened(row, 200) is row


def test_rows_are_listed_and_filtered(context: Context) -> None:
    folder = context.folder("tokens")
    found = filter_rows(folder, 16, 10, source="", wanted="", budget=Budget(60))
    assert [row["number"] for row in found["rows"]] == [16, 17]
    found = filter_rows(folder, 0, 5, source="chats", wanted="-0000001", budget=Budget(60))
    assert [row["key"][-2:] for row in found["rows"]] == ["10", "11", "12", "13", "14"]
    assert filter_rows(folder, 0, 5, source="x", wanted="", budget=Budget(60))["rows"] == []
