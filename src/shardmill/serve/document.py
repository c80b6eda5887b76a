"""What a pack is built from while training: token rows, and the tensors of their media."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from shardmill.io.receipts import open_manifest
from shardmill.io.tokenset import TokenSet, open_token_set
from shardmill.model.manifest import ShardEntry
from shardmill.model.tokenrow import TokenRow
from shardmill.remote.path import UrlPath, as_path


@dataclass(frozen=True, slots=True)
class Document:
    """A token row and what the model gets beside it, such as `pixel_values`, by name."""

    row: TokenRow
    tensors: Mapping[str, Any] = field(default_factory=dict)


class Reader(Protocol):
    """Reads the documents of a data set by number; it travels to workers, so it must pickle."""

    @property
    def shards(self) -> tuple[ShardEntry, ...]:
        """The shards it reads, whose checksums stand for the data."""

    def __len__(self) -> int:
        """The number of rows."""

    def read(self, row: int) -> Document:
        """Return a document; one that cannot be read is a `SampleError` or `FormatError`."""

    def describe(self, row: int) -> str:
        """Return shard and place of a row, and its key if that can be read."""


@runtime_checkable
class ReadsAhead(Protocol):
    """A reader that gains from knowing which rows come next, because they lie in a store."""

    @property
    def is_remote(self) -> bool:
        """Whether that is so."""

    def prefetch(self, rows: Sequence[int]) -> None:
        """Say that these rows will be read soon."""


@dataclass(slots=True)
class TokenReader:
    """Rows of token shards: views into the mapped files."""

    tokens: TokenSet

    @classmethod
    def open(cls, folder: Path | str, near: Path | str | None = None) -> TokenReader:
        """Return the reader of a finished folder of token shards; copies may arrive `near` by."""
        where = None if near is None else Path(near)
        return cls(open_token_set(as_path(folder), open_manifest(as_path(folder)), where))

    @property
    def shards(self) -> tuple[ShardEntry, ...]:
        """The shards it reads."""
        return self.tokens.entries

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def is_remote(self) -> bool:
        """Whether the shards lie in a store."""
        return isinstance(self.tokens.folder, UrlPath)

    def prefetch(self, rows: Sequence[int]) -> None:
        """Have the ids of these rows fetched together, from copies that have come near."""
        self.tokens.renew()
        self.tokens.prefetch(rows)

    def read(self, row: int) -> Document:
        """Return ids, loss and media of a row; its origin is looked up only when somebody asks."""
        shard_number, inside = self.tokens.locate(row)
        shard = self.tokens.shard(shard_number)
        return Document(
            TokenRow(
                key=shard.keys[inside],
                ids=shard.ids(inside),
                loss=shard.loss(inside),
                media=shard.media(inside),
            )
        )

    def describe(self, row: int) -> str:
        """Return shard and row."""
        shard, inside = self.tokens.locate(row)
        return f"row {inside} of shard {self.tokens.entries[shard].name}"
