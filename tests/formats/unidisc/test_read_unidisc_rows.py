"""Many rows at a time give what one row after the other gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.strategies import DrawFn, booleans, composite, integers, lists, sampled_from

from shardmill.errors import FormatError
from shardmill.formats.unidisc.read import interleaved_rows
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
