"""A hook is a function by its import path; whatever else it names is an error."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shardmill.errors import ConfigError, UnitFailed
from shardmill.model.sample import Document, Sample
from shardmill.model.tokenrow import TokenRow
from shardmill.tokens.assemble import load_hook

ROW = TokenRow(key="k", ids=np.array([1, 2, 3]))
SAMPLE = Sample(key="k", document=Document(()))


def test_a_hook_gets_row_and_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    def reverse(row: TokenRow, sample: Sample) -> TokenRow:
        return replace(row, ids=row.ids[::-1], key=sample.key + "!")

    monkeypatch.setattr("shardmill.tokens.assemble.reverse", reverse, raising=False)
    changed = load_hook("shardmill.tokens.assemble:reverse")(ROW, SAMPLE)
    assert (changed.ids.tolist(), changed.key) == ([3, 2, 1], "k!")


def test_a_hook_that_returns_something_else_fails_the_unit() -> None:
    with pytest.raises(UnitFailed, match="returned bool"):
        load_hook("operator:is_")(ROW, SAMPLE)


@pytest.mark.parametrize(
    "path", ["operator", ":x", "operator:", "no_such:f", "operator:no", "sys:path"]
)
def test_a_path_that_is_no_function_is_an_error(path: str) -> None:
    with pytest.raises(ConfigError):
        load_hook(path)
