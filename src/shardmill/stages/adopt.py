"""Adopt: tokens or codes that another program made become shards, and nothing is computed again.

`AdoptTokens` takes a part of foreign data as a unit. What the format has no place for is not made
up: records without documents stay one row, and everything is learned where nothing says what is. A
foreign file that is what the ids of its part become, byte for byte, gets a second name in the
shard: nothing is copied.

`AdoptCodes` takes codes that samples carry in a field. Liquid's rows hold them as JSON text, which
every reader parses in every epoch; as a code shard they are 16 bits each, mapped, and joined by key
like those of `shardmill codes`. Where a sample has codes but no image any more, the image is named
after the field, and `tokenize` puts it in front of the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from shardmill.errors import ConfigError, SampleError
from shardmill.formats.format import Block, BlockReader, FileReader, Reader, Record
from shardmill.model.codec import Plain
from shardmill.model.sample import Sample
from shardmill.model.stage import Draft, Tally, Unit, Work
from shardmill.shards.codes import ROLE, ImageCodes, code_dtype, write_codes
from shardmill.shards.samples import parse_sample
from shardmill.shards.tokens.shard import ROLES
from shardmill.shards.tokens.write import TokenWriter
from shardmill.stages.inputs import (
    check_numbers,
    count_images,
    count_shard,
    num_wanted,
    open_unit,
    sample_inputs,
    sample_units,
)
from shardmill.tokens.codes import CodeReader, FieldCodes
from shardmill.tokens.text.tokenizer import TextSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptTokens:
    """The spec of an adoption; the reader also says in which space its ids live.

    `tokenizer` is the one that made them, if it is known: for those who want to see their text.
    """

    version: ClassVar[int] = 1
    content: ClassVar[str] = "tokens"

    reader: Reader
    tokenizer: TextSpec | None = None

    def __post_init__(self) -> None:
        if self.reader.token_space() is None:
            raise ConfigError(
                "nothing tells how many ids there are: give --tokenizer, or --space text_size=N"
            )

    def reads(self) -> Mapping[str, tuple[str, ...]]:
        """Return {role: places} of what is read."""
        return {"raw": tuple(self.reader.inputs())}

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

    def units_name_content(self) -> bool:
        """Say that units do: they name files, of which their receipts have checksums."""
        return True

    def inputs(self) -> Mapping[str, Any]:
        """Return the fingerprint of the foreign files."""
        return self.reader.inputs()

    def _work(self, unit: Unit, draft: Draft, tally: Tally) -> None:
        space, passed = self.reader.token_space(), unit.input["passed"]
        assert space is not None and isinstance(passed, dict)
        # Found when the parts were listed; people look for such counts in receipts.
        for name, count in passed.items():
            assert isinstance(count, int)
            tally.count(f"passed over|{name}", count)
        whole = self.reader.ids_file(unit.input) if isinstance(self.reader, FileReader) else None
        # Their data set's own numbers are the rows of their origins, and an export has them again.
        about = {"numbered": True} if isinstance(self.reader, BlockReader) else {}
        with TokenWriter(lambda role: draft.file(unit.name, role), space, about, whole) as writer:
            if isinstance(self.reader, BlockReader):
                for block in self.reader.read_blocks(unit.input):
                    _write_block(block, writer, tally)
            else:
                for record in self.reader.read(unit.input):
                    _write(record, writer, tally)
        draft.finish(unit.name, num_samples=writer.num_rows)
        count_shard(tally, {role: draft.file(unit.name, role) for role in ROLES})


def _write_block(block: Block, writer: TokenWriter, tally: Tally) -> None:
    # Rows at once are many times faster; empty rows and records of several need their own count.
    if not block.lengths.all() or (block.per_record > 1).any():
        for record in block.records():
            _write(record, writer, tally)
        return
    rows, media = block.rows, block.media
    writer.append_texts(block.ids, block.lengths, block.keys, block.origin, rows, media=media)
    tally.num_in += len(rows)
    tally.num_kept += len(rows)


def _write(record: Record, writer: TokenWriter, tally: Tally) -> None:
    tally.num_in += max(1, len(record.rows))  # one that cannot be read is one sample that is lost
    if record.problem is not None:
        tally.skip(record.key, record.problem)
        return
    for row in record.rows:
        if not len(row.ids):
            tally.skip(row.key, SampleError("no tokens", "it has none"))
            continue
        writer.append(row)
        tally.num_kept += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptCodes:
    """The spec: where the codes are, the size of their codebook, the pixels a side of a code."""

    version: ClassVar[int] = 1
    content: ClassVar[str] = "codes"
    works_on: ClassVar[str] = "images"

    input_dir: Path
    codes: FieldCodes
    num_codes: int = 8192
    factor: int = 16
    limit: int | None = None

    def __post_init__(self) -> None:
        check_numbers(self, "num_codes", "factor")

    def reads(self) -> Mapping[str, tuple[str, ...]]:
        """Return {role: places} of what is read."""
        return {"samples": (str(self.input_dir),)}

    def units(self) -> Iterator[Unit]:
        """Yield a unit for each shard of samples."""
        return sample_units(self.input_dir, self.limit)

    @contextmanager
    def open(self) -> Iterator[Work]:
        """Open the source of codes, once a process."""
        with self.codes.open() as reader:

            def work(unit: Unit, draft: Draft, tally: Tally) -> None:
                self._adopt(reader, unit, draft, tally)

            yield work

    def inputs(self) -> Mapping[str, Any]:
        """Return the fingerprint of the input's manifest."""
        return sample_inputs(self.input_dir)

    def _adopt(self, reader: CodeReader, unit: Unit, draft: Draft, tally: Tally) -> None:
        rows: list[tuple[str, list[ImageCodes]]] = []
        with open_unit(self.input_dir, unit) as shard:
            for key, raw in shard.iter_raw(0, num_wanted(unit, shard)):
                with tally.sample(key):
                    images = self._images(reader, parse_sample(key, raw))
                    rows.append((key, images))
                    count_images(tally, images)
        path, field = draft.file(unit.name, ROLE), self.codes.field
        about = {"adopted": field}
        write_codes(path, rows, num_codes=self.num_codes, factor=self.factor, about=about)
        draft.finish(unit.name, num_samples=len(rows))

    def _images(self, reader: CodeReader, sample: Sample) -> list[ImageCodes]:
        found = []
        for segment in reader.complete(sample).document.media("image"):
            codes = reader.codes(sample, segment.media)
            largest = int(codes.max())
            if int(codes.min()) < 0 or largest >= self.num_codes:
                detail = f"a code is {largest}, the codebook has {self.num_codes}"
                raise SampleError("image code out of range", detail)
            found.append(ImageCodes(segment.media, codes.astype(code_dtype(self.num_codes))))
        return found
