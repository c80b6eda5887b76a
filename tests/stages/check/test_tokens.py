from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from token_folder import write_token_folder

from shardmill.model.space import TokenSpace
from shardmill.model.tokenrow import MediaSpan, TokenRow
from shardmill.packing.build import as_pack
from shardmill.shards.tokens.shard import TokenShard, open_token_shard, open_tokens
from shardmill.shards.tokens.write import TokenWriter
from shardmill.stages.check import tokens as checktokens
from shardmill.stages.check.tokens import (
    Limits,
    MediaArrays,
    RowArrays,
    check_token_shard,
    faults_of,
)

SPACE = TokenSpace(text_size=100, added=("patch",))


IMAGE = MediaSpan(name="jpg", kind="image", position=1, num_tokens=4, grid=(1, 2, 2))


def row(number: int, *, stray: bool = False) -> TokenRow:
    ids = np.array([1, 100, 100, 100, 100, *range(number % 7), 100 if stray else 2])
    return TokenRow(key=f"k{number}", ids=ids, loss=np.array([[len(ids) - 1, 1]]), media=(IMAGE,))


def shard_of(tmp_path: Path, rows: list[TokenRow]) -> TokenShard:
    folder = write_token_folder(tmp_path / "tokens", [rows], SPACE)
    return open_tokens(folder).shard(0)


def test_counts_add_up(tmp_path: Path) -> None:
    rows = [row(number) for number in range(20)]
    findings = check_token_shard(shard_of(tmp_path, rows), Limits())
    assert findings.counts == {
        "rows": 20,
        "tokens": sum(len(row.ids) for row in rows),
        "loss tokens": 20,
        "visual tokens": 80,
        "media": 20,
    }
    assert findings.faults == []


@pytest.mark.parametrize("at_once", [1, 10, 1 << 22])
def test_faults_are_named_however_the_shard_is_cut(
    tmp_path: Path, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checktokens, "TOKENS_AT_ONCE", at_once)
    rows = [row(number, stray=number in (3, 17)) for number in range(20)]
    findings = check_token_shard(shard_of(tmp_path, rows), Limits())
    assert [fault.key for fault in findings.faults] == ["k3", "k17"]
    assert all("placeholders outside" in fault.what for fault in findings.faults)


def test_rows_and_packs_are_measured_by_the_limit(tmp_path: Path) -> None:
    rows = [row(number) for number in range(6)]
    findings = check_token_shard(shard_of(tmp_path, rows), Limits(max_tokens=9))
    assert [fault.key for fault in findings.faults] == ["k4", "k5"]
    paths = {role: tmp_path / f"packs.{role}" for role in ("bin", "idx", "spans")}
    with TokenWriter(lambda role: paths[role], SPACE, {"packs": True}) as writer:
        for pack in (rows[:2], rows[2:5], rows[5:]):
            for one in as_pack(pack):
                writer.append(one)
    findings = check_token_shard(open_token_shard(paths), Limits(max_tokens=20))
    assert [(fault.key, fault.what) for fault in findings.faults] == [
        ("k2", "has 27 tokens, more than 20")
    ]
    assert findings.counts["packs"] == 3


def test_many_faults_are_counted_and_the_first_are_listed(tmp_path: Path) -> None:
    findings = check_token_shard(
        shard_of(tmp_path, [row(number, stray=True) for number in range(50)]), Limits()
    )
    assert findings.num_faults == 50 and len(findings.faults) == 20


@pytest.mark.parametrize("name", ["num_visual", "num_fixed"])
def test_columns_that_do_not_add_up_are_named(tmp_path: Path, name: str) -> None:
    shard = shard_of(tmp_path, [row(number) for number in range(4)])
    wrong = {**shard.columns, name: shard.columns[name] + 1}
    findings = check_token_shard(replace(shard, columns=wrong), Limits())
    assert [fault.what for fault in findings.faults] == [
        f"its column {name} does not add up to its media"
    ]


CODE_SPACE = TokenSpace(text_size=100, added=("patch", "start", "end", "row"), num_codes=50)


PATCH, START, END, ROW_END = 100, 101, 102, 103


def image(kind: str, height: int, width: int) -> tuple[list[int], tuple[int, int, int]]:
    """Return the body of an image and its grid."""
    if kind == "patches":
        return [PATCH] * (height * width), (1, height, width)
    if kind == "merged":
        return [PATCH] * (height * width), (1, 2 * height, 2 * width)
    codes = [CODE_SPACE.code_offset + n % 50 for n in range(height * width)]
    if kind == "codes":
        return codes, (1, height, width)
    rows = [codes[r * width : (r + 1) * width] + [ROW_END] for r in range(height)]
    return [token for row in rows for token in row], (1, height, width)


def row_of(parts: Sequence[int | tuple[str, int, int]]) -> TokenRow:
    """Return a row of runs of text and images between delimiters, with loss on the texts."""
    ids: list[int] = []
    loss, media = [], []
    for part in parts:
        if isinstance(part, int):
            if loss and sum(loss[-1]) == len(ids):
                loss[-1][1] += part
            else:
                loss.append([len(ids), part])
            ids += [7] * part
            continue
        body, grid = image(*part)
        span = MediaSpan(
            name="jpg",
            kind="image",
            position=len(ids) + 1,
            num_tokens=len(body),
            grid=grid,
            before=1,
            after=1,
        )
        media.append(span)
        ids += [START, *body, END]
    return TokenRow(
        key="k", ids=np.array(ids), loss=np.array(loss).reshape(-1, 2), media=tuple(media)
    )


