from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import orjson
import pytest

from shardmill.errors import FormatError
from shardmill.model.stage import Reject
from shardmill.shards.ledger.rejects import read_rejects


def test_rejects_are_read_as_they_were_written(tmp_path: Path) -> None:
    rejects = [Reject("a", "not an image", "3 bytes", False), Reject("é", "too long", "", True)]
    path = tmp_path / "000000.jsonl"
    path.write_bytes(b"".join(orjson.dumps(asdict(reject)) + b"\n" for reject in rejects))
    assert list(read_rejects(path)) == rejects
    assert list(read_rejects(tmp_path / "none.jsonl")) == []


@pytest.mark.parametrize("line", ["root:x:0:0\n", "[]\n", '{"key": "a"}\n'])
def test_a_broken_list_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "x.jsonl").write_text(line)
    with pytest.raises(FormatError, match="not a list of rejects"):
        list(read_rejects(tmp_path / "x.jsonl"))
