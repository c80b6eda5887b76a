"""Rows and packs of a training run, with the tensors of their media, and who reads the rows.

`TokenReader` reads token shards. `ImageReader` adds the pixels of images, for models that put an
image into placeholders: ids come from token shards, each image from the sample of the same key, in
the order of its placeholders, all brought to one size with their middle kept and nothing squashed:

    pixel_values    uint8 [images, 3, height, width]

`pixels.PixelReader` runs a Hugging Face processor instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch

from shardmill.errors import ConfigError, SampleError
from shardmill.media.geometry import Geometry, Square
from shardmill.media.image import decode_image, resize_crop
from shardmill.model.manifest import ShardEntry
from shardmill.model.tokenrow import MediaSpan, TokenRow
from shardmill.packing.build import Pack
from shardmill.shards.samples import SampleDataset, open_samples
from shardmill.shards.tokens.shard import TokenDataset, open_tokens
from shardmill.storage.path import AnyPath, UrlPath, as_path


@dataclass(frozen=True, slots=True)
class TrainRow:
    """A token row and what the model gets beside it, such as `pixel_values`, by name."""

    row: TokenRow
    tensors: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TrainPack:
    """A pack and the tensors of its media, joined over its documents; number -1 is empty."""

    number: int
    pack: Pack
    tensors: Mapping[str, Any]


def join_tensors(tensors: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the tensors of each name joined along their first axis; a single one is not copied."""
    names = dict.fromkeys(name for own in tensors for name in own)
    parts = {name: [own[name] for own in tensors if name in own] for name in names}
    return {name: torch.cat(found) if len(found) > 1 else found[0] for name, found in parts.items()}


class RowReader(Protocol):
    """Reads the rows of a data set by number; it travels to workers, so it must pickle."""

    @property
    def shards(self) -> tuple[ShardEntry, ...]:
        """The shards it reads, whose checksums stand for the data."""

    @property
    def is_remote(self) -> bool:
        """Whether they lie in a store, so that knowing the next rows helps."""

    def __len__(self) -> int:
        """The number of rows."""

    def prefetch(self, rows: Sequence[int]) -> None:
        """Say that these rows will be read soon."""

    def read(self, row: int) -> TrainRow:
        """Return a row; one that cannot be read is a `SampleError` or `FormatError`."""

    def describe(self, row: int) -> str:
        """Return shard and place of a row, for messages."""


class VerifiedReader(RowReader, Protocol):
    """A reader of rows that were stored with checksums."""

    def verify(self, row: int) -> None:
        """Raise `Damaged` unless the row is what was written."""


def tokens_behind(reader: RowReader) -> TokenDataset | None:
    """Return the token shards that a reader reads, whose lengths a plan can be held against."""
    if isinstance(reader, ImageReader):
        reader = reader.tokens
    return reader.tokens if isinstance(reader, TokenReader) else None


@dataclass(slots=True)
class TokenReader:
    """Rows of token shards: views into the mapped files."""

    tokens: TokenDataset

    @classmethod
    def open(cls, folder: AnyPath, staged_dir: AnyPath | None = None) -> TokenReader:
        """Return the reader of a finished folder of token shards.

        `staged_dir` is where copies of the shards may arrive, see `staging`.
        """
        staged = None if staged_dir is None else as_path(staged_dir)
        return cls(open_tokens(as_path(folder), staged_dir=staged))

    @property
    def shards(self) -> tuple[ShardEntry, ...]:
        """The shards it reads."""
        return self.tokens.entries

    @property
    def is_remote(self) -> bool:
        """Whether the shards lie in a store."""
        return isinstance(self.tokens.folder, UrlPath)

    def __len__(self) -> int:
        return len(self.tokens)

    def prefetch(self, rows: Sequence[int]) -> None:
        """Have the ids of these rows fetched together, from local copies that have arrived."""
        self.tokens.renew()
        self.tokens.prefetch(rows)

    def read(self, row: int) -> TrainRow:
        """Return ids, loss and media of a row; its origin is looked up only when somebody asks."""
        shard_number, inside = self.tokens.locate(row)
        shard = self.tokens.shard(shard_number)
        return TrainRow(
            TokenRow(
                key=shard.keys[inside],
                ids=shard.ids(inside),
                loss=shard.loss(inside),
                media=shard.media(inside),
            )
        )

    def verify(self, row: int) -> None:
        """Raise `Damaged` unless ids and tables are what was written."""
        self.tokens.verify(row)

    def describe(self, row: int) -> str:
        """Return shard and row."""
        shard, inside = self.tokens.locate(row)
        return f"row {inside} of shard {self.tokens.entries[shard].name}"


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
    def open(
        cls,
        tokens: AnyPath,
        samples: AnyPath,
        resolution: int = 224,
        staged_dir: AnyPath | None = None,
    ) -> ImageReader:
        """Return the reader of a folder of tokens and the folder of samples it was made from.

        Copies of the token shards may arrive in `staged_dir`; images are read where they are.
        """
        # Images of any shape are cropped to the square, rather than refused.
        square = Square(resolution=resolution, max_aspect=None)
        return cls(TokenReader.open(tokens, staged_dir), open_samples(as_path(samples)), square)

    @property
    def shards(self) -> tuple[ShardEntry, ...]:
        """The shards it reads."""
        return (*self.tokens.shards, *self.samples.entries)

    @property
    def is_remote(self) -> bool:
        """Whether the tokens lie in a store."""
        return self.tokens.is_remote

    def __len__(self) -> int:
        return len(self.tokens)

    def prefetch(self, rows: Sequence[int]) -> None:
        """Have the ids of these rows fetched together."""
        self.tokens.prefetch(rows)

    def read(self, row: int) -> TrainRow:
        """Return the row with its images; one that is missing or broken is a `SampleError`."""
        found = self.tokens.read(row)
        if not found.row.media:
            return found
        members = self.samples.raw(self._sample(found.row.key))
        pixels = np.stack([self._pixels(span, members) for span in found.row.media])
        values = torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous()
        return replace(found, tensors={"pixel_values": values})

    def verify(self, row: int) -> None:
        """Raise `Damaged` unless the row and the sample with its images are what was written."""
        self.tokens.verify(row)
        found = self.tokens.read(row).row
        if found.media:
            self.samples.verify(self._sample(found.key))

    def describe(self, row: int) -> str:
        """Return shard and row."""
        return self.tokens.describe(row)

    def _sample(self, key: str) -> int:
        number = int(self.samples.find_behind([key])[0])
        if number < 0:
            raise SampleError("no such sample", key)
        return number

    def _pixels(self, span: MediaSpan, members: dict[str, Any]) -> Any:
        if span.kind != "image":
            detail = "turn videos into frames before packing"
            raise SampleError(f"cannot read {span.kind} as pixels", detail)
        if span.name not in members:
            raise SampleError("missing media", span.name)
        pixels = decode_image(members[span.name])
        height, width = pixels.shape[:2]
        return resize_crop(pixels, self.geometry.fit(width, height))
