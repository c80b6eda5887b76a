"""A finished folder of token shards, made without tokenizing anything."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from finished_folder import finish_folder, shard_entry

from shardmill.model.space import TokenSpace
from shardmill.model.tokenrow import TokenRow
from shardmill.shards.tokens.write import TokenWriter

SPACE = TokenSpace(text_size=1000)


def write_token_folder(
    folder: Path, shards: Sequence[Sequence[TokenRow]], space: TokenSpace = SPACE
) -> Path:
    """Write each list of rows as one shard; returns the folder."""
    (folder / "shards").mkdir(parents=True)
    entries = []
    for number, rows in enumerate(shards):
        name = f"{number:05d}"
        with TokenWriter(
            lambda role, name=name: folder / "shards" / f"{name}.{role}", space
        ) as out:  # type: ignore[misc]
            for row in rows:
                out.append(row)
        entries.append(shard_entry(folder, name, len(rows), ("bin", "idx", "spans")))
    return finish_folder(folder, entries)
