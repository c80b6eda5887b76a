"""A folder of token shards is one list of rows."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from shardmill.errors import ConfigError, FormatError
from shardmill.model.manifest import FileEntry, ShardEntry
from shardmill.model.space import TokenSpace
from shardmill.model.tokenrow import TokenRow
from shardmill.shards.tokens.dataset import TokenSet
from shardmill.shards.tokens.file import ROLES
from shardmill.shards.tokens.write import TokenWriter


def shard(dir: Path, name: str, rows: list[list[int]], text_size: int = 100) -> ShardEntry:
    paths = {role: dir / f"{name}.{role}" for role in ROLES}
    with TokenWriter(paths.__getitem__, TokenSpace(text_size=text_size)) as writer:
        for number, ids in enumerate(rows):
            writer.append(TokenRow(key=f"{name}-{number}", ids=np.array(ids, int)))
    files = {role: FileEntry(path.name, path.stat().st_size, "") for role, path in paths.items()}
    return ShardEntry(name, len(rows), files)


def test_numbers_run_through_all_shards(tmp_path: Path) -> None:
    entries = (
        shard(tmp_path, "a", [[1], [2, 3]]),
        shard(tmp_path, "b", []),
        shard(tmp_path, "c", [[4]]),
    )
    tokens = pickle.loads(pickle.dumps(TokenSet(tmp_path, entries)))
    assert [row.key for row in tokens] == ["a-0", "a-1", "c-0"]
    assert [tokens.ids(n).tolist() for n in range(len(tokens))] == [[1], [2, 3], [4]]
    assert tokens.locate(2) == (2, 0)
    assert [tokens.find(key) for key in ("a-1", "c-0", "b-0")] == [1, 2, None]
    for outside in (-1, 3):
        with pytest.raises(IndexError):
            tokens[outside]


def test_shards_of_two_spaces_are_refused(tmp_path: Path) -> None:
    entries = (shard(tmp_path, "a", [[1]]), shard(tmp_path, "b", [[1]], text_size=200))
    tokens = TokenSet(tmp_path, entries)
    assert tokens.space == TokenSpace(text_size=100)
    with pytest.raises(ConfigError, match="text_size: 100 -> 200"):
        tokens[1]


def test_a_shard_that_is_not_what_the_manifest_says_is_refused(tmp_path: Path) -> None:
    entry = shard(tmp_path, "a", [[1]])
    with pytest.raises(FormatError, match="1 rows, the manifest says 2"):
        TokenSet(tmp_path, (ShardEntry("a", 2, entry.files),))[0]
    with pytest.raises(FormatError, match="no file 'bin'"):
        TokenSet(tmp_path, (ShardEntry("a", 1, {}),))[0]
