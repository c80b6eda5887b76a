from __future__ import annotations

import csv
import gzip
import json
import sys
import tracemalloc
from contextlib import closing
from itertools import islice
from pathlib import Path
from random import Random
from struct import pack
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from mutate import mutate

from shardmill.errors import ConfigError, FormatError, SampleError
from shardmill.model.codec import digest, from_plain, to_plain
from shardmill.sources import tables as arrow
from shardmill.sources.source import Row, Source
from shardmill.sources.tables import (
    Cursors,
    NestedSource,
    TableSource,
    count_rows,
    rows_from,
    table_format,
    table_stem,
)

ROWS = [{"id": str(n), "text": f"row {n}, ünd so\nweiter"} for n in range(57)]


def write_rows(path: Path) -> Path:
    """Write ROWS in the format that the name says."""
    name = path.name.removesuffix(".gz").removesuffix(".zst")
    path.parent.mkdir(parents=True, exist_ok=True)
    if name.endswith(".parquet"):
        pq.write_table(pa.Table.from_pylist(ROWS), path, row_group_size=20)
        return path
    if name.endswith(".arrow"):
        table = pa.Table.from_pylist(ROWS)
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=20)
        return path
    if name.endswith(".json"):
        data = json.dumps(ROWS, indent=1).encode()
    elif name.endswith(".jsonl"):
        data = "\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS).encode()
    else:
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(
                file, ["id", "text"], delimiter="\t" if name.endswith(".tsv") else ","
            )
            writer.writeheader()
            writer.writerows(ROWS)
        data = path.read_bytes()
    packers: dict[str, Any] = {".gz": gzip.compress, ".zst": zstandard.compress}
    path.write_bytes(packers.get(path.suffix, bytes)(data))
    return path


def read_all(source: Source, per_shard: int | None = None) -> list[Row]:
    with source.open() as read:
        return [row for part in source.parts(per_shard) for row in read(part.input)]


NAMES = ["a.jsonl", "a.json", "a.csv", "a.tsv", "a.parquet", "a.arrow"]


PACKED = [f"{name}{suffix}" for name in NAMES[:4] for suffix in (".gz", ".zst")]


@pytest.mark.parametrize("name", NAMES + PACKED)
@pytest.mark.parametrize("per_shard", [1, 10, 57, 1000])
def test_every_format_gives_every_row_once_in_order(
    tmp_path: Path, name: str, per_shard: int
) -> None:
    source = TableSource(files=(str(write_rows(tmp_path / name)),), name="books")
    parts = list(source.parts(per_shard))
    assert sum(part.num_rows or 0 for part in parts) == len(ROWS)
    assert max(part.num_rows or 0 for part in parts) <= per_shard
    rows = read_all(source, per_shard)
    assert [row.fields for row in rows] == ROWS
    assert [row.key for row in rows] == [f"a-{n:08d}" for n in range(57)]
    assert rows[3].origin.row == 3
    assert (rows[3].origin.source, rows[3].origin.path) == ("books", name)
    assert rows[3].media_dir == str(tmp_path)


def test_parts_can_be_read_in_any_order(tmp_path: Path) -> None:
    for name in ("a.jsonl.zst", "a.parquet", "a.json"):
        source = TableSource(files=(str(write_rows(tmp_path / name)),))
        parts = list(source.parts(10))
        with source.open() as read:
            backwards = [[row.fields for row in read(part.input)] for part in reversed(parts)]
        assert [row for part in reversed(backwards) for row in part] == ROWS


def test_a_nested_corpus_is_one_table_in_the_order_of_names(tmp_path: Path) -> None:
    for name in ("s2/shard_0.jsonl.zst", "s1/shard_1.jsonl.zst", "s1/shard_0.jsonl.zst"):
        write_rows(tmp_path / name)
    keys = [row.key for row in read_all(TableSource(files=(str(tmp_path),)))]
    assert keys[::57] == ["s1/shard_0-00000000", "s1/shard_1-00000000", "s2/shard_0-00000000"]
    assert len(set(keys)) == 3 * 57


