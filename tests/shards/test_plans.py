"""Length tables and plans as files: the same again, and damage is a FormatError."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from token_folder import write_token_folder

from shardmill.errors import FormatError
from shardmill.model.plan import COLUMNS, PackSpec, length_table
from shardmill.model.sample import Origin
from shardmill.model.tokenrow import MediaSpan, TokenRow
from shardmill.packing.plan import plan_packs
from shardmill.shards.arrays import open_arrays, write_arrays
from shardmill.shards.plans import (
    PLAN_DTYPES,
    open_lengths,
    open_plan,
    write_lengths,
    write_plan,
)
from shardmill.shards.tokens.shard import token_lengths


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
        ({"num_tokens": np.ones(3, np.int64)}, {}, r"not int32\[3\]"),
        ({"num_visual": np.ones(2, np.int32)}, {}, r"'num_visual' .* not int32\[3\]"),
        (
            {"shard_starts": np.zeros(2, np.int64)},
            {},
            r"'shard_starts' .* not int64\[1\]",
        ),
        ({}, {"source_names": [1]}, "'source_names' must be a list"),
        ({}, {"exact": "yes"}, "'exact' must be bool"),
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
    assert table.reject_reasons == ("no tokens",)
    assert table.locate(2) == ("00001", 0)
    assert table.exact


def test_folder_without_rows(tmp_path: Path) -> None:
    assert len(token_lengths(write_token_folder(tmp_path / "tokens", []))) == 0


@pytest.fixture
def plan_path(tmp_path: Path) -> Path:
    table = length_table([5, 9, 3, 30, 7], num_fixed=[0, 0, 0, 2, 0])
    path = tmp_path / "packs.plan"
    write_plan(path, plan_packs(table, PackSpec(capacity=10, overlong="cut", max_packs=2)))
    return path


def test_plan_survives_its_file(plan_path: Path) -> None:
    table = length_table([5, 9, 3, 30, 7], num_fixed=[0, 0, 0, 2, 0])
    made = plan_packs(table, PackSpec(capacity=10, overlong="cut", max_packs=2))
    found = open_plan(plan_path)
    for name in PLAN_DTYPES:
        np.testing.assert_array_equal(getattr(found, name), getattr(made, name))
    for name in ("spec", "drop_reasons", "method", "why", "lower_bound", "counts", "num_rows"):
        assert getattr(found, name) == getattr(made, name)
    found.check_table(table)


def test_a_flipped_bit_is_noticed(plan_path: Path, tmp_path: Path) -> None:
    write_lengths(tmp_path / "lengths", length_table([5, 9, 3, 30, 7], num_fixed=[0, 0, 0, 2, 0]))
    for path, opened in ((plan_path, open_plan), (tmp_path / "lengths", open_lengths)):
        whole = path.read_bytes()
        header = json.loads(whole[24 : 24 + int.from_bytes(whole[8:16], "little")])
        places = [a["offset"] for a in header["arrays"].values() if all(a["shape"])]
        assert len(places) > 2
        for at in places:
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            with pytest.raises(FormatError):
                opened(path)
        path.write_bytes(whole)
        opened(path)


def test_same_plan_gives_the_same_bytes(plan_path: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.plan"
    write_plan(again, open_plan(plan_path))
    assert again.read_bytes() == plan_path.read_bytes()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"dropped": np.array([0, 1, 99], np.uint32)}, "names a row beyond 5"),
        ({"starts": np.array([0, 9])}, "do not cover"),
        ({"starts": np.array([0, 0, 2])}, "without members"),
        ({"balanced": np.array([7, 7], np.uint32)}, "a pack that is not there"),
        ({"balanced": np.array([0], np.uint32)}, "each pack once"),
        ({"dropped": np.empty(0, np.uint32)}, "do not fit their reasons"),
        ({"members": np.array([1.0])}, r"not uint32\[any\]"),
        ({"meta": {"spec": {"capacity": -1}}}, "spec cannot be"),
        ({"meta": {"num_rows": "many"}}, "'num_rows' must be int"),
    ],
)
def test_broken_plan_is_a_format_error(
    plan_path: Path, tmp_path: Path, changed: dict[str, object], message: str
) -> None:
    stored = open_arrays(plan_path, "plan")
    meta = {**stored.meta, **changed.pop("meta", {})}  # type: ignore[dict-item]
    path = tmp_path / "broken.plan"
    with path.open("wb") as file:
        write_arrays(file, "plan", {**stored.arrays, **changed}, meta)  # type: ignore[dict-item]
    with pytest.raises(FormatError, match=message):
        open_plan(path)
