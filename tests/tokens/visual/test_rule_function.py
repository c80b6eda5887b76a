from __future__ import annotations

from pathlib import Path

import pytest

from shardmill.errors import ConfigError, SampleError
from shardmill.model.codec import from_plain, to_plain
from shardmill.model.sample import MediaSize
from shardmill.tokens.visual.rule import FunctionRule

SIZE = MediaSize(width=30, height=4)


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "my_visual_rule.py").write_text(
        "def area(kind, size): return size.width * size.height\ndef wrong(kind, size): return 1.5\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return "my_visual_rule"


def test_a_function_by_path_counts(own_module: str) -> None:
    rule = FunctionRule(path=f"{own_module}:area", tokens={"image": "<x>"})
    visual = rule.count("image", SIZE)
    assert (visual.text, visual.num_visual, visual.num_hidden) == ("<x>", 120, 119)
    assert rule.placeholders() == {"image": "<x>"}
    assert from_plain(to_plain(rule), trusted=True) == rule


def test_only_positive_whole_numbers_are_counts(own_module: str) -> None:
    with pytest.raises(ConfigError, match="positive int"):
        FunctionRule(path=f"{own_module}:wrong").count("image", SIZE)
    with pytest.raises(ConfigError, match="positive int"):
        FunctionRule(path=f"{own_module}:area").count("image", MediaSize())


@pytest.mark.parametrize("path", ["nowhere:f", "builtins:nothing", "builtins", ":", "math:pi"])
def test_what_cannot_be_called_is_refused(path: str) -> None:
    with pytest.raises(ConfigError, match=r"cannot load|is not a function|not of the form"):
        FunctionRule(path=path).count("image", SIZE)


def test_other_kinds_are_refused() -> None:
    with pytest.raises(SampleError, match="takes no video"):
        FunctionRule(path="builtins:len").count("video", SIZE)