def test_dclm_calls_its_lines_json(tmp_path: Path) -> None:
    path = tmp_path / "shard_0.json.zst"
    path.write_bytes(zstandard.compress(b'{"text": "a", "url": "u"}\n{"text": "b", "url": "v"}\n'))
    assert [row.fields["text"] for row in read_all(TableSource(files=(str(path),)))] == ["a", "b"]


@pytest.mark.parametrize(
    "content", ['{"id": [1, 2], "text": ["a", "b"]}', '{\n "id": [1],\n "text": ["a"]\n}\n']
)
def test_an_object_of_columns_is_refused_with_the_remedy(tmp_path: Path, content: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(content)
    source = TableSource(files=(str(path),))
    with pytest.raises(FormatError, match="an object of columns is read with --source columns"):
        list(source.parts(10))


def test_a_csv_without_header_takes_the_names_it_is_given(tmp_path: Path) -> None:
    path = tmp_path / "cc3m.tsv"
    path.write_text("a cat\thttp://x/1.jpg\na dog\thttp://x/2.jpg\n")
    source = TableSource(files=(str(path),), columns=("caption", "url"))
    assert [row.fields["caption"] for row in read_all(source)] == ["a cat", "a dog"]


def test_a_header_that_names_a_column_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,a\n1,2\n")
    with pytest.raises(FormatError, match="does not name the columns"):
        list(TableSource(files=(str(path),)).parts(10))


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.txt", "a.jsonl.gz"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_an_empty_file_has_no_rows(tmp_path: Path, name: str, mark: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(mark) if name.endswith("gz") else mark)
    assert read_all(TableSource(files=(str(path),), format=None)) == []


def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path: Path) -> None:
    for name, text in (("a.csv", "id,b\n1,2\n"), ("a.json", '[{"id": "1", "b": "2"}]')):
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + text.encode())
        rows = read_all(TableSource(files=(str(tmp_path / name),)))
        assert [row.fields for row in rows] == [{"id": "1", "b": "2"}]


