from __future__ import annotations

import json
from math import floor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmill.errors import ConfigError, FormatError, SampleError
from shardmill.sources.nemo import NemoSource, copies_for, is_meta, load_meta, mixed, seed_of
from shardmill.sources.shapes.general import MessagesShape
from shardmill.sources.source import Row


def chat(number: int) -> dict[str, Any]:
    return {
        "talk": [{"who": "H", "words": f"<image> {number}?"}, {"who": "A", "words": "yes"}],
        "pics": [f"{number}.jpg"],
    }


def plain(number: int) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": f"{number}"}], "id": number}


TAGS = {"role_tag": "who", "content_tag": "words", "user_tag": "H", "assistant_tag": "A"}


META: dict[str, Any] = {
    "b_chats": {
        "file_name": "data/chats.jsonl",
        "columns": {"messages": "talk", "images": "pics"},
        "tags": TAGS,
        "media_dir": "photos",
    },
    "a_text": {"file_name": "data/text.json"},
}


def write(folder: Path, meta: dict[str, Any]) -> str:
    for name in ("data", "photos"):
        (folder / name).mkdir(exist_ok=True)
    chats = [json.dumps(chat(n)) for n in range(40)]
    (folder / "data" / "chats.jsonl").write_text("\n".join(chats))
    (folder / "data" / "text.json").write_text(json.dumps([plain(n) for n in range(10)]))
    (folder / "meta.json").write_text(json.dumps(meta))
    return str(folder / "meta.json")


def read_all(source: NemoSource, per_shard: int | None = 8) -> list[Row]:
    rows = []
    with source.open() as read:
        for part in source.parts(per_shard):
            found = list(read(part.input))
            assert len(found) == part.num_rows
            rows += found
    return rows


def test_data_sets_come_by_name_with_columns_and_tags_unified(tmp_path: Path) -> None:
    rows = read_all(NemoSource(meta=write(tmp_path, META)))
    assert [row.origin.source for row in rows] == ["a_text"] * 10 + ["b_chats"] * 40
    row = rows[10]
    assert row.key == "b_chats/chats-00000000"
    assert row.media_dir == str(tmp_path / "photos")
    assert row.fields["images"] == ["0.jpg"]
    shaped = MessagesShape().shape(row.fields)
    assert [(p.role, p.text or p.media) for p in shaped.segments] == [
        ("user", "0.jpg"),
        ("user", " 0?"),
        ("assistant", "yes"),
    ]
    assert rows[3].fields["id"] == 3


def test_rows_in_sharegpt_style_need_no_tags(tmp_path: Path) -> None:
    meta = {"a": {"file_name": "rows.jsonl"}}
    calls = [{"name": "f"}]
    answer = {"from": "gpt", "value": "ho", "tool_calls": calls}
    row = {"conversations": [{"from": "human", "value": "hi"}, answer]}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    (found,) = read_all(NemoSource(meta=write(tmp_path, meta)))
    shaped = MessagesShape().shape(found.fields)
    assert [p.role for p in shaped.segments] == ["user", "assistant"]
    assert shaped.extra["turn_fields"] == {"1": {"tool_calls": '[{"name":"f"}]'}}


@pytest.mark.parametrize(
    ("ratio", "count"), [(0.25, 10), (0.01, 1), (1.0, 40), (2.5, 100), (3, 120)]
)
@pytest.mark.parametrize("per_shard", [5, 1000])
def test_a_ratio_gives_exact_counts_whatever_the_shards(
    tmp_path: Path, ratio: float, count: int, per_shard: int
) -> None:
    meta = {"b": {**META["b_chats"], "sample_ratio": ratio}}
    source = NemoSource(meta=write(tmp_path, meta))
    rows = read_all(source, per_shard)
    assert len(rows) == count
    assert len({row.key for row in rows}) == count
    assert sorted(row.key for row in rows) == sorted(row.key for row in read_all(source, 7))


def test_copies_of_a_row_are_told_apart(tmp_path: Path) -> None:
    meta = {"b": {**META["b_chats"], "sample_ratio": 2}}
    rows = read_all(NemoSource(meta=write(tmp_path, meta)))
    assert [row.key for row in rows[:4]] == [
        "b/chats-00000000",
        "b/chats-00000000-x1",
        "b/chats-00000001",
        "b/chats-00000001-x1",
    ]
    assert rows[0].fields == rows[1].fields


def test_the_seed_decides_which_rows(tmp_path: Path) -> None:
    meta = write(tmp_path, {"b": {**META["b_chats"], "sample_ratio": 0.5}})
    keys = [[r.key for r in read_all(NemoSource(meta=meta, seed=seed))] for seed in (1, 1, 2)]
    assert keys[0] == keys[1] != keys[2]


def test_data_sets_can_be_chosen(tmp_path: Path) -> None:
    meta = write(tmp_path, META)
    assert len(read_all(NemoSource(meta=meta, datasets=("a_text",)))) == 10
    with pytest.raises(ConfigError, match="has no data set 'c', only a_text, b_chats"):
        list(NemoSource(meta=meta, datasets=("c",)).parts(None))


