"""A small pipeline, made once, and a context over it."""

from __future__ import annotations

from pathlib import Path

import pytest
from view_folders import make_hostile, make_pipeline

from shardmill.view.context import Context


@pytest.fixture(scope="session")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the stages of a small pipeline."""
    return make_pipeline(tmp_path_factory.mktemp("pipeline"))


@pytest.fixture(scope="session")
def context(pipeline: Path) -> Context:
    """A context over the pipeline."""
    return Context(pipeline)


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A folder whose captions, keys, names and media want to be run as code."""
    return make_hostile(tmp_path)
