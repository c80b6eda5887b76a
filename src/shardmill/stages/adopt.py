"""Adopt: tokens that another program made become token shards, and nothing is computed again.

A part of the foreign data is a unit. What the format has no place for is not made up: records
without documents stay one row, and everything is learned where nothing says what is. A foreign file
that is what the ids of its part become, byte for byte, gets a second name in the shard: nothing is
copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from shardmill.errors import ConfigError, SampleError
from shardmill.formats.reader import Block, BlockReader, FileReader, Reader, Record
from shardmill.io.tokenfile import ROLES
from shardmill.io.tokenwrite import TokenWriter
from shardmill.model.codec import Plain
from shardmill.model.stage import Draft, Tally, Unit, Work
from shardmill.stages.shardstats import count_shard
from shardmill.tokens.text import TextSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptTokens:
    """The spec of an adoption; the reader also says in which space its ids live.

    `tokenizer` is the one that made them, if it is known: for those who want to see their text.
    """

    version: ClassVar[int] = 1

    reader: Reader
    tokenizer: TextSpec | None = None

    def __post_init__(self) -> None:
        if self.reader.token_space() is None:
            raise ConfigError(
                "nothing tells how many ids there are: give --tokenizer, or space.text_size in a "
                "recipe"
            )

    def units(self) -> Iterator[Unit]:
        """Yield a unit for each part of the data."""
        for number, part in enumerate(self.reader.parts()):
            passed: dict[str, Plain] = {name: n for name, n in part.passed.items() if n}
            yield Unit(
                name=f"{number:06d}",
                input={**part.input, "passed": passed},
                num_samples=part.num_records,
            )

    @contextmanager
    def open(self) -> Iterator[Work]:
        """Yield the work on one part."""
        yield self._work

    def inputs(self) -> Mapping[str, Any]:
        """Return the fingerprint of the foreign files."""
        return self.reader.inputs()

    def _work(self, unit: Unit, draft: Draft, tally: Tally) -> None:
        space, passed = self.reader.token_space(), unit.input["passed"]
        assert space is not None and isinstance(passed, dict)
        for name, count in passed.items():
            assert isinstance(count, int)
            tally.count(f"passed over|{name}", count)
        whole = self.reader.ids_file(unit.input) if isinstance(self.reader, FileReader) else None
        with TokenWriter(lambda role: draft.file(unit.name, role), space, ids_file=whole) as writer:
            if isinstance(self.reader, BlockReader):
                for block in self.reader.read_blocks(unit.input):
                    _write_block(block, writer, tally)
            else:
                for record in self.reader.read(unit.input):
                    _write(record, writer, tally)
        draft.finish(unit.name, num_samples=writer.num_rows)
        count_shard(tally, {role: draft.file(unit.name, role) for role in ROLES})


def _write_block(block: Block, writer: TokenWriter, tally: Tally) -> None:
    if not block.lengths.all() or (block.per_record > 1).any():
        for record in block.records():
            _write(record, writer, tally)
        return
    rows, media = block.rows, block.media
    writer.append_texts(block.ids, block.lengths, block.keys, block.origin, rows, media=media)
    tally.num_in += len(rows)
    tally.num_kept += len(rows)


def _write(record: Record, writer: TokenWriter, tally: Tally) -> None:
    tally.num_in += max(1, len(record.rows))
    if record.problem is not None:
        tally.skip(record.key, record.problem)
        return
    for row in record.rows:
        if not len(row.ids):
            tally.skip(row.key, SampleError("no tokens", "it has none"))
            continue
        writer.append(row)
        tally.num_kept += 1