def test_the_fingerprint_covers_the_meta_file_and_the_tables(tmp_path: Path) -> None:
    inputs = NemoSource(meta=write(tmp_path, META)).inputs()
    assert sorted(Path(path).name for path in inputs) == ["chats.jsonl", "meta.json", "text.json"]


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        ("{broken", "is not JSON"),
        ("[]", "is not a meta file"),
        ('{"a": {"file_name": "x", "sampel_ratio": 2}}', "a has 'sampel_ratio', known are"),
        ('{"a": {"file_name": "x", "columns": {"text": "t"}}}', r"a\.columns has 'text'"),
        ('{"a": {"file_name": "x", "tags": {"role": "t"}}}', r"a\.tags has 'role'"),
        ('{"a": {"file_name": "x", "tags": [1]}}', "a.tags has"),
        ('{"a": {"file_name": "x", "sample_ratio": "half"}}', "sample_ratio must be a number"),
        ('{"a": {"file_name": "x", "sample_ratio": 0}}', "must be a number above 0"),
    ],
)
def test_a_meta_file_is_checked(tmp_path: Path, meta: str, message: str) -> None:
    path = tmp_path / "meta.json"
    path.write_text(meta)
    with pytest.raises((ConfigError, FormatError), match=message):
        load_meta(path)


def test_only_objects_that_name_files_are_meta_files() -> None:
    assert is_meta(META)
    assert not is_meta({})
    assert not is_meta({"a": {"file_name": "x"}, "b": {}})
    assert not is_meta([META])


seeds = st.integers(0, (1 << 64) - 1)


@given(st.integers(1, 3000), st.integers(1, 500), seeds)
def test_counts_are_exact(num_rows: int, hundredths: int, seed: int) -> None:
    ratio = hundredths / 100
    copies = copies_for(ratio, num_rows, seed).of_rows(0, num_rows)
    if hundredths < 100:
        assert copies.sum() == max(1, num_rows * hundredths // 100)
        assert copies.max() == 1
    else:
        rest = num_rows * (hundredths % 100) // 100
        assert copies.sum() == num_rows * (hundredths // 100) + rest
        assert set(copies.tolist()) <= {floor(ratio), floor(ratio) + 1}


@given(st.integers(1, 500), seeds, st.data())
def test_any_slice_says_what_the_whole_says(num_rows: int, seed: int, data: st.DataObject) -> None:
    copies = copies_for(0.37, num_rows, seed)
    first = data.draw(st.integers(0, num_rows))
    count = data.draw(st.integers(0, num_rows - first))
    whole = copies.of_rows(0, num_rows)
    assert (copies.of_rows(first, count) == whole[first : first + count]).all()


def test_numbers_of_rows_are_all_different_and_even() -> None:
    numbers = mixed(7, 0, 100_000)
    assert len(np.unique(numbers)) == 100_000
    counts = np.bincount((numbers >> np.uint64(60)).astype(np.int64), minlength=16)
    assert abs(counts - 6250).max() < 400


def test_seeds_choose_different_rows() -> None:
    first, second = (copies_for(0.5, 1000, seed_of(42, n)).of_rows(0, 1000) for n in ("a", "b"))
    assert 300 < (first == second).sum() < 700


@pytest.mark.parametrize("ratio", [0, -1.5])
def test_a_ratio_of_nothing_is_refused(ratio: float) -> None:
    with pytest.raises(ConfigError, match="must be above 0"):
        copies_for(ratio, 10, 0)


def test_no_rows_stay_no_rows() -> None:
    assert copies_for(0.5, 0, 1).of_rows(0, 0).sum() == 0


def test_relative_media_begin_where_nemo_was_started(tmp_path: Path) -> None:
    """Beside the meta file by default, below a folder that the user names on request."""
    (tmp_path / "lists").mkdir()
    (tmp_path / "photos").mkdir()
    meta = write(tmp_path / "lists", META)
    (tmp_path / "lists" / "photos").rmdir()
    with pytest.raises(ConfigError, match=r"'photos' of b_chats is no folder .* --media-root"):
        read_all(NemoSource(meta=meta))
    rows = read_all(NemoSource(meta=meta, media_root=str(tmp_path)))
    assert {Path(row.media_dir) for row in rows if "images" in row.fields} == {tmp_path / "photos"}


@pytest.mark.parametrize(
    ("words", "images", "kept"),
    [("<image> a <image>", 1, 1), ("a", 2, 0), ("<video>a<image>", 1, 1), ("<image><image>", 2, 2)],
)
def test_placeholders_without_media_as_nemo_reads_them(words: str, images: int, kept: int) -> None:
    turns = [{"role": "user", "content": words}, {"role": "assistant", "content": "yes"}]
    row = {"messages": turns, "images": [f"{n}.jpg" for n in range(images)]}
    found = MessagesShape(mismatch="drop").shape(row).segments
    assert [part.media for part in found if part.kind == "image"] == row["images"][:kept]
    assert not any(part.kind == "video" for part in found)
    if words.count("<image>") != images or "<video>" in words:
        with pytest.raises(SampleError, match="mismatch=drop"):
            MessagesShape().shape(row)
