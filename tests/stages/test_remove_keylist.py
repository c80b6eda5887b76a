"""Keys from a file, and which rows they mean."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from token_folder import write_token_folder

from shardmill.errors import ConfigError
from shardmill.model.tokenrow import TokenRow
from shardmill.shards.ledger import open_manifest
from shardmill.stages.remove import read_keys, rows_with_keys, whole_key


def test_a_line_is_a_key(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("a/b\n\n c \nd\twhy it goes\r\ncat.jpg\n", "utf-8")
    assert read_keys(tmp_path / "keys") == {"a/b", "c", "d", "cat_jpg"}


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xff"])
def test_a_file_without_keys_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "keys").write_bytes(content)
    with pytest.raises(ConfigError, match="keys"):
        read_keys(tmp_path / "keys")


@pytest.mark.parametrize(
    ("name", "key"),
    [("a", "a"), ("a~1", "a"), ("a~12", "a"), ("a~x", None), ("b", None), ("b~2", "b~2")],
)
def test_a_key_means_its_blocks_too(name: str, key: str | None) -> None:
    assert whole_key(name, {"a", "b~2"}) == key


def test_rows_of_tokens_are_found_with_their_blocks(tmp_path: Path) -> None:
    names = ["x-1", "x-2", "x-2~1", "x-3"]
    rows = [TokenRow(key=name, ids=np.arange(2)) for name in names]
    folder = write_token_folder(tmp_path / "t", [rows])
    (shard,) = open_manifest(folder).shards
    assert rows_with_keys(folder, shard, {"x-2", "x-9"}) == [1, 2]
