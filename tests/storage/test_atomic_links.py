"""Files get a second name, or a copy where they cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardmill.storage.atomic import link_or_copy


def test_a_file_is_copied_where_it_cannot_be_linked(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("content")
    link_or_copy(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").samefile(tmp_path / "a")
    other = Path("/dev/shm") / f"shardmill-{tmp_path.name}"
    if Path("/dev/shm").stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second file system")
    try:
        link_or_copy(tmp_path / "a", other)
        assert other.read_text() == "content"
    finally:
        other.unlink(missing_ok=True)
