"""The samples of a unit's earlier try, found by key, so that they need not be fetched again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from shardmill.errors import FormatError, SampleError
from shardmill.io.samples import content_hash
from shardmill.io.sampleshard import SampleShard, open_shard, parse_sample
from shardmill.model.sample import MediaSize
from shardmill.stages.assemble import Assembled
from shardmill.stages.samplefiles import media_sizes

LOW_HALF = (1 << 64) - 1
SizesOf: TypeAlias = Callable[[int], Mapping[str, MediaSize]]


@dataclass(frozen=True, slots=True)
class EarlierSamples:
    """The samples of shards that an earlier try has written."""

    shards: tuple[tuple[SampleShard, SizesOf], ...]

    def find(self, key: str) -> Assembled | None:
        """Return the sample with this key, None if it is not here or not as it was written."""
        for shard, sizes_of in self.shards:
            number = shard.find(key)
            if number is not None:
                with suppress(SampleError):
                    return _read(shard, sizes_of, number, key)
        return None


@contextmanager
def open_earlier(files: Sequence[Mapping[str, Path]]) -> Iterator[EarlierSamples]:
    """Open the shards of an earlier try; those that cannot be read count as not there."""
    with ExitStack() as opened:
        shards = []
        for roles in files:
            with suppress(FormatError, KeyError):
                shard = open_shard(str(roles["tar"]), roles["idx"])
                shards.append((opened.enter_context(shard), media_sizes(shard.index)))
        yield EarlierSamples(tuple(shards))


def _read(shard: SampleShard, sizes_of: SizesOf, number: int, key: str) -> Assembled | None:
    sample = parse_sample(key, shard.raw(number))
    found = content_hash(sample)
    # A crash may have left the tar of one try beside the index of another.
    if shard.index.column("content")[number].tolist() != [found >> 64, found & LOW_HALF]:
        return None
    return Assembled(sample, sizes_of(number))