def test_a_bad_line_is_a_row_with_its_problem(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": 1}\n\nbroken\n{"a": "\xff"}\n' + b"x" * 200 + b'\n{"a": 2}')
    rows = read_all(TableSource(files=(str(path),), max_row_bytes=100), 2)
    assert [row.key for row in rows] == [f"a-{n:08d}" for n in (0, 2, 3, 4, 5)]
    reasons = [row.problem.reason if row.problem else "" for row in rows]
    assert reasons == ["", "not JSON", "not UTF-8", "row too long", ""]


def test_digests_of_parts_follow_the_bytes_of_their_own_slice(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.jsonl")
    source = TableSource(files=(str(path),))
    before = [digest(part.input) for part in source.parts(10)]
    path.write_bytes(path.read_bytes().replace(b"row 25,", b"row 52,"))
    after = [digest(part.input) for part in source.parts(10)]
    assert [n for n, (a, b) in enumerate(zip(before, after)) if a != b] == [2]


def test_a_table_that_changes_under_the_reader_stops_it(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.jsonl")
    source = TableSource(files=(str(path),))
    part = next(source.parts(10))
    path.write_bytes(path.read_bytes().replace(b"row 5,", b"row 6,"))
    with source.open() as read, pytest.raises(FormatError, match="was changed after it was listed"):
        list(read(part.input))


def test_a_parquet_file_that_changes_under_the_reader_stops_it(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.parquet")
    source = TableSource(files=(str(path),))
    part = next(source.parts(10))
    path.write_bytes(path.read_bytes() + b"x")
    with source.open() as read, pytest.raises(FormatError, match="was changed after it was listed"):
        list(read(part.input))


def test_the_fingerprint_sees_new_and_changed_files(tmp_path: Path) -> None:
    write_rows(tmp_path / "a.jsonl")
    source = TableSource(files=(str(tmp_path),))
    before = dict(source.inputs())
    write_rows(tmp_path / "b.jsonl")
    assert dict(source.inputs()) != before


def test_a_spec_survives_being_stored(tmp_path: Path) -> None:
    source = TableSource(files=("a.jsonl",), columns=("a",))
    assert from_plain(to_plain(source)) == source


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match="format must be one of"):
        TableSource(files=("a",), format="xml")
    with pytest.raises(ConfigError, match="max_row_bytes"):
        TableSource(files=("a",), max_row_bytes=0)
    with pytest.raises(ConfigError, match="is no known table"):
        table_format("a.xml")


def test_stems_and_formats_follow_the_suffixes() -> None:
    assert table_stem("a.b.jsonl.zst") == "a.b"
    assert table_stem("state.json") is None
    assert table_stem("notes.txt") is None
    assert table_format("A.JSONL.GZ") == "jsonl"
    assert table_format("notes.txt") == "txt"


def rows_of(tmp_path: Path, rows: list[Any], per_shard: int | None = None) -> list[Row]:
    path = tmp_path / "How2link.json"
    path.write_text(json.dumps(rows))
    source = NestedSource(files=(str(path),), name="how")
    with source.open() as read:
        parts = list(source.parts(per_shard))
        assert all(part.num_rows is None for part in parts)
        return [row for part in parts for row in read(part.input)]


@pytest.mark.parametrize("per_shard", [None, 1])
def test_each_element_is_a_row_with_the_fields_of_both(
    tmp_path: Path, per_shard: int | None
) -> None:
    rows = [
        {"video_id": "x", "clips": [{"caption": "a"}, {"caption": "b", "video_id": "own"}]},
        {"video_id": "y", "clips": [{"caption": "c"}]},
    ]
    found = rows_of(tmp_path, rows, per_shard)
    assert [(row.key, row.origin.row, row.fields) for row in found] == [
        ("How2link-00000000-000", "0.clips.0", {"video_id": "x", "caption": "a"}),
        ("How2link-00000000-001", "0.clips.1", {"video_id": "own", "caption": "b"}),
        ("How2link-00000001-000", "1.clips.0", {"video_id": "y", "caption": "c"}),
    ]


@pytest.mark.parametrize("row", [{}, {"clips": []}, {"clips": "x"}, {"clips": ["x"]}, 3])
def test_what_holds_no_rows_is_one_reject(tmp_path: Path, row: Any) -> None:
    found = rows_of(tmp_path, [row, {"clips": [{"a": 1}]}])
    assert [row.problem is None for row in found] == [False, True]


TABLE = pa.table(
    {
        "id": list(range(250)),
        "image": [{"bytes": bytes([n % 256]) * 5, "path": f"{n}.jpg"} for n in range(250)],
    }
)


def write_parquet(path: Path) -> None:
    pq.write_table(TABLE, path, row_group_size=70)


def write_ipc_file(path: Path) -> None:
    with pa.ipc.new_file(str(path), TABLE.schema) as writer:
        writer.write_table(TABLE, max_chunksize=70)


def write_ipc_stream(path: Path) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, TABLE.schema) as writer:
        writer.write_table(TABLE, max_chunksize=70)


@pytest.fixture(params=[write_parquet, write_ipc_file, write_ipc_stream])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    request.param(tmp_path / "rows")
    return tmp_path / "rows"


def test_rows_come_from_any_row_on(path: Path) -> None:
    assert count_rows(path) == 250
    for first in (0, 1, 69, 70, 71, 139, 249, 250):
        assert list(rows_from(path, first)) == TABLE.slice(first).to_pylist()


def test_parts_in_order_open_a_file_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []
    monkeypatch.setattr(
        arrow, "rows_from", lambda p, first, _: opened.append(first) or rows_from(p, first)
    )
    cursors = Cursors()
    found = [row for first in range(0, 250, 50) for row in cursors.at(path, first, 50)]
    assert found == TABLE.to_pylist()
    assert opened == [0]
    assert list(cursors.at(path, 10, 3)) == TABLE.slice(10, 3).to_pylist()
    assert opened == [0, 10]
    cursors.close()


def test_a_file_with_fewer_rows_than_listed_is_an_error(path: Path) -> None:
    with pytest.raises(FormatError, match="has no row 250"):
        list(Cursors().at(path, 240, 20))


@pytest.mark.parametrize("keep", [0, 3, 10, 0.5, 0.99])
def test_a_file_that_was_cut_off_is_an_error(path: Path, keep: float) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(keep * len(data)) if isinstance(keep, float) else keep])
    with pytest.raises(FormatError):
        count_rows(path)
        list(rows_from(path, 0))


