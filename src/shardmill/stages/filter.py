"""Filter: sample shards become sample shards without what is not wanted.

Exact duplicates are found when the units are listed: the content hashes of all indexes are
compared, the first in order stays, and each unit is told which of its rows to drop and whom they
repeat. So the work is parallel, and the result does not depend on who comes first.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ConfigError, Filtered, plugin
from shardmill.model.codec import Plain
from shardmill.model.manifest import ShardEntry
from shardmill.model.stage import Draft, Tally, Unit, Work
from shardmill.shards.ledger import open_manifest
from shardmill.shards.samples import SampleWriter, parse_sample
from shardmill.shards.tar.header import Layout
from shardmill.shards.tar.index import open_tar_index
from shardmill.sources.filters import Filter
from shardmill.stages.inputs import OverSamples, count_sample, media_sizes, open_unit, sample_units
from shardmill.storage.cache import fetch_copies

Repeats = dict[int, list[list[Plain]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterSamples(OverSamples):
    """The spec of a filter over a finished folder of sample shards; a shard stays a shard."""

    version: ClassVar[int] = 1
    content: ClassVar[str] = "samples"

    filters: tuple[Filter, ...] = ()
    drop_duplicates: bool = False
    layout: Layout = "dotted"

    def __post_init__(self) -> None:
        if not self.filters and not self.drop_duplicates:
            raise ConfigError("nothing to filter: give --filter KIND or --drop-duplicates")

    def units(self) -> Iterator[Unit]:
        """Yield a unit for each shard, with the rows that repeat an earlier one."""
        # First, as it refuses a folder that holds no samples.
        units = list(sample_units(self.input_dir, None))
        shards = open_manifest(self.input_dir).shards
        repeats = find_repeats(self.input_dir, shards) if self.drop_duplicates else {}
        for number, unit in enumerate(units):
            found: Plain = [*repeats.get(number, [])]
            yield replace(unit, input={**unit.input, "repeats": found} if found else unit.input)

    @contextmanager
    def open(self) -> Iterator[Work]:
        """Yield the work; nothing heavy is needed."""
        yield self._work

    def _work(self, unit: Unit, draft: Draft, tally: Tally) -> None:
        repeats: dict[int, str] = dict(unit.input.get("repeats") or [])  # type: ignore[arg-type]
        with (
            open_unit(self.input_dir, unit) as shard,
            SampleWriter(draft, lambda _: unit.name, layout=self.layout) as writer,
        ):
            sizes_of = media_sizes(shard.index)
            for number, (key, raw) in enumerate(shard.iter_raw()):
                with tally.sample(key):
                    if number in repeats:
                        raise Filtered("exact duplicate", f"of {repeats[number]}")
                    sample, sizes = parse_sample(key, raw), sizes_of(number)
                    for filter in self.filters:
                        with plugin(filter, sample.key):
                            filter.check(sample, sizes)
                    writer.add(sample, sizes)
                    count_sample(tally, sample, sizes)


def find_repeats(folder: Path, shards: tuple[ShardEntry, ...]) -> Repeats:
    """Return, by number of shard, [row, key of the first] of each sample that repeats another.

    Holds 16 bytes a sample, and as much again to sort them.
    """
    paths = [folder / shard.files["idx"].path for shard in shards]
    fetch_copies(paths)
    hashes = [_content_hashes(path) for path in paths]
    if not hashes:
        return {}
    starts = np.concatenate([[0], np.cumsum([len(each) for each in hashes])])
    open_recent = lru_cache(maxsize=256)(open_tar_index)
    repeats: Repeats = {}
    for later, first in _later_and_first(np.concatenate(hashes)):
        shard, origin = (int(np.searchsorted(starts, n, "right")) - 1 for n in (later, first))
        key = open_recent(paths[origin]).keys[first - int(starts[origin])]
        repeats.setdefault(shard, []).append([later - int(starts[shard]), key])
    return repeats


def _content_hashes(path: Path) -> NDArray[np.uint64]:
    hashes = open_tar_index(path).column("content")
    if len(hashes) and not hashes.any(axis=1).all():
        raise ConfigError(f"{path} has no content hashes: ingest the samples to get them")
    return hashes


def _later_and_first(hashes: NDArray[np.uint64]) -> Iterator[tuple[int, int]]:
    """Yield (number, number of the first with the same hash) of each repeat, in order."""
    # Hashes A B A B A sort to the order 0 2 4 1 3, of which the places 0 and 3 are new. Each place
    # with the last new one at or before it, 0 0 0 3 3, gives the firsts 0 0 0 1 1.
    order = np.lexsort((hashes[:, 1], hashes[:, 0]))
    ranked = hashes[order]
    is_new = np.ones(len(order), bool)
    is_new[1:] = (ranked[1:] != ranked[:-1]).any(axis=1)
    # lexsort is stable, so the first of each run of equal hashes is the first in order.
    first = order[np.maximum.accumulate(np.where(is_new, np.arange(len(order)), 0))]
    yield from sorted(zip(order[~is_new].tolist(), first[~is_new].tolist()))
