"""A real S3 store for tests: one server a session, a folder of its own for every test."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers import ACCESS_KEY, SECRET_KEY, find_weed, s3_server

BUCKET = "bucket"


@pytest.fixture(scope="session")
def s3_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the url of a running S3 server with one bucket."""
    pytest.importorskip("obstore")
    if find_weed() is None:
        pytest.skip("SeaweedFS is not installed")
    with s3_server(tmp_path_factory.mktemp("weed"), bucket=BUCKET) as endpoint:
        yield endpoint


@pytest.fixture
def store_env(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """Set the environment up for the store, and return its endpoint."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("SHARDMILL_SCRATCH", str(tmp_path / "scratch"))
    monkeypatch.setenv("SHARDMILL_STORE_PATIENCE_S", "20")
    return s3_endpoint


@pytest.fixture
def store_url(store_env: str) -> str:
    """Return the url of an empty folder of the store."""
    return f"s3://{BUCKET}/{secrets.token_hex(6)}"