def damaged(path: Path, column: pa.Array, find: bytes, put: bytes) -> list[Any]:
    """Return the rows of an Arrow file in which some bytes of a column were changed."""
    table = pa.table({"value": column, "number": list(range(len(column)))})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    content = path.read_bytes()
    assert content.count(find) == 1
    path.write_bytes(content.replace(find, put))
    with TableSource(files=(str(path),)).open() as read:
        (part,) = TableSource(files=(str(path),)).parts(None)
        return [row.problem or row.fields["number"] for row in read(part.input)]


def lost(rows: list[Any]) -> list[int]:
    """Return which rows were rejected; the others must be what they were."""
    bad = [number for number, row in enumerate(rows) if isinstance(row, SampleError)]
    assert [row for row in rows if not isinstance(row, SampleError)] == sorted(
        set(range(len(rows))) - set(bad)
    )
    return bad


TEXTS = [f"text {number:03d}" for number in range(100)]  # 8 bytes each
# The offsets of texts 49 to 51, and a second one that leads far away.
OFFSETS = pack("<iii", 49 * 8, 50 * 8, 51 * 8)
AWAY = pack("<iii", 49 * 8, 1 << 30, 51 * 8)


def test_one_bad_text_of_an_arrow_file_costs_its_row(tmp_path: Path) -> None:
    rows = damaged(tmp_path / "a.arrow", pa.array(TEXTS), b"text 050", b"text \xff50")
    assert lost(rows) == [50]
    assert "UTF8" in rows[50].detail


def test_one_bad_offset_of_an_arrow_file_costs_the_rows_beside_it(tmp_path: Path) -> None:
    rows = damaged(tmp_path / "a.arrow", pa.array(TEXTS), OFFSETS, AWAY)
    assert lost(rows) == [49, 50]
    assert rows[49].reason == "broken row"


@pytest.mark.parametrize("nest", ["list", "struct"])
def test_bad_values_inside_of_others_cost_their_rows(tmp_path: Path, nest: str) -> None:
    values = [[text] if nest == "list" else {"text": text} for text in TEXTS]
    column = pa.array(values)
    assert lost(damaged(tmp_path / "a.arrow", column, b"text 050", b"text \xff50")) == [50]
    assert lost(damaged(tmp_path / "a.arrow", column, OFFSETS, AWAY)) == [49, 50]


def test_an_offset_of_a_list_that_leads_away_costs_the_rows_beside_it(tmp_path: Path) -> None:
    column = pa.array([[number] * 8 for number in range(100)], pa.list_(pa.int16()))
    assert lost(damaged(tmp_path / "a.arrow", column, OFFSETS, AWAY)) == [49, 50]


def test_an_index_outside_of_the_dictionary_costs_its_row(tmp_path: Path) -> None:
    column = pa.array(TEXTS).dictionary_encode()
    indices = pack("<iii", 49, 50, 51)
    rows = damaged(tmp_path / "a.arrow", column, indices, pack("<iii", 49, 1 << 30, 51))
    assert lost(rows) == [50]


def test_a_value_that_python_has_no_place_for_costs_its_row(tmp_path: Path) -> None:
    table = pa.table({"when": pa.array([*range(8), 1 << 62], pa.timestamp("s"))})
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), table.schema) as writer:
        writer.write_table(table)
    rows = list(arrow.rows_from(tmp_path / "a.arrow", 0))
    assert [isinstance(row, SampleError) for row in rows] == [False] * 8 + [True]


