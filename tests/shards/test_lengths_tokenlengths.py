"""The lengths of a folder of token shards are those of its rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from token_folder import write_token_folder

from shardmill.model.sample import Origin
from shardmill.model.tokenrow import MediaSpan, TokenRow
from shardmill.shards.lengths import NO_TOKENS, token_lengths

IMAGE = MediaSpan(name="jpg", kind="image", position=2, num_tokens=4, before=1, after=1)


def row(key: str, length: int, source: str | None, *media: MediaSpan) -> TokenRow:
    origin = None if source is None else Origin(source=source, path=f"{source}.tar", row=0)
    return TokenRow(key=key, ids=np.arange(length) % 9, media=media, origin=origin)


def test_rows_of_all_shards_in_order(tmp_path: Path) -> None:
    folder = write_token_folder(
        tmp_path / "tokens",
        [
            [row("a", 5, "web"), row("b", 9, "ocr", IMAGE)],
            [row("c", 0, "ocr"), row("d", 3, None)],
        ],
    )
    table = token_lengths(folder)
    assert table.num_tokens.tolist() == [5, 9, 0, 3]
    assert table.num_visual.tolist() == [0, 4, 0, 0]
    assert table.num_fixed.tolist() == [0, 6, 0, 0]
    assert [table.source_names[s] for s in table.source] == ["web", "ocr", "ocr", "unknown"]
    assert table.reject.tolist() == [0, 0, 1, 0]
    assert table.reject_reasons == (NO_TOKENS,)
    assert table.locate(2) == ("00001", 0)
    assert table.exact


def test_folder_without_rows(tmp_path: Path) -> None:
    assert len(token_lengths(write_token_folder(tmp_path / "tokens", []))) == 0
