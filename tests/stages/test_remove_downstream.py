"""Folders that were made from another, or from what was made from it, are found beside it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shardmill.stages import remove as downstream
from shardmill.stages.remove import find_downstream


def stage(folder: Path, **reads: Path | str) -> None:
    folder.mkdir(parents=True)
    plain = {
        "stage": {"kind": "m:C"},
        "content": "tokens",
        "reads": {role: [str(place)] for role, place in reads.items()},
        "version": 1,
        "digest": "0",
    }
    (folder / "stage.json").write_text(json.dumps(plain))


def test_the_whole_chain_is_found_and_nothing_else(tmp_path: Path) -> None:
    stage(tmp_path / "samples")
    stage(tmp_path / "codes", samples=tmp_path / "samples")
    stage(tmp_path / "tokens", samples="elsewhere", codes=tmp_path / "codes")
    stage(tmp_path / "packs", tokens=tmp_path / "tokens")
    stage(tmp_path / "others", samples=tmp_path / "more")
    stage(tmp_path / "less", input=tmp_path / "samples", keys="keys.txt")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "stage.json").write_text("{")
    found = [path.name for path in find_downstream(tmp_path / "samples").folders]
    assert found == ["codes", "packs", "tokens"]
    assert find_downstream(tmp_path / "packs").folders == ()


def test_exports_in_folders_of_their_own_are_found_too(tmp_path: Path) -> None:
    samples = tmp_path / "samples"
    stage(samples)
    for place in ("exports/hf", "exports/for/mds", "a/b/c/too-deep", ".trash/old"):
        stage(tmp_path / place, input=samples)
    stage(tmp_path / "tars", tokens="elsewhere", samples=samples)
    found = find_downstream(samples)
    places = [str(path.relative_to(tmp_path)) for path in found.folders]
    assert places == ["exports/for/mds", "exports/hf", "tars"]
    assert (found.looked_in, found.saw_all) == (tmp_path, True)


def test_only_so_many_folders_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downstream, "MAX_FOLDERS", 2)
    stage(tmp_path / "a")
    for name in "bcd":
        stage(tmp_path / name, samples=tmp_path / "a")
    found = find_downstream(tmp_path / "a")
    assert [path.name for path in found.folders] == ["b"]
    assert not found.saw_all
