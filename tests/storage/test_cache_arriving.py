from __future__ import annotations

from pathlib import Path

import pytest

from shardmill.storage import cache as arriving
from shardmill.storage.cache import LOG_NAME, Arriving, arriving_in


def test_a_copy_is_read_once_it_is_there(tmp_path: Path) -> None:
    copies = Arriving(tmp_path)
    assert copies.find("/far/x.tar", "shards/x.tar") == "/far/x.tar"
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "x.tar").touch()
    assert copies.find("/far/x.tar", "shards/x.tar") == str(tmp_path / "shards" / "x.tar")
    assert arriving_in(None) is None


def test_news_are_told_once_and_looked_for_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(arriving.time, "monotonic", lambda: now[0])
    copies, log = Arriving(tmp_path), tmp_path / LOG_NAME
    assert not copies.has_news()
    log.write_text("a\n")
    assert not copies.has_news()
    now[0] += arriving.LOOK_EVERY_S
    assert copies.has_news()
    now[0] += arriving.LOOK_EVERY_S
    assert not copies.has_news()
    log.write_text("a\nb\n")
    now[0] += arriving.LOOK_EVERY_S
    assert copies.has_news()
