from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis.strategies import text

from shardmill.model.tokenrow import MediaSpan, TokenRow
from shardmill.tokens.text.sentencepiece import SentencePieceText
from shardmill.tokens.text.tokenizer import load_once
from shardmill.view.context import AccessPolicy
from shardmill.view.decoder import Decoder, pieces, shortened

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


def test_a_folder_cannot_choose_what_is_imported_or_read() -> None:
    hostile = Decoder(
        {"tokenizer": {"kind": "antigravity:x", "path": "a"}, "space": SPACE}, POLICY.check_url
    )
    assert "does not load" in hostile.problem
    elsewhere = Decoder(
        {"tokenizer": {**BUNDLED, "path": "/etc/passwd"}, "space": SPACE}, POLICY.check_url
    )
    assert "--allow /etc" in elsewhere.problem
    row = TokenRow(key="k", ids=np.arange(3))
    assert [run["texts"] for run in hostile.runs(row)] == [["0 ", "1 ", "2 "]]
    assert Decoder({"tokenizer": BUNDLED, "space": SPACE}, POLICY.check_url).problem == ""


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
