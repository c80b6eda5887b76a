from __future__ import annotations

import pytest

from shardmill.model.codec import load_class
from shardmill.plugins import SOURCES
from shardmill.sources.part import Source


@pytest.mark.parametrize("kind", sorted(SOURCES))
def test_every_source_of_the_table_keeps_the_contract(kind: str) -> None:
    assert issubclass(load_class(SOURCES[kind]), Source)
