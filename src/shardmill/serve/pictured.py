"""Token rows with the pixels of their pictures: for models that put a picture into placeholders.

The ids come from token shards, each picture from the sample of the same key, in the order of its
placeholders. All are brought to one size, their middle kept and nothing squashed:

    pixel_values    uint8 [pictures, 3, height, width]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shardmill.errors import ConfigError, SampleError
from shardmill.io.sampleset import SampleSet, open_samples
from shardmill.media.geometry import Geometry, Square
from shardmill.media.image import decode_picture, resize_crop
from shardmill.model.manifest import ShardEntry
from shardmill.model.tokenrow import MediaSpan
from shardmill.remote.path import as_path
from shardmill.serve.document import Document, TokenReader

EVERY_ASPECT = 32.0


@dataclass(slots=True)
class PictureReader:
    """Rows of token shards, and the pictures of the samples that they were made from."""

    tokens: TokenReader
    samples: SampleSet
    geometry: Geometry

    def __post_init__(self) -> None:
        if len(self.geometry.sizes()) != 1:
            raise ConfigError("pictures of a batch need one size: take the geometry 'square'")

    @classmethod
    def open(cls, tokens: Path | str, samples: Path | str, resolution: int = 224) -> PictureReader:
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
        """Return the row with its pictures; one that is missing or broken is a `SampleError`."""
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
        pixels = decode_picture(members[span.name])
        height, width = pixels.shape[:2]
        return resize_crop(pixels, self.geometry.fit(width, height))
