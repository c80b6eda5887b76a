from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from shardmill.view import counts as books
from shardmill.view.access import Fence
from shardmill.view.context import Desk
from shardmill.view.counts import (
    StatusDesk,
    find_rejects,
    first_numbers,
    progress_of,
    state_of,
    unit_books,
    unit_rows,
)
from shardmill.view.folder import Folder
from shardmill.view.query import Budget


@pytest.fixture
def rejected(pipeline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    """The pairs with many rejects in several files, shown seven at a time."""
    shutil.copytree(pipeline / "pairs", tmp_path / "pairs")
    for unit in range(5):
        lines = [
            {"key": f"k{unit}-{n}", "reason": f"r{n % 3}", "detail": "<d>", "filtered": False}
            for n in range(10)
        ]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (tmp_path / "pairs" / "rejects" / f"{unit:06d}.jsonl").write_text(text)
    monkeypatch.setattr(books, "MAX_REJECTS", 7)
    return Folder(tmp_path / "pairs", Fence.around(tmp_path))


@pytest.mark.parametrize(
    ("reason", "wanted", "count"), [("", "", 50), ("r1", "", 15), ("", "K3-", 10)]
)
def test_pages_of_rejects_hold_each_that_fits_once(
    rejected: Folder, reason: str, wanted: str, count: int
) -> None:
    found, cursor = list[str](), (0, 0)
    while cursor is not None:
        page = find_rejects(rejected, reason, wanted, cursor, Budget(60))
        found += [reject["key"] for reject in page["found"]]
        cursor = page["cursor"] and tuple(page["cursor"])
    assert len(found) == len(set(found)) == count


def test_a_search_without_time_goes_on_later(rejected: Folder) -> None:
    page = find_rejects(rejected, "", "", (0, 0), Budget(0))
    assert page["found"] == [] and page["cursor"] == [0, 0]


def test_the_books_of_a_unit_are_those_of_its_receipt(desk: Desk) -> None:
    folder = desk.library.folder("pairs")
    unit = unit_books(folder, "000002")
    assert (unit["in"], unit["kept"], unit["skipped"]) == (8, 7, 1)
    assert unit["rejects"][0]["reason"] == "not an image"
    assert {file["role"] for file in unit["files"][0]["files"]} == {"tar", "idx"}
    assert unit["files"][0]["first"] == first_numbers(folder)["000002"] == 15


def test_units_say_how_they_stand(desk: Desk, pipeline: Path, tmp_path: Path) -> None:
    shutil.copytree(pipeline / "pairs", tmp_path / "pairs")
    (tmp_path / "pairs" / "manifest.json").unlink()
    for name in ("000002", "000003", "000004"):
        (tmp_path / "pairs" / "receipts" / f"{name}.json").unlink()
    failure = {"message": "no room", "traceback": "...", "unit": "000002"}
    (tmp_path / "pairs" / "failures" / "000002.json").write_text(json.dumps(failure))
    folder = Folder(tmp_path / "pairs", Fence.around(tmp_path))
    rows = unit_rows(folder, folder.units(), {"000003"})
    assert [row["state"] for row in rows] == ["done", "done", "failed", "running", "waiting"]
    assert unit_books(folder, "000002")["failure"]["message"] == "no room"
    status = StatusDesk().of(folder)
    assert status is not None and state_of(status) == "failed"
    assert progress_of(status)["done"] == 2


def test_a_status_is_not_read_again_at_once(desk: Desk) -> None:
    statuses = StatusDesk()
    folder = desk.library.folder("pairs")
    assert statuses.of(folder) is statuses.of(folder)
