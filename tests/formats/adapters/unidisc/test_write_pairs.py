"""UniDisc's pairs, opened by TensorDict itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensordict import TensorDict
from token_folder import write_token_folder

from shardmill.errors import ConfigError
from shardmill.formats.adapters.unidisc.write import NOT_A_PAIR, PairsFormat
from shardmill.model.space import TokenSpace
from shardmill.model.tokenrow import MediaSpan, TokenRow
from shardmill.running.runner import run_stage
from shardmill.shards.ledger import open_manifest
from shardmill.stages.export import ExportShards

SPACE = TokenSpace(text_size=32_000, added=("boi", "eoi"), num_codes=16_384)


def make_pair(number: int, num_codes: int = 6) -> tuple[TokenRow, list[int], list[int]]:
    """A row with text on both sides of an image between delimiters; its text; its codes."""
    before, after = list(range(number % 4)), list(range(900, 901 + number % 3))
    codes = [(number * 77 + i * 1000) % 16_384 for i in range(num_codes)]
    ids = [*before, 32_000, *SPACE.code_ids(np.array(codes)), 32_001, *after]
    image = MediaSpan(
        name="jpg",
        kind="image",
        position=len(before) + 1,
        num_tokens=num_codes,
        before=1,
        after=1,
    )
    row = TokenRow(key=f"k{number}", ids=np.array(ids), media=(image,))
    return row, before + after, codes


PAIRS = [make_pair(number) for number in range(20)]
TEXT = TokenRow(key="text", ids=np.arange(5))
OTHER_SIZE = make_pair(3, num_codes=4)[0]

HALF = MediaSpan(name="jpg", kind="image", position=1, num_tokens=3)
TWO_HALVES = TokenRow(
    key="two",
    ids=np.concatenate([[5], SPACE.code_ids(np.arange(6))]),
    media=(HALF, replace(HALF, position=4)),
)


def run(tokens: Path, out: Path, **fields: Any) -> TensorDict:
    stage = ExportShards(input_dir=tokens, format=PairsFormat(**fields), num_shards=3)
    report = run_stage(stage, out, workers=0)
    assert not report.failures and report.complete, report.failures
    return TensorDict.load_memmap(out)


@pytest.mark.parametrize("form", ["raw", "shifted"])
def test_image_and_text_are_apart(tmp_path: Path, form: str) -> None:
    rows = [row for row, _, _ in PAIRS]
    tokens = write_token_folder(tmp_path / "tokens", [rows[:7], rows[7:]], SPACE)
    found = run(tokens, tmp_path / "out", img_length=6, txt_length=8, pad_id=2, codes=form)
    shift = SPACE.code_offset if form == "shifted" else 0
    assert str(found["img_input_ids"].dtype) == ("torch.int32" if shift else "torch.int16")
    assert str(found["txt_input_ids"].dtype) == "torch.int32"
    for number, (_, text, codes) in enumerate(PAIRS):
        assert found["img_input_ids"][number].tolist() == [code + shift for code in codes]
        assert found["txt_input_ids"][number].tolist() == text + [2] * (8 - len(text))
        assert found["txt_attention_mask"][number].sum() == len(text)
        assert found["idx"][number].tolist() == [number]


def test_other_rows_are_dropped_and_long_texts_cut(tmp_path: Path) -> None:
    rows = [TEXT, *(row for row, _, _ in PAIRS), OTHER_SIZE, TWO_HALVES]
    tokens = write_token_folder(tmp_path / "tokens", [rows[:9], rows[9:]], SPACE)
    fields = {"img_length": 6, "txt_length": 3, "pad_id": 2, "overlong": "cut"}
    with pytest.raises(ConfigError, match=r"'text' is not one image of 6 codes.*others=drop"):
        run(tokens, tmp_path / "refused", **fields)
    found = run(tokens, tmp_path / "out", **fields, others="drop")
    assert found["idx"].squeeze(1).tolist() == list(range(1, 21))
    for number, (_, text, codes) in enumerate(PAIRS):
        assert found["img_input_ids"][number].tolist() == codes
        assert found["txt_input_ids"][number].tolist() == (text + [2, 2, 2])[:3]
    assert open_manifest(tmp_path / "out").skipped == {NOT_A_PAIR: 3}


def test_long_texts_are_dropped_if_asked(tmp_path: Path) -> None:
    tokens = write_token_folder(tmp_path / "tokens", [[row for row, _, _ in PAIRS]], SPACE)
    found = run(tokens, tmp_path / "out", img_length=6, txt_length=3, pad_id=2, overlong="drop")
    kept = [number for number, (_, text, _) in enumerate(PAIRS) if len(text) <= 3]
    assert found["idx"].squeeze(1).tolist() == kept
