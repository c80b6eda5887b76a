from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardmill.errors import FormatError
from shardmill.sources.tables import arrow
from shardmill.sources.tables.arrow import Cursors, count_rows, rows_from

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
        arrow, "rows_from", lambda p, first: opened.append(first) or rows_from(p, first)
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
