"""A container replaces the file at its path, and a failed write leaves the old one alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shardmill.shards.arrays import open_arrays, store_arrays


def test_replaces_what_was_there_and_leaves_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "numbers"
    for value in (1, 2):
        store_arrays(path, "numbers", {"x": np.full(3, value)}, {"value": value})
    assert open_arrays(path, "numbers")["x"].tolist() == [2, 2, 2]
    assert [child.name for child in tmp_path.iterdir()] == ["numbers"]


def test_full_disk_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "numbers"
    store_arrays(path, "numbers", {"x": np.arange(3)}, {})

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shardmill.shards.arrays.write_arrays", fail)
    with pytest.raises(OSError, match="No space"):
        store_arrays(path, "numbers", {"x": np.arange(9)}, {})
    assert [child.name for child in tmp_path.iterdir()] == ["numbers"]
    assert len(open_arrays(path, "numbers")["x"]) == 3
