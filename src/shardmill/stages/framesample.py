"""A sample as it lies in its tar: the document is read at once, a medium when it is needed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from shardmill.errors import SampleError
from shardmill.io.blob import Blob
from shardmill.io.sampleshard import SampleShard, parse_sample
from shardmill.media.videofile import BlobPart
from shardmill.model.sample import Sample

NO_MEDIA = ("json", "txt")


@dataclass(frozen=True, slots=True)
class StoredSample:
    """A sample without the contents of its media, and where they lie."""

    sample: Sample
    blob: Blob
    places: Mapping[str, BlobPart]

    @classmethod
    def read(cls, shard: SampleShard, number: int) -> StoredSample:
        """Read the document of a sample; one that has none is a `SampleError`."""
        members = shard.index.members(number)
        places = {m.ext: BlobPart(shard.blob, m.offset, m.size) for m in members}
        json = places.get("json")
        raw = {}
        if json is not None:
            raw["json"] = memoryview(shard.blob.read(json.offset, json.num_bytes))
        return cls(parse_sample(shard.index.keys[number], raw), shard.blob, places)

    def part(self, name: str) -> BlobPart:
        """Return where a medium lies."""
        if name not in self.places:
            raise SampleError("missing media", f"{self.sample.key!r} has no medium {name!r}")
        return self.places[name]

    def info(self, name: str) -> dict[str, Any]:
        """Return what the row said of a medium, or of all."""
        infos = self.sample.extra.get("media_info")
        info = infos.get(name) if isinstance(infos, Mapping) else None
        return {**self.sample.extra, **(info if isinstance(info, Mapping) else {})}

    def with_media(self, without: Collection[str] = ()) -> Sample:
        """Return the sample with the contents of its media, read in one request."""
        parts = {
            name: part
            for name, part in self.places.items()
            if name not in NO_MEDIA and name not in without
        }
        views = self.blob.view_all([(part.offset, part.num_bytes) for part in parts.values()])
        return replace(self.sample, media=dict(zip(parts, views)))
