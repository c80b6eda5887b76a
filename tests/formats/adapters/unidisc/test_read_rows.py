"""Many rows at a time give what one row after the other gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.strategies import DrawFn, booleans, composite, integers, lists, sampled_from

from shardmill.errors import FormatError
from shardmill.formats.adapters.unidisc.read import interleaved_rows, paired_rows
from shardmill.model.space import TokenSpace

SPACE = TokenSpace(text_size=100, specials={"image": 7}, num_codes=50)
WIDTHS = (1, 5, 8, 16, 24, 31)


@composite
def tables(draw: DrawFn) -> dict[str, Any]:
    count, width = draw(integers(0, 5)), draw(sampled_from(WIDTHS))
    size = count * width

    def matrix(values: Any, dtype: str) -> Any:
        drawn = draw(lists(values, min_size=size, max_size=size))
        return np.array(drawn, dtype).reshape(count, width)

    lengths = np.array(draw(lists(integers(0, width), min_size=count, max_size=count)), int)
    mask = np.arange(width) < lengths.reshape(count, 1)
    if draw(booleans()):
        mask = matrix(booleans(), "bool")
    table = {
        "input_ids": matrix(integers(0, 49), "int16"),
        "attention_mask": mask,
        "modality": matrix(sampled_from([0, 0, 0, 1, -1]), "int8"),
    }
    if draw(booleans()):
        table["sample_ids"] = np.sort(matrix(integers(0, 2), "int16"), axis=1)
    return table


def one_by_one(table: dict[str, Any]) -> list[list[tuple[list[int], list[tuple[int, int, int]]]]]:
    """Return documents of each row: ids, and (position, length, before) of images."""
    rows = []
    for number in range(len(table["input_ids"])):
        mask = table["attention_mask"][number]
        ids, kind = (table[name][number][mask] for name in ("input_ids", "modality"))
        part = table["sample_ids"][number][mask] if "sample_ids" in table else np.zeros(len(ids))
        documents: list[tuple[list[int], list[tuple[int, int, int]]]] = []
        for at, (token, is_code) in enumerate(zip(ids.tolist(), (kind == 1).tolist())):
            if at == 0 or part[at] != part[at - 1]:
                documents.append(([], []))
            tokens, media = documents[-1]
            if is_code and tokens and kind[at - 1] == 1:
                position, length, before = media[-1]
                media[-1] = (position, length + 1, before)
            elif is_code:
                media.append((len(tokens), 1, int(bool(tokens) and tokens[-1] == 7)))
            tokens.append(token + 100 * is_code)
        if not documents and "sample_ids" not in table:
            documents = [([], [])]
        rows.append(documents)
    return rows


@settings(max_examples=300)
@given(tables())
def test_flat_rows_are_the_rows(table: dict[str, Any]) -> None:
    flat = interleaved_rows(table, np.arange(len(table["input_ids"])), SPACE, "raw")
    wanted = one_by_one(table)
    documents = [document for row in wanted for document in row]
    assert flat.per_row.tolist() == [len(row) for row in wanted]
    assert flat.lengths.tolist() == [len(ids) for ids, _ in documents]
    assert flat.ids.tolist() == [token for ids, _ in documents for token in ids]
    assert flat.media.counts.tolist() == [len(media) for _, media in documents]
    columns = [flat.media.columns[name].tolist() for name in ("position", "length", "before")]
    assert list(zip(*columns)) == [span for _, media in documents for span in media]


def test_an_id_below_zero_is_refused() -> None:
    table = {"input_ids": np.array([[-1]], "int16"), "modality": np.zeros((1, 1), "int8")}
    with pytest.raises(FormatError, match="the id -1"):
        interleaved_rows(table, np.arange(len(table["input_ids"])), SPACE, "raw")


@pytest.mark.parametrize("name", ["modality", "attention_mask", "sample_ids"])
def test_columns_of_other_shapes_are_refused(name: str) -> None:
    table = {n: np.ones((2, 4), "int8") for n in ("input_ids", "modality")}
    table[name] = np.ones((2, 3), "int8")
    with pytest.raises(FormatError, match=rf"{name}: has the shape \(2, 3\)"):
        interleaved_rows(table, np.arange(2), SPACE, "raw")


EOS = 2
PAIR_SPACES = [
    TokenSpace(text_size=100, specials={"image": 7, "eos": EOS}, num_codes=50),
    TokenSpace(text_size=100, specials={"eos": EOS}, num_codes=50),
    TokenSpace(text_size=100_000, specials={"image": 7, "eos": EOS}, num_codes=50),
]


@composite
def pair_tables(draw: DrawFn) -> dict[str, Any]:
    random = np.random.default_rng(draw(integers(0, 2**32)))
    count, width, num_codes = draw(integers(0, 5)), draw(integers(0, 9)), draw(integers(1, 4))
    mask = np.arange(width) < random.integers(0, width + 1, (count, 1))
    if draw(booleans()):
        mask = random.random((count, width)) < 0.5
    text = np.where(mask, random.integers(1, 4, (count, width)), -100)
    table = {
        "txt_input_ids": text.astype("int32"),
        "img_input_ids": random.integers(0, 50, (count, num_codes)).astype("int16"),
    }
    return {**table, "txt_attention_mask": mask} if draw(booleans()) else table


@given(table=pair_tables(), space=sampled_from(PAIR_SPACES), end=booleans(), raw=booleans())
def test_a_pair_is_text_marker_codes_end(
    table: dict[str, Any], space: TokenSpace, end: bool, raw: bool
) -> None:
    numbers = np.arange(len(table["img_input_ids"]))[::-1].copy()
    flat = paired_rows(table, numbers, space, "raw" if raw else "shifted", end=end)
    wanted, marker = [], [7] * ("image" in space.names)
    for number in numbers.tolist():
        words = [id_ for id_ in table["txt_input_ids"][number].tolist() if id_ >= 0]
        words = words[:-1] if end and words[-1:] == [EOS] else words
        codes = table["img_input_ids"][number].astype(int) + (space.code_offset if raw else 0)
        wanted.append([*words, *marker, *codes.tolist(), *[EOS] * end])
    assert flat.lengths.tolist() == [len(row) for row in wanted]
    assert flat.ids.tolist() == [id_ for row in wanted for id_ in row]
    assert flat.ids.dtype == space.dtype
    num_codes = table["img_input_ids"].shape[1]
    position = [len(row) - end - num_codes for row in wanted]
    assert flat.media.columns["position"].tolist() == position
    assert flat.media.columns["before"].tolist() == [len(marker)] * len(wanted)


def test_a_code_that_is_none_is_refused() -> None:
    table = {"txt_input_ids": np.ones((1, 2), "int32"), "img_input_ids": np.array([[3, 50]])}
    with pytest.raises(FormatError, match="the code 50 in an image, the token space has 50"):
        paired_rows(table, np.array([0]), PAIR_SPACES[0], "raw", end=True)
