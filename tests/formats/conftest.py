"""One folder of text, images, codes and video for all tests of formats; nobody changes it."""

from __future__ import annotations

import pytest
from mixed_folder import Mixed, make_mixed


@pytest.fixture(scope="session")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Mixed:
    return make_mixed(tmp_path_factory.mktemp("mixed"), 8)
