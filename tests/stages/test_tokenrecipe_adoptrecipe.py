"""From what a user says and what lies there to the adoption of tokens."""

from __future__ import annotations

from pathlib import Path

from unidisc_folder import write_interleaved

from shardmill.formats.unidisc.read import UnidiscReader
from shardmill.model.space import TokenSpace
from shardmill.stages.tokenrecipe import adoption_of, is_adoption


def test_tokens_are_recognised_or_named(tmp_path: Path) -> None:
    write_interleaved(tmp_path / "in" / "train_0", [0])
    assert is_adoption({}, [str(tmp_path / "in")])
    assert is_adoption({"from": "megatron"}, ["anything"])
    assert not is_adoption({}, ["rows.jsonl"])


def test_fields_of_the_kind_and_the_space_reach_the_reader(tmp_path: Path) -> None:
    space = TokenSpace(text_size=10)
    recipe = {"from": {"kind": "unidisc", "ids": "local", "split": "val"}}
    reader = adoption_of(recipe, [str(tmp_path)], space, None).reader
    assert reader == UnidiscReader(dir=str(tmp_path), ids="local", split="val", space=space)
    reader = adoption_of({"from": "unidisc"}, [str(tmp_path)], None, None).reader
    assert reader == UnidiscReader(dir=str(tmp_path))