def test_large_arrow_files_are_counted_by_a_process_that_may_die(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, broken = tmp_path / "rows.arrow", tmp_path / "broken.arrow"
    write_ipc_file(path)
    broken.write_bytes(path.read_bytes()[:-40])
    monkeypatch.setattr(arrow, "MAPPED_BYTES", 0)
    with closing(arrow.RowCounter()) as counter:
        assert counter.count(path, 1) == 250
        with pytest.raises(FormatError, match=r"broken\.arrow: cannot be read"):
            counter.count(broken, 1)
        assert counter.count(path, 1) == 250  # by the same process
    dying = "import os, sys; sys.stdin.readline(); os.kill(os.getpid(), 7)"
    monkeypatch.setattr(arrow, "python_module", lambda name: [sys.executable, "-c", dying])
    with pytest.raises(FormatError, match=r"rows\.arrow: ended the process .* \(SIGBUS\)"):
        list(TableSource(files=(str(path),)).parts(None))


def test_only_processes_that_may_die_map_arrow_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rows.arrow"
    write_ipc_stream(path)
    mapped: list[str] = []
    memory_map = pa.memory_map
    monkeypatch.setattr(pa, "memory_map", lambda p: mapped.append(p) or memory_map(p))
    rows = list(rows_from(path, 0))
    assert not mapped and count_rows(path) == len(rows)
    monkeypatch.setattr(arrow, "may_die", lambda: True)
    assert list(rows_from(path, 0)) == rows and mapped == [str(path)]


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_a_text_that_all_rows_repeat_takes_no_more_than_a_row(tmp_path: Path, name: str) -> None:
    texts = pa.array(["short", "x" * (4 << 20), "y" * (2 << 20)])
    column = pa.DictionaryArray.from_arrays(pa.array([1, 0, 2] * 50, pa.int32()), texts)
    table, path = pa.table({"text": column}), tmp_path / name
    if name == "a.parquet":
        pq.write_table(table, path, compression="zstd", dictionary_pagesize_limit=8 << 20)
    else:
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table)
    rows = Cursors(max_row_bytes=3 << 20).at(path, 0, 150)
    tracemalloc.start()
    pa.default_memory_pool().release_unused()
    begun = pa.total_allocated_bytes()
    most, found = 0, []
    for row in rows:
        most = max(most, pa.total_allocated_bytes() - begun)
        found.append(row.reason if isinstance(row, SampleError) else len(row["text"]))
    python = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == ["row too long", 5, 2 << 20] * 50
    assert most < 200 << 20 and python < 40 << 20


def test_a_file_that_claims_absurdly_many_rows_is_refused_before_they_are_cut(
    tmp_path: Path,
) -> None:
    nothing = pa.Array.from_buffers(pa.null(), 1 << 30, [None])
    batch = pa.RecordBatch.from_arrays([nothing], ["nothing"])
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), batch.schema) as writer:
        writer.write_batch(batch)
    with pytest.raises(FormatError, match=r"a\.arrow: claims 1,073,741,824 rows in"):
        next(TableSource(files=(str(tmp_path / "a.arrow"),)).parts(None))


@pytest.mark.parametrize("column", ["text", "list"])
def test_a_parquet_file_that_unpacks_to_gigabytes_is_refused_before_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, column: str
) -> None:
    monkeypatch.setattr("shardmill.sources.tables.MAX_UNPACKED", 1 << 20)
    nulls = pa.array([[None] * 200_000], pa.list_(pa.int64()))
    values = {"text": pa.array(["x" * (2 << 20)]), "list": nulls}
    table = pa.table({column: values[column]})
    pq.write_table(table, tmp_path / "a.parquet", compression="zstd", use_dictionary=False)
    with pytest.raises(FormatError, match=r"a\.parquet: .*row group 0, column .* unpacks"):
        list(Cursors().at(tmp_path / "a.parquet", 0, 1))


@pytest.mark.parametrize("seed", range(4))
def test_broken_arrow_and_parquet_files_end_in_rejects_or_name_themselves(
    tmp_path: Path, seed: int
) -> None:
    write_rows(tmp_path / "a.parquet")
    write_rows(tmp_path / "a.arrow")
    rng = Random(seed)
    for name in ["a.parquet", "a.arrow"] * 25:
        content = (tmp_path / name).read_bytes()
        path = tmp_path / f"broken-{name}"
        path.write_bytes(mutate(content, rng, head=rng.choice((None, len(content) // 2))))
        source = TableSource(files=(str(path),))
        try:
            parts = list(islice(source.parts(100), 10))
            with source.open() as read:
                for part in parts:
                    assert all(row.problem or row.fields for row in read(part.input))
        except FormatError as error:
            assert str(path) in str(error)
