"""The two forms of packs on disk.

Token shards: `.bin` and `.idx` in which each pack is a document and its samples are the sequences,
with the spans beside them. Tars, for each pack:

    K.json    {"input_ids", "loss_mask", "lengths", "keys", "image", "media"}
    K-0.jpg   the pictures and videos, if the folder of samples is given; "image" lists 0, 1, ...

`lengths` are those of the documents, in order; `media` says where the tokens of each medium lie,
and how many delimiters stand before and after them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import orjson

from shardmill.errors import ConfigError
from shardmill.io.indexwrite import IndexRows
from shardmill.io.sampleset import SampleSet
from shardmill.io.tarwrite import Content, TarWriter
from shardmill.io.tokenwrite import TokenWriter
from shardmill.model.space import TokenSpace
from shardmill.model.stage import Draft, Tally, Unit
from shardmill.model.tokenrow import TokenRow
from shardmill.pack.build import BuildSpec, Pack, build_pack
from shardmill.pack.stored import as_pack

Rows: TypeAlias = list[TokenRow]


@dataclass(frozen=True, slots=True)
class NumberedPacks:
    """Packs with the position of the first in the epoch."""

    first: int
    packs: Iterator[Rows]

    def __iter__(self) -> Iterator[tuple[str, Rows]]:
        return ((f"{n:09d}", rows) for n, rows in enumerate(self.packs, self.first))


Write: TypeAlias = Callable[[NumberedPacks, TokenSpace, Unit, Draft, Tally], None]


def write_tokens(
    packs: NumberedPacks, space: TokenSpace, unit: Unit, draft: Draft, tally: Tally
) -> None:
    """Write packs as one token shard."""
    about = {"packs": True, "first": packs.first}
    with TokenWriter(lambda role: draft.file(unit.name, role), space, about) as writer:
        for _, rows in packs:
            for row in as_pack(rows):
                with tally.sample(row.key):
                    writer.append(row)
            tally.count("packs")
    draft.finish(unit.name, num_samples=writer.num_rows)


def tar_writer(samples: SampleSet | None) -> Write:
    """Return the function that writes packs as one tar, with the media of `samples` if given."""

    def write(
        packs: NumberedPacks, space: TokenSpace, unit: Unit, draft: Draft, tally: Tally
    ) -> None:
        index = IndexRows()
        with TarWriter(draft.file(unit.name, "tar")) as tar:
            for key, rows in packs:
                with tally.sample(key):
                    members = _members(build_pack(rows, BuildSpec()), rows, samples)
                    start, planned = tar.add(key, members, "dashed")
                    index.add(key, start, planned.exts, planned.offsets, planned.sizes)
                    index.describe((), 0, 0, "")
            end = tar.num_bytes
        index.write(draft.file(unit.name, "idx"), end=end, num_bytes=tar.num_bytes)
        draft.finish(unit.name, num_samples=len(index))

    return write


def _members(
    pack: Pack, rows: Sequence[TokenRow], samples: SampleSet | None
) -> list[tuple[str, Content]]:
    media = [] if samples is None else _media(rows, samples)
    content = {
        "input_ids": pack.input_ids,
        "loss_mask": pack.loss_mask.astype(np.uint8),
        "lengths": pack.layout.lengths,
        "keys": pack.keys,
        "image": [ext.partition(".")[0] for ext, _ in media],
        "media": [
            {
                "name": medium.span.name,
                "kind": medium.span.kind,
                "document": medium.document,
                "position": medium.span.position,
                "num_tokens": medium.span.num_tokens,
                "grid": medium.span.grid,
                "before": medium.span.before,
                "after": medium.span.after,
            }
            for medium in pack.media
        ],
    }
    options = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_SORT_KEYS
    return [("json", orjson.dumps(content, option=options)), *media]


def _media(rows: Sequence[TokenRow], samples: SampleSet) -> list[tuple[str, Content]]:
    # A row that was split off a longer one has its key with ~1, ~2 added.
    keys = [row.key.partition("~")[0] for row in rows if row.media]
    numbers = samples.find_all(keys)
    found: list[tuple[str, Content]] = []
    for row, number in zip((row for row in rows if row.media), numbers.tolist()):
        if number < 0:
            raise ConfigError(f"sample {row.key!r} is not in {samples.folder}")
        raw = samples.raw(number)
        for span in row.media:
            if span.name not in raw:
                raise ConfigError(f"sample {row.key!r} has no medium {span.name!r}")
            found.append((f"{len(found)}.{span.name.rpartition('.')[2]}", raw[span.name]))
    return found