def stacked(rows: Sequence[TokenRow]) -> RowArrays:
    """Return rows as the checks take them."""
    bounds = np.cumsum([0, *(len(row.ids) for row in rows)])
    spans = [(n, *span) for n, row in enumerate(rows) for span in row.loss.tolist()]
    loss = np.array(spans, np.int64).reshape(-1, 3)
    found = [
        (n, bounds[n] + s.position, s.num_tokens, s.before, s.after, *s.grid)
        for n, row in enumerate(rows)
        for s in row.media
    ]
    media = np.array(found, np.int64).reshape(-1, 8)
    return RowArrays(
        ids=np.concatenate([row.ids for row in rows]),
        bounds=bounds,
        loss_row=loss[:, 0],
        loss_start=loss[:, 1],
        loss_length=loss[:, 2],
        media=MediaArrays(*media[:, :5].T, media[:, 5:]),  # type: ignore[call-arg]
    )


def parts(kinds: Sequence[str]) -> st.SearchStrategy[list[int | tuple[str, int, int]]]:
    sizes = st.tuples(st.sampled_from(kinds), st.integers(1, 4), st.integers(1, 4))
    return st.lists(st.integers(1, 5) | sizes, min_size=1, max_size=6)


# A space has one way to show an image, so a shard holds one kind.
made = st.sampled_from(
    [["patches"], ["merged"], ["codes"], ["rows"], ["patches", "codes"]]
).flatmap(lambda kinds: st.lists(parts(kinds), min_size=1, max_size=5))


@given(made)
@settings(max_examples=60)
def test_good_rows_have_no_faults(rows: list[list[int | tuple[str, int, int]]]) -> None:
    assert faults_of(stacked([row_of(row) for row in rows]), CODE_SPACE) == {}


GOOD: list[int | tuple[str, int, int]] = [3, ("patches", 2, 3), 2, ("patches", 2, 2), 4]


def changed(row: TokenRow, at: int, token: int) -> TokenRow:
    ids = row.ids.copy()
    ids[at] = token
    return replace(row, ids=ids)


def with_medium(row: TokenRow, **changes: object) -> TokenRow:
    first, *rest = row.media
    return replace(row, media=(replace(first, **changes), *rest))  # type: ignore[arg-type]


DAMAGE: dict[str, tuple[Callable[[TokenRow], TokenRow], str]] = {
    "id outside": (
        lambda row: changed(row, 0, CODE_SPACE.size),
        "ids outside the token space",
    ),
    "hole": (lambda row: changed(row, row.media[0].position + 2, 7), "different placeholders"),
    "stray placeholder": (lambda row: changed(row, 0, PATCH), "placeholders outside"),
    "stray code": (lambda row: changed(row, 0, CODE_SPACE.code_offset), "codes outside"),
    "stray opening": (lambda row: changed(row, 0, START), "delimiters outside"),
    "stray closing": (lambda row: changed(row, 0, END), "delimiters outside"),
    "no opening": (lambda row: changed(row, row.media[0].position - 1, 7), "unlike the others"),
    "no closing": (lambda row: changed(row, row.media[0].end - 1, 7), "unlike the others"),
    "other grid": (lambda row: with_medium(row, grid=(1, 3, 3)), "not as large as its grid"),
    "half an image": (lambda row: with_medium(row, num_tokens=5), "not as large as its grid"),
    "empty": (lambda row: with_medium(row, num_tokens=0), "media that overlap"),
    "overlap": (lambda row: with_medium(row, num_tokens=11), "media that overlap"),
    "before the row": (lambda row: with_medium(row, position=0), "media that overlap"),
    "beyond the row": (lambda row: replace(row, ids=row.ids[:-5]), "leave it"),
    "learned placeholders": (
        lambda row: replace(row, loss=np.array([[0, row.media[0].position + 1]])),
        "learns placeholders",
    ),
    "loss beyond": (lambda row: replace(row, loss=np.array([[0, 99]])), "loss spans"),
    "loss goes back": (lambda row: replace(row, loss=np.array([[5, 2], [1, 2]])), "loss spans"),
    "loss touches": (lambda row: replace(row, loss=np.array([[1, 2], [3, 2]])), "loss spans"),
    "loss of nothing": (lambda row: replace(row, loss=np.array([[1, 0]])), "loss spans"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_each_broken_rule_is_named_with_its_row(name: str) -> None:
    damage, says = DAMAGE[name]
    good = row_of(GOOD)
    found = faults_of(stacked([good, damage(good), good]), CODE_SPACE)
    assert list(found) == [1]
    assert says in found[1]


def test_a_row_end_too_few_is_found() -> None:
    row = row_of([("rows", 3, 4)])
    short = with_medium(
        replace(row, ids=np.delete(row.ids, row.media[0].position + 4)),
        num_tokens=row.media[0].num_tokens - 1,
    )
    assert faults_of(stacked([row, short]), CODE_SPACE) == {
        1: "has a medium that is not as large as its grid"
    }


def test_codes_may_be_learned() -> None:
    row = row_of([("codes", 3, 4)])
    everything = np.array([[0, len(row.ids)]])
    assert faults_of(stacked([replace(row, loss=everything)]), CODE_SPACE) == {}


def test_delimiters_that_may_be_text_are_not_counted() -> None:
    space = TokenSpace(text_size=103, added=("x",), specials={"start": START})
    good = row_of(GOOD)
    assert faults_of(stacked([changed(good, 0, START)]), space) == {}


def test_without_a_space_no_id_is_strange() -> None:
    assert faults_of(stacked([changed(row_of(GOOD), 0, 10**6)]), None) == {}
