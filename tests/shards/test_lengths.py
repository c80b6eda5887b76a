"""A length table survives its file, and a file that is not one says so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from token_folder import write_token_folder

from shardmill.errors import FormatError
from shardmill.model.lengths import COLUMNS, length_table
from shardmill.model.sample import Origin
from shardmill.model.tokenrow import MediaSpan, TokenRow
from shardmill.shards.arrays import write_arrays
from shardmill.shards.lengths import NO_TOKENS, open_lengths, token_lengths, write_lengths


@settings(deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.integers(1, 2**31 - 1), st.integers(0, 1), st.integers(0, 2)), max_size=20
    ),
    exact=st.booleans(),
)
def test_table_survives_its_file(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, int, int]], exact: bool
) -> None:
    table = length_table(
        np.array([r[0] for r in rows], np.int32),
        num_visual=np.array([r[1] for r in rows], np.int32),
        source=np.array([r[2] for r in rows], np.uint16),
        source_names=["web", "ocr", "vidéo"],
        shard_names=["00000"],
        shard_starts=[0, len(rows)],
        exact=exact,
    )
    path = tmp_path_factory.mktemp("lengths") / "lengths.arrays"
    write_lengths(path, table)
    found = open_lengths(path)
    for name in (*COLUMNS, "shard_starts"):
        np.testing.assert_array_equal(getattr(found, name), getattr(table, name))
    assert (found.source_names, found.exact, found.digest) == (
        table.source_names,
        exact,
        table.digest,
    )


@pytest.mark.parametrize(
    ("arrays", "meta", "message"),
    [
        ({"num_tokens": np.ones(3, np.int64)}, {}, "must be <i4 with 3 rows"),
        ({"num_visual": np.ones(2, np.int32)}, {}, "'num_visual' must be <i4 with 3 rows"),
        ({"shard_starts": np.zeros(2, np.int64)}, {}, "shard_starts do not match"),
        ({}, {"source_names": [1]}, "'source_names' must be a list"),
        ({}, {"exact": "yes"}, "lacks 'exact'"),
    ],
)
def test_hostile_file_is_a_format_error(
    tmp_path: Path, arrays: dict[str, np.ndarray], meta: dict[str, object], message: str
) -> None:
    good = {"num_tokens": np.ones(3, np.int32), "shard_starts": np.zeros(1, np.int64)}
    names = {"source_names": ["a"], "reject_reasons": [], "shard_names": []}
    path = tmp_path / "bad"
    with path.open("wb") as file:
        write_arrays(
            file, "lengths", {**good, **arrays}, {**names, "exact": True, "digest": "", **meta}
        )
    with pytest.raises(FormatError, match=message):
        open_lengths(path)


def test_other_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan"
    with path.open("wb") as file:
        write_arrays(file, "plan", {}, {})
    with pytest.raises(FormatError, match="holds 'plan', not 'lengths'"):
        open_lengths(path)


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
