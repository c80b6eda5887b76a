"""A painted row says everything that the row holds, once."""

from __future__ import annotations

import numpy as np
import pytest

from shardmill.errors import ConfigError
from shardmill.model.codec import to_plain
from shardmill.model.manifest import Manifest
from shardmill.model.space import TokenSpace
from shardmill.model.tokenrow import MediaSpan, TokenRow
from shardmill.tokens.text.readable import Run, open_readable, readable_runs
from shardmill.tokens.text.tokenizer import TextTokenizer

SPACE = TokenSpace(text_size=32_768, added=("boi", "eoi"), num_codes=8)


def row(tokenizer: TextTokenizer) -> TokenRow:
    text = tokenizer.encode("What is it? A cat").tolist()
    ids = [1, 32_768, 32_770, 32_771, 32_769, *text, 2]
    answer = len(tokenizer.encode("What is it?"))
    media = MediaSpan(
        name="jpg", kind="image", position=2, num_tokens=2, grid=(1, 1, 2), before=1, after=1
    )
    loss = np.array([[5 + answer, len(text) - answer + 1]])
    return TokenRow(key="k", ids=np.array(ids), loss=loss, media=(media,))


def test_text_control_media_and_loss_are_marked(bundled: TextTokenizer) -> None:
    assert readable_runs(row(bundled), bundled, SPACE) == [
        Run("<s>", "control", False),
        Run("<boi>", "control", False),
        Run("[image jpg: 1 x 1 x 2, 2 tokens]", "media", False),
        Run("<eoi>", "control", False),
        Run("What is it?", "text", False),
        Run(" A cat", "text", True),
        Run("</s>", "control", True),
    ]
    assert readable_runs(TokenRow(key="k", ids=np.array([], int)), bundled, SPACE) == []


def test_a_folder_is_painted_by_the_tokenizer_of_its_spec(bundled: TextTokenizer) -> None:
    tokenizer = {"kind": "text/sentencepiece", "path": "bundled"}
    books = {"stage_digest": "", "units_digest": "", "num_in": 0, "num_kept": 0}
    books |= {"skipped": {}, "stats": {}, "shards": (), "content": "tokens"}
    stage = {"tokenizer": tokenizer, "space": to_plain(SPACE)}
    readable = open_readable(Manifest(stage=stage, **books))  # type: ignore[arg-type]
    assert readable(row(bundled)) == readable_runs(row(bundled), bundled, SPACE)
    with pytest.raises(ConfigError, match="which tokenizer"):
        open_readable(Manifest(stage={}, **books))  # type: ignore[arg-type]
