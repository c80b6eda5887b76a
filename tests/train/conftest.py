"""The packed data set that the tests of this folder share."""

from __future__ import annotations

import pytest
from packed_folder import Made, make_packed


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Return 500 token rows in 8 shards, packed to 128 tokens."""
    return make_packed(tmp_path_factory.mktemp("train"))
