"""UniDisc's fixed-length tensors, opened by TensorDict itself."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lossy_export import lossy_export
from numpy.typing import NDArray
from tensordict import TensorDict
from token_folder import write_token_folder

from shardmill.errors import ConfigError, Filtered
from shardmill.formats.adapters import tensordict
from shardmill.formats.adapters.tensordict import (
    NOT_A_PAIR,
    FixedLength,
    PairsFormat,
    Tensor,
    TensorDictFormat,
    TensorRowsFormat,
    id_dtype,
    kept_tokens,
    local_ids,
    num_ids,
    padded,
    smallest_signed,
)
from shardmill.formats.format import is_code
from shardmill.formats.rows import ExportInput, TokenBatch, open_input
from shardmill.model import tokenrow
from shardmill.model.plan import PackSpec
from shardmill.model.space import TokenSpace
from shardmill.model.tokenrow import MediaSpan, TokenRow, cut_row
from shardmill.packing.build import num_stored_packs, stored_rows
from shardmill.packing.plan import plan_packs
from shardmill.running.runner import run_stage
from shardmill.shards.ledger import open_manifest
from shardmill.shards.plans import write_plan
from shardmill.shards.tokens.shard import open_tokens, token_lengths
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
    stage = lossy_export(input_dir=tokens, format=TensorDictFormat(**fields), num_shards=num_shards)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class EvenLengths(TensorRowsFormat):
    """The lengths of the rows that have an even one."""

    keeps = frozenset({"documents"})  # type: ignore[assignment]

    def tensors(self, source: ExportInput) -> dict[str, Tensor]:
        return {"length": Tensor("int32", (1,))}

    def kept(self, batch: TokenBatch) -> NDArray[np.bool_]:
        return batch.lengths % 2 == 0

    def check(self, batch: TokenBatch) -> None:
        return None

    def explain(self, batch: TokenBatch, row: int) -> Filtered:
        return Filtered("odd")

    def values(self, batch: TokenBatch, kept: NDArray[np.bool_]) -> dict[str, NDArray[Any]]:
        return {"length": batch.lengths[kept][:, None]}


@pytest.mark.parametrize("num_shards", [None, 1, 4])
def test_rows_are_where_the_plan_says(
    tmp_path: Path, num_shards: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensordict, "VALUES_AT_ONCE", 3)
    lengths = [5, 2, 8, 1, 4, 4, 3, 6, 7, 10, 12, 1, 2]
    rows = [TokenRow(key=f"k{n}", ids=np.arange(length)) for n, length in enumerate(lengths)]
    tokens = write_token_folder(tmp_path / "tokens", [rows[:6], rows[6:]])
    stage = lossy_export(input_dir=tokens, format=EvenLengths(), num_shards=num_shards)
    assert run_stage(stage, tmp_path / "out", workers=0).complete
    found = TensorDict.load_memmap(tmp_path / "out")
    even = [number for number, length in enumerate(lengths) if length % 2 == 0]
    assert found["idx"].squeeze(1).tolist() == even
    assert found["length"].squeeze(1).tolist() == [lengths[number] for number in even]
    assert open_manifest(tmp_path / "out").skipped == {"odd": len(lengths) - len(even)}


DRAWN = st.lists(st.lists(st.booleans(), max_size=9), min_size=1, max_size=8)


@given(rows=DRAWN, width=st.integers(1, 9))
def test_what_is_cut_is_what_the_packer_cuts(rows: list[list[bool]], width: int) -> None:
    lengths = np.array([len(row) for row in rows])
    num_fixed = np.array([sum(row) for row in rows])
    kept = FixedLength(width=width, overlong="cut").kept(lengths, num_fixed)
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    flat = np.array([fixed for row in rows for fixed in row], np.uint8)
    stays = kept_tokens(bounds, kept, width, lambda: flat)
    found = np.arange(len(flat))[stays].tolist()
    wanted = [
        int(place) + int(start)
        for row, start, stay in zip(rows, bounds, kept)
        if stay
        for place in tokenrow.kept_tokens(np.array(row, bool), min(width, len(row)))
    ]
    assert found == wanted


@given(rows=st.lists(st.lists(st.integers(1, 99), max_size=6), min_size=1, max_size=6))
def test_padded_rows_hold_their_values_and_then_the_fill(rows: list[list[int]]) -> None:
    mask = np.arange(6) < np.array([len(row) for row in rows])[:, None]
    flat = np.array([value for row in rows for value in row], np.int32)
    matrix = padded(flat, mask, 7)
    assert matrix.tolist() == [row + [7] * (6 - len(row)) for row in rows]
    assert matrix.dtype == np.int32


def test_a_row_needs_at_least_one_token() -> None:
    with pytest.raises(ConfigError, match="at least one token"):
        FixedLength(width=0)


def test_the_reason_says_what_was_too_long() -> None:
    reasons = [
        FixedLength(width=4, overlong=policy).explain(length).reason
        for policy, length in (("drop", 5), ("cut", 5), ("drop", 0))
    ]
    assert reasons == ["longer than a row", "media longer than a row", "no tokens"]


CODE_SPACES = [
    TokenSpace(text_size=32_000, added=("image",), num_codes=16_384),
    TokenSpace(text_size=65_000, num_codes=256, specials={"last": 65_500}),
    TokenSpace(text_size=65_536, num_codes=8192, codes_at=4),
    TokenSpace(text_size=151_000, num_codes=8192),
    TokenSpace(text_size=65_536),
]


@pytest.mark.parametrize("space", CODE_SPACES)
def test_codes_are_those_that_the_space_says(space: TokenSpace) -> None:
    edges = [0, 4, space.code_offset, space.code_offset + space.num_codes - 1, space.size - 1]
    tokens = sorted({t + d for t in edges for d in (-1, 0, 1) if 0 <= t + d < space.size})
    ids = np.array(tokens, space.dtype)
    codes = is_code(ids, space)
    assert codes.tolist() == [space.is_code(token) for token in tokens]
    wanted = [token - space.code_offset * space.is_code(token) for token in tokens]
    assert local_ids(ids, codes, space).tolist() == wanted
    assert ids.tolist() == tokens
    assert max(wanted) < num_ids(space, "raw") <= num_ids(space, "shifted") == space.size


def test_ids_take_the_smallest_signed_number(tmp_path: Path) -> None:
    assert (smallest_signed(1 << 15), smallest_signed((1 << 15) + 1)) == ("int16", "int32")
    space = TokenSpace(text_size=40_000)
    rows = [TokenRow(key="a", ids=np.arange(3))]
    source = open_input(write_token_folder(tmp_path / "x", [rows], space))
    assert id_dtype(source, "raw", "smallest", 39_999) == "int32"
    with pytest.raises(ConfigError, match="40000 ids"):
        id_dtype(source, "raw", "int16", None)
    with pytest.raises(ConfigError, match="pad_id 40000"):
        id_dtype(source, "raw", "int32", 40_000)


PAIR_SPACE = TokenSpace(text_size=32_000, added=("boi", "eoi"), num_codes=16_384)


def make_pair(number: int, num_codes: int = 6) -> tuple[TokenRow, list[int], list[int]]:
    """A row with text on both sides of an image between delimiters; its text; its codes."""
    before, after = list(range(number % 4)), list(range(900, 901 + number % 3))
    codes = [(number * 77 + i * 1000) % 16_384 for i in range(num_codes)]
    ids = [*before, 32_000, *PAIR_SPACE.code_ids(np.array(codes)), 32_001, *after]
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
    ids=np.concatenate([[5], PAIR_SPACE.code_ids(np.arange(6))]),
    media=(HALF, replace(HALF, position=4)),
)


def run_pairs(tokens: Path, out: Path, **fields: Any) -> TensorDict:
    stage = lossy_export(input_dir=tokens, format=PairsFormat(**fields), num_shards=3)
    report = run_stage(stage, out, workers=0)
    assert not report.failures and report.complete, report.failures
    return TensorDict.load_memmap(out)


@pytest.mark.parametrize("form", ["raw", "shifted"])
def test_image_and_text_are_apart(tmp_path: Path, form: str) -> None:
    rows = [row for row, _, _ in PAIRS]
    tokens = write_token_folder(tmp_path / "tokens", [rows[:7], rows[7:]], PAIR_SPACE)
    found = run_pairs(tokens, tmp_path / "out", img_length=6, txt_length=8, pad_id=2, codes=form)
    shift = PAIR_SPACE.code_offset if form == "shifted" else 0
    assert str(found["img_input_ids"].dtype) == ("torch.int32" if shift else "torch.int16")
    assert str(found["txt_input_ids"].dtype) == "torch.int32"
    for number, (_, text, codes) in enumerate(PAIRS):
        assert found["img_input_ids"][number].tolist() == [code + shift for code in codes]
        assert found["txt_input_ids"][number].tolist() == text + [2] * (8 - len(text))
        assert found["txt_attention_mask"][number].sum() == len(text)
        assert found["idx"][number].tolist() == [number]


def test_other_rows_are_dropped_and_long_texts_cut(tmp_path: Path) -> None:
    rows = [TEXT, *(row for row, _, _ in PAIRS), OTHER_SIZE, TWO_HALVES]
    tokens = write_token_folder(tmp_path / "tokens", [rows[:9], rows[9:]], PAIR_SPACE)
    fields = {"img_length": 6, "txt_length": 3, "pad_id": 2, "overlong": "cut"}
    with pytest.raises(ConfigError, match=r"'text' is not one image of 6 codes.*others=drop"):
        run_pairs(tokens, tmp_path / "refused", **fields)
    found = run_pairs(tokens, tmp_path / "out", **fields, others="drop")
    assert found["idx"].squeeze(1).tolist() == list(range(1, 21))
    for number, (_, text, codes) in enumerate(PAIRS):
        assert found["img_input_ids"][number].tolist() == codes
        assert found["txt_input_ids"][number].tolist() == (text + [2, 2, 2])[:3]
    assert open_manifest(tmp_path / "out").skipped == {NOT_A_PAIR: 3}


def test_a_text_that_is_cut_may_keep_its_end(tmp_path: Path) -> None:
    tokens = write_token_folder(tmp_path / "tokens", [[row for row, _, _ in PAIRS]], PAIR_SPACE)
    fields = {"img_length": 6, "txt_length": 3, "pad_id": 2, "overlong": "cut"}
    with pytest.raises(ConfigError, match="end_id 99999 is none of the"):
        run_pairs(tokens, tmp_path / "refused", **fields, end_id=99_999)
    found = run_pairs(tokens, tmp_path / "out", **fields, end_id=5)
    for number, (_, text, _) in enumerate(PAIRS):
        wanted = [*text[:2], 5] if len(text) > 3 else [*text, 2, 2][:3]
        assert found["txt_input_ids"][number].tolist() == wanted


def test_long_texts_are_dropped_if_asked(tmp_path: Path) -> None:
    tokens = write_token_folder(tmp_path / "tokens", [[row for row, _, _ in PAIRS]], PAIR_SPACE)
    found = run_pairs(
        tokens, tmp_path / "out", img_length=6, txt_length=3, pad_id=2, overlong="drop"
    )
    kept = [number for number, (_, text, _) in enumerate(PAIRS) if len(text) <= 3]
    assert found["idx"].squeeze(1).tolist() == kept
