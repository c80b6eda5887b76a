"""UniDisc's fixed-length tensors, opened by TensorDict itself."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensordict import TensorDict
from token_folder import write_token_folder

from shardmill.errors import ConfigError
from shardmill.formats.format import open_input
from shardmill.formats.unidisc.rows import TensorDictFormat
from shardmill.model.plan import PackSpec
from shardmill.model.space import TokenSpace
from shardmill.model.tokenrow import MediaSpan, TokenRow
from shardmill.pack.build import cut_row, num_stored_packs, stored_rows
from shardmill.pack.plan import plan_packs
from shardmill.run.runner import run_stage
from shardmill.shards.ledger import open_manifest
from shardmill.shards.lengths import token_lengths
from shardmill.shards.plans import write_plan
from shardmill.shards.tokens.shard import open_tokens
from shardmill.stages.export import Export
from shardmill.stages.pack import Materialize

SPACE = TokenSpace(text_size=32_000, added=("image",), num_codes=16_384)
SHIFT = SPACE.code_offset


def make_row(number: int) -> TokenRow:
    """A text; every other row has a marker and four codes in it."""
    ids = (np.arange(3 + number * 5 % 17) * 7 + number) % 32_000
    if number % 2:
        return TokenRow(key=f"k{number}", ids=ids)
    codes = SPACE.code_ids(np.array([0, number, 16_383, 9]))
    ids = np.concatenate([ids[:2], [32_000], codes, ids[2:]])
    image = MediaSpan(name="jpg", kind="image", position=3, num_tokens=4, before=1)
    return TokenRow(key=f"k{number}", ids=ids, media=(image,))


ROWS = [make_row(number) for number in range(25)]


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    return write_token_folder(tmp_path / "tokens", [ROWS[:11], ROWS[11:12], ROWS[12:]], SPACE)


def run(tokens: Path, out: Path, num_shards: int | None = None, **fields: Any) -> TensorDict:
    stage = Export(input_dir=tokens, format=TensorDictFormat(**fields), num_shards=num_shards)
    report = run_stage(stage, out, workers=0)
    assert not report.failures and report.complete, report.failures
    return TensorDict.load_memmap(out)


def expected(row: TokenRow, length: int, form: str) -> tuple[list[int], list[bool], list[int]]:
    codes = [SPACE.is_code(int(token)) for token in row.ids]
    ids = [int(t) - SHIFT * (c and form == "raw") for t, c in zip(row.ids, codes)]
    rest = length - len(ids)
    mask = [True] * len(ids) + [False] * rest
    return ids + [2] * rest, mask, [int(code) for code in codes] + [0] * rest


@pytest.mark.parametrize("form", ["raw", "shifted"])
@pytest.mark.parametrize("num_shards", [None, 1, 4])
def test_every_row_is_padded_and_says_what_it_is(
    tokens: Path, tmp_path: Path, form: str, num_shards: int | None
) -> None:
    found = run(tokens, tmp_path / "out", num_shards, length=32, pad_id=2, codes=form)
    assert found.batch_size == (25,)
    assert str(found["input_ids"].dtype) == ("torch.int16" if form == "raw" else "torch.int32")
    assert str(found["modality"].dtype) == "torch.int8"
    assert str(found["attention_mask"].dtype) == "torch.bool"
    assert found["idx"].tolist() == [[number] for number in range(25)]
    for number, row in enumerate(ROWS):
        ids, mask, modality = expected(row, 32, form)
        assert found["input_ids"][number].tolist() == ids
        assert found["attention_mask"][number].tolist() == mask
        assert found["modality"][number].tolist() == modality


@pytest.mark.parametrize("policy", ["cut", "drop"])
def test_long_rows_are_cut_or_dropped_and_counted(
    tokens: Path, tmp_path: Path, policy: str
) -> None:
    found = run(tokens, tmp_path / "out", 3, length=10, pad_id=2, overlong=policy)
    kept = [n for n, row in enumerate(ROWS) if policy == "cut" or len(row.ids) <= 10]
    assert found["idx"].squeeze(1).tolist() == kept
    for place, number in enumerate(kept):
        row = ROWS[number]
        row = cut_row(row, 10) if len(row.ids) > 10 else row
        assert found["input_ids"][place].tolist() == expected(row, 10, "raw")[0]
    manifest = open_manifest(tmp_path / "out")
    assert (manifest.num_in, manifest.num_kept) == (25, len(kept))
    assert sum(manifest.skipped.values()) == 25 - len(kept)


def test_an_image_is_never_cut(tokens: Path, tmp_path: Path) -> None:
    found = run(tokens, tmp_path / "out", length=4, pad_id=2, overlong="cut")
    with_image = set(range(0, 25, 2))
    assert found["idx"].squeeze(1).tolist() == [n for n in range(25) if n not in with_image]
    manifest = open_manifest(tmp_path / "out")
    assert manifest.skipped == {"media longer than a row": len(with_image)}


def test_padding_is_no_code_whatever_its_id(tokens: Path, tmp_path: Path) -> None:
    pad = SHIFT + 5
    found = run(tokens, tmp_path / "out", length=32, pad_id=pad, codes="shifted")
    padding = ~found["attention_mask"]
    assert (found["input_ids"][padding] == pad).all() and not found["modality"][padding].any()


def test_a_row_without_tokens_is_left_out(tmp_path: Path) -> None:
    rows = [ROWS[0], TokenRow(key="empty", ids=np.empty(0, np.int64)), ROWS[1]]
    tokens = write_token_folder(tmp_path / "tokens", [rows], SPACE)
    found = run(tokens, tmp_path / "out", length=32, pad_id=0)
    assert found["idx"].squeeze(1).tolist() == [0, 2]
    assert open_manifest(tmp_path / "out").skipped == {"no tokens": 1}


def test_nothing_kept_is_an_empty_tensordict(tokens: Path, tmp_path: Path) -> None:
    found = run(tokens, tmp_path / "out", length=1, pad_id=0, overlong="drop")
    assert len(found) == 0 and found["input_ids"].shape == (0, 1)


def test_packs_become_rows_that_number_their_documents(tokens: Path, tmp_path: Path) -> None:
    plan = plan_packs(token_lengths(tokens), PackSpec(capacity=48))
    write_plan(tmp_path / "packs.plan", plan)
    packing = Materialize(
        tokens_dir=tokens, plan_path=tmp_path / "packs.plan", packs_per_shard=2, seed=1
    )
    assert run_stage(packing, tmp_path / "packs", workers=0).complete
    found = run(tmp_path / "packs", tmp_path / "out", 3, length=48, pad_id=0, codes="shifted")
    packs = open_tokens(tmp_path / "packs")
    stored = [
        stored_rows(packs.shard(shard), pack)
        for shard in range(len(packs.entries))
        for pack in range(num_stored_packs(packs.shard(shard)))
    ]
    assert len(found) == len(plan) == len(stored)
    for place, rows in enumerate(stored):
        ids = np.concatenate([row.ids for row in rows]).tolist()
        numbers = [number for number, row in enumerate(rows) for _ in row.ids]
        padding = 48 - len(ids)
        assert found["input_ids"][place].tolist() == ids + [0] * padding
        assert found["sample_ids"][place].tolist() == numbers + [-1] * padding
    with pytest.raises(ConfigError, match="packs are not cut"):
        run(tmp_path / "packs", tmp_path / "cut", length=48, pad_id=0, overlong="cut")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"length": 10, "pad_id": 0}, "'k2' has 18 tokens, a row holds 10"),
        ({"length": 64}, "'k0' has 8 tokens.*pad_id"),
        ({"length": 64, "pad_id": 0, "codes": "shifted", "dtype": "int16"}, "48385 ids.*int32"),
        ({"length": 64, "pad_id": 99_999}, "pad_id 99999 is none of the 32001 ids"),
    ],
)
def test_what_cannot_be_is_refused_before_work(
    tokens: Path, tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        run(tokens, tmp_path / "out", **fields)


def test_rows_stay_as_they_are_while_the_next_are_made(
    tokens: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardmill.formats.unidisc.fixedlength.BATCH_CELLS", 64)
    source = open_input(tokens, None)
    batches = TensorDictFormat(length=32, pad_id=2).batches(source, source.ranges(1)[0])
    made = [batch.values() for batch in batches]
    for values, later in pairwise(made):
        assert not any(np.shares_memory(values[key], later[key]) for key in values)
