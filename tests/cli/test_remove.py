"""`remove` as a person runs it."""

from __future__ import annotations

from pathlib import Path

from invoked import invoke


def test_remove_tells_what_went_and_what_else_to_do(place: Path) -> None:
    keys = ("--keys", place / "keys.txt", "--workers", 0)
    done = invoke("remove", place / "shards", place / "less", *keys)
    assert "1 x removed on request" in done.output
    assert "1 shard written again" in done.output
    assert "1 key: nobody" in done.output
    assert "tokens was made from" in done.output
    again = invoke("remove", place / "tokens", place / "less-tokens", *keys)
    assert "was made from" not in again.output
    assert "nothing to do" in invoke("remove", place / "shards", place / "less", *keys).output
