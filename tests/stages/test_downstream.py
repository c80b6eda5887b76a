"""Folders that were made from another, or from what was made from it, are found beside it."""

from __future__ import annotations

import json
from pathlib import Path

from shardmill.stages.downstream import find_downstream


def stage(folder: Path, **spec: object) -> None:
    folder.mkdir()
    plain = {"stage": {"kind": "m:C", **spec}, "version": 1, "digest": "0"}
    (folder / "stage.json").write_text(json.dumps(plain))


def test_the_whole_chain_is_found_and_nothing_else(tmp_path: Path) -> None:
    stage(tmp_path / "samples")
    stage(tmp_path / "codes", input_dir=str(tmp_path / "samples"))
    stage(tmp_path / "tokens", input_dir="elsewhere", codes={"folder": str(tmp_path / "codes")})
    stage(tmp_path / "packs", tokens_dir=str(tmp_path / "tokens"))
    stage(tmp_path / "others", input_dir=str(tmp_path / "more"))
    stage(tmp_path / "less", input_dir=str(tmp_path / "samples"), keys_path="keys.txt")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "stage.json").write_text("{")
    found = [path.name for path in find_downstream(tmp_path / "samples")]
    assert found == ["codes", "packs", "tokens"]
    assert find_downstream(tmp_path / "packs") == []
