"""`diff` as a person runs it."""

from __future__ import annotations

import json
from pathlib import Path

from invoked import invoke


def test_diff_tells_what_changed(place: Path) -> None:
    keys = ("--keys", place / "keys.txt", "--workers", 0)
    invoke("remove", place / "tokens", place / "less", *keys)
    done = invoke("diff", place / "tokens", place / "less")
    assert "removed  1: texts-00000001" in done.output
    assert "1 shard touched" in done.output
    assert "000000  2 -> 1 samples, -1" in done.output
    found = json.loads(invoke("diff", place / "tokens", place / "less", "--json").output)
    assert found["removed"] == 1
    assert found["num_tokens"][0] > found["num_tokens"][1]
    assert "hold the same samples" in invoke("diff", place / "less", place / "less").output
