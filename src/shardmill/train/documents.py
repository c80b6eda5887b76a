"""What a pack is built from while training: token rows, and the tensors of their media.

Token rows with the pixels of their images: for models that put an image into placeholders.

The ids come from token shards, each image from the sample of the same key, in the order of its
placeholders. All are brought to one size, their middle kept and nothing squashed:

    pixel_values    uint8 [images, 3, height, width]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

from shardmill.errors import ConfigError, SampleError
from shardmill.media.image.decode import decode_image, resize_crop
from shardmill.media.image.geometry import Geometry, Square
from shardmill.model.manifest import ShardEntry
from shardmill.model.tokenrow import MediaSpan, TokenRow
from shardmill.shards.samples import SampleDataset, open_samples
from shardmill.shards.tokens.shard import TokenDataset, open_tokens
from shardmill.storage.path import UrlPath, as_path


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

    tokens: TokenDataset

    @classmethod
    def open(cls, folder: Path | str, near: Path | str | None = None) -> TokenReader:
        """Return the reader of a finished folder of token shards; copies may arrive `near` by."""
        where = None if near is None else Path(near)
        return cls(open_tokens(folder, staged_dir=where))

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


EVERY_ASPECT = 32.0


@dataclass(slots=True)
class ImageReader:
    """Rows of token shards, and the images of the samples that they were made from."""

    tokens: TokenReader
    samples: SampleDataset
    geometry: Geometry

    def __post_init__(self) -> None:
        if len(self.geometry.sizes()) != 1:
            raise ConfigError("images of a batch need one size: take the geometry 'square'")

    @classmethod
    def open(cls, tokens: Path | str, samples: Path | str, resolution: int = 224) -> ImageReader:
        """Return the reader of a folder of tokens and the folder of samples it was made from."""
        square = Square(resolution=resolution, max_aspect=EVERY_ASPECT)
        return cls(TokenReader.open(as_path(tokens)), open_samples(as_path(samples)), square)

    @property
    def shards(self) -> tuple[ShardEntry, ...]:
        """The shards it reads."""
        return (*self.tokens.shards, *self.samples.entries)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def is_remote(self) -> bool:
        """Whether the tokens lie in a store."""
        return self.tokens.is_remote

    def prefetch(self, rows: Sequence[int]) -> None:
        """Have the ids of these rows fetched together."""
        self.tokens.prefetch(rows)

    def read(self, row: int) -> Document:
        """Return the row with its images; one that is missing or broken is a `SampleError`."""
        document = self.tokens.read(row)
        if not document.row.media:
            return document
        # A row that was split off a longer one has its key with ~1, ~2 added.
        number = self.samples.find(document.row.key.partition("~")[0])
        if number is None:
            raise SampleError("no such sample", document.row.key)
        members = self.samples.raw(number)
        pixels = np.stack([self._pixels(span, members) for span in document.row.media])
        values = torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous()
        return replace(document, tensors={"pixel_values": values})

    def describe(self, row: int) -> str:
        """Return shard and row."""
        return self.tokens.describe(row)

    def _pixels(self, span: MediaSpan, members: dict[str, Any]) -> Any:
        if span.kind != "image":
            detail = "turn videos into frames before packing"
            raise SampleError(f"cannot serve {span.kind} as pixels", detail)
        if span.name not in members:
            raise SampleError("missing media", span.name)
        pixels = decode_image(members[span.name])
        height, width = pixels.shape[:2]
        return resize_crop(pixels, self.geometry.fit(width, height))
