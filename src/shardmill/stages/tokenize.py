"""Tokenize: sample shards, or tables of plain text, become token shards.

For each sample: its template says what is said and learned, its media are laid out as codes or
placeholders, its text is encoded (many samples in one call), and the row is fitted to the longest
length. Only the documents are read from the tars, unless codes lie in members of their own.

`TokenizeText` needs no samples: nothing is done per document that can be done per batch, so the
engine of the tokenizer sets the speed. The texts of a batch are encoded in one call, control tokens
are put between them in one array operation, and their ids are written at once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import islice
from math import isqrt
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ConfigError, FormatError, SampleError
from shardmill.model.codec import Named, PlaceName, Plain, RootName
from shardmill.model.rng import SampleRng
from shardmill.model.sample import MediaSize, Origin, Sample
from shardmill.model.space import TokenSpace
from shardmill.model.stage import Draft, Tally, Unit, Work
from shardmill.model.tokenrow import Overlong, TokenRow, block_key
from shardmill.shards.ledger import open_manifest
from shardmill.shards.samples import SampleShard, parse_sample
from shardmill.shards.tokens.write import TokenWriter
from shardmill.sources.source import Listed, fingerprint, list_files, size_or_tag
from shardmill.sources.stream import (
    Span,
    Streams,
    TableRecord,
    TableSlice,
    cut,
    open_stream,
)
from shardmill.sources.tables import SUFFIXES, split_suffixes, table_stem
from shardmill.sources.text import json_fields, line_records
from shardmill.stages.inputs import (
    TRIED_SAMPLES,
    OverSamples,
    check_numbers,
    contents_of,
    media_sizes,
    num_wanted,
    open_unit,
    sample_units,
    shards_hold_bytes,
    try_work,
)
from shardmill.storage.path import as_path
from shardmill.tokens.assemble import (
    AssembledRow,
    Hook,
    PreparedSample,
    assemble,
    fit,
    load_hook,
    prepare,
    split_blocks,
)
from shardmill.tokens.codes import CodeReader, CodeSource
from shardmill.tokens.layout import LAYOUTS, BoundLayout, ImageLayout, MediaBlock, bind_layout
from shardmill.tokens.templates.template import Medium, PlainText, Render, Template, control_ids
from shardmill.tokens.text.tokenizer import (
    Ragged,
    TextSpec,
    TextTokenizer,
    check_text,
    encode_texts,
    files_checksum,
    load_once,
)
from shardmill.tokens.visual.rule import VisualRule

# What is encoded in one call of the tokenizer; the characters bound the memory.
BATCH_SAMPLES = 256
BATCH_TEXTS = 4096
BATCH_CHARS = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenize(OverSamples):
    """The spec of a tokenization.

    `layout` says how images stand among the text; `codes` is where their codes come from, or
    `rule` counts their placeholders. A row longer than `max_length` is handled as `overlong` says;
    with `block_size` it is first split into blocks. `hook` is a function that gets the last word
    on each row. Random choices depend on `seed`, `epoch` and the sample's key alone.
    """

    version: ClassVar[int] = 2
    content: ClassVar[str] = "tokens"

    tokenizer: TextSpec
    template: Template
    space: TokenSpace
    layout: ImageLayout = LAYOUTS["codes"]
    codes: CodeSource | None = None
    rule: VisualRule | None = None
    max_length: int | None = None
    overlong: Overlong = "drop"
    block_size: int | None = None
    hook: Named | None = None
    limit: int | None = None
    seed: int = 0
    epoch: int = 0

    def __post_init__(self) -> None:
        check_numbers(self, "max_length", "block_size")
        # Text alone needs no layout, so the one that nobody chose is looked up when a medium comes.
        if self.codes is not None or self.layout != LAYOUTS["codes"]:
            self._check_layout()

    def _check_layout(self) -> None:
        names = [name for name, layout in LAYOUTS.items() if layout == self.layout]
        which = f"the layout {names[0]}" if names else "this layout"
        if self.layout.patch is None:
            if self.rule is not None:
                raise ConfigError(f"{which} writes codes, which no --rule counts: leave it out")
            if self.codes is None:
                raise ConfigError(f"{which} writes codes: say where they are by --codes")
        elif self.layout.num_patches is None and self.rule is None:
            raise ConfigError(
                f"{which} counts its placeholders: give --rule, or their number, as in "
                "--layout patches,num_patches=256"
            )
        find = control_ids(load_tokenizer(self.tokenizer, self.space), self.space)
        bind_layout(self.layout, self.space, find)

    def reads(self) -> Mapping[str, tuple[str, ...]]:
        """Return {role: places} of what is read."""
        return {
            "samples": (str(self.input_dir),),
            **({} if self.codes is None else self.codes.reads()),
        }

    @property
    def works_on(self) -> str:
        """What some sample must have for the template: text alone is no image to draw."""
        return "visual tokens" if getattr(self.template, "needs_media", False) else ""

    def try_first(self) -> Tally:
        """Tokenize the first samples of a few shards, however long they are."""
        tally = try_work(replace(self, max_length=None))
        stats = open_manifest(self.input_dir).stats
        is_text = "samples|text only" in stats and not any(n.startswith("media|") for n in stats)
        if self.works_on and is_text and self.codes is None:
            raise ConfigError(
                f"this template is for images, and {self.input_dir} has none: choose another "
                "--template (text, chat), or say where --codes are"
            )
        return tally

    def units(self) -> Iterator[Unit]:
        """Yield a unit for each shard; it also names tokenizer and template by their content."""
        digest = files_checksum(self.files_used())
        return sample_units(self.input_dir, self.limit, {"files_used": digest})

    @contextmanager
    def open(self) -> Iterator[Work]:
        """Load the tokenizer, bind the template and open the codes, once a process."""
        tokenizer = load_tokenizer(self.tokenizer, self.space)
        render = self.template.bind(tokenizer, self.space)
        hook = None if self.hook is None else load_hook(self.hook)
        with nullcontext() if self.codes is None else self.codes.open() as reader:
            worker = _Worker(self, tokenizer, render, reader, hook)
            yield worker.work

    def units_name_content(self) -> bool:
        """Say that units do: they hold the checksums of a shard's files, but nothing of codes."""
        return self.codes is None and shards_hold_bytes(self.input_dir)

    def files_used(self) -> list[Path]:
        """Return the files of the tokenizer and of the template."""
        # What a template keeps in a file (a chat template) decides the tokens as its fields do.
        template: Any = self.template
        values = [getattr(template, field.name) for field in fields(template)]
        return [*self.tokenizer.files(), *(value for value in values if isinstance(value, Path))]


def load_tokenizer(spec: TextSpec, space: TokenSpace) -> TextTokenizer:
    """Return the live tokenizer, after checking that its ids fit into the space."""
    tokenizer = load_once(spec)
    space.check_tokenizer(tokenizer.vocab_size, tokenizer.name)
    return tokenizer


@dataclass(slots=True)
class _Worker:
    """What a process holds while it tokenizes shard after shard."""

    spec: Tokenize
    tokenizer: TextTokenizer
    render: Render
    reader: CodeReader | None
    hook: Hook | None
    layout: BoundLayout | None = None

    def work(self, unit: Unit, draft: Draft, tally: Tally) -> None:
        """Tokenize one shard."""
        about = {"input": unit.name}
        with (
            open_unit(self.spec.input_dir, unit) as shard,
            TokenWriter(lambda role: draft.file(unit.name, role), self.spec.space, about) as writer,
        ):
            for batch in self._batches(shard, num_wanted(unit, shard), tally):
                self._assemble(batch, writer, tally)
        draft.finish(unit.name, num_samples=writer.num_rows)

    def _assemble(self, batch: list[PreparedSample], writer: TokenWriter, tally: Tally) -> None:
        try:
            rows = assemble(batch, self.tokenizer)
        except SampleError as error:
            if len(batch) == 1:
                tally.skip(batch[0].sample.key, error)
            else:  # one by one, so that only those are lost that the tokenizer refuses
                for prepared in batch:
                    self._assemble([prepared], writer, tally)
            return
        for prepared, row in zip(batch, rows):
            self._write(prepared.sample, row, writer, tally)

    def _batches(
        self, shard: SampleShard, limit: int, tally: Tally
    ) -> Iterator[list[PreparedSample]]:
        batch: list[PreparedSample] = []
        num_chars = 0
        sizes_of = media_sizes(shard.index)
        for number, (key, raw) in enumerate(shard.in_order(limit)):
            tally.num_in += 1
            try:
                sample = parse_sample(key, raw)
                if self.reader is not None:
                    sample = self.reader.complete(sample)
                pieces = self.render(sample, SampleRng(self.spec.seed, self.spec.epoch, key))
                batch.append(
                    prepare(sample, pieces, partial(self._block, sample, sizes_of, number))
                )
            except SampleError as error:
                tally.skip(key, error)
                continue
            num_chars += len(sample.document.text)
            if len(batch) == BATCH_SAMPLES or num_chars > BATCH_CHARS:
                yield batch
                batch, num_chars = [], 0
        yield batch

    def _block(
        self,
        sample: Sample,
        sizes_of: Callable[[int], Mapping[str, MediaSize]],
        number: int,
        medium: Medium,
    ) -> MediaBlock:
        if self.layout is None:
            # Looked up with the first medium: samples of text alone need no delimiters.
            find = control_ids(self.tokenizer, self.spec.space)
            self.layout = bind_layout(self.spec.layout, self.spec.space, find)
        name, kind = medium.segment.media, medium.segment.kind
        if self.spec.layout.patch is None:
            if self.reader is None:
                raise ConfigError("this layout writes codes: say where they are by --codes")
            return self.layout.of_codes(self.reader.codes(sample, name))
        if self.spec.layout.num_patches is not None:
            count = self.spec.layout.num_patches
            side = isqrt(count)
            return self.layout.of_patches(kind, count, (1, side, count // side))
        assert self.spec.rule is not None  # checked when the spec was made
        visual = self.spec.rule.count(kind, sizes_of(number).get(name, MediaSize()))
        if visual.num_runs != 1:
            raise SampleError("medium in several runs", f"{name!r} has {visual.num_runs}")
        return self.layout.of_patches(kind, visual.num_visual, visual.grid)

    def _write(
        self, sample: Sample, assembled: AssembledRow, writer: TokenWriter, tally: Tally
    ) -> None:
        try:
            rows = self._rows(sample, assembled)
        except SampleError as error:
            tally.skip(sample.key, error)
            return
        # Each block of a long document is a sample of its own in the counts.
        tally.num_in += len(rows) - 1
        for row in rows:
            writer.append(row)
            tally.num_kept += 1
            count_row(tally, row)

    def _rows(self, sample: Sample, assembled: AssembledRow) -> list[TokenRow]:
        spec = self.spec
        if spec.block_size is not None:
            rows = split_blocks(assembled.row, spec.block_size)
        else:
            rows = [fit(assembled, spec.max_length, spec.overlong)]
        if self.hook is not None:
            rows = [self.hook(row, sample) for row in rows]
        if any(not len(row.ids) for row in rows):
            raise SampleError("no tokens", "the template made an empty row")
        return rows


def count_row(tally: Tally, row: TokenRow) -> None:
    """Count a row: tokens, those of media, those that are learned, and its source."""
    tally.count("tokens", len(row.ids))
    tally.count("visual tokens", row.num_visual)
    tally.count("loss tokens", row.num_loss)
    tally.observe("row tokens", len(row.ids))
    if row.origin is not None:
        tally.count(f"source|{row.origin.source}")
        tally.count(f"source tokens|{row.origin.source}", len(row.ids))


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeText:
    """The spec of a tokenization of jsonl files (also .gz and .zst) with a text in each row.

    A unit is a file, because a compressed file is read from its beginning; `per_shard` cuts a file
    that is too large for one worker into units of that many rows, at the price of reading it once
    more to find them. A document longer than `block_size` is cut into blocks of that many tokens,
    none lost, none written twice. `limit` takes the first rows of the input, good or bad.
    """

    version: ClassVar[int] = 1
    content: ClassVar[str] = "tokens"

    files: tuple[PlaceName, ...]
    tokenizer: TextSpec
    space: TokenSpace
    template: PlainText = field(default_factory=PlainText)
    text_field: str = "text"
    name: str = "text"
    max_length: int | None = None
    block_size: int | None = None
    per_shard: int | None = None
    limit: int | None = None
    allow: tuple[RootName, ...] = ()
    max_row_bytes: int = 1 << 30

    def __post_init__(self) -> None:
        check_numbers(self, "max_length", "block_size", "per_shard", "max_row_bytes")

    def reads(self) -> Mapping[str, tuple[str, ...]]:
        """Return {role: places} of what is read."""
        return {"raw": self.files}

    def units(self) -> Iterator[Unit]:
        """Yield a unit for each file or slice of one, identified by the checksum of either."""
        digest = files_checksum(self.tokenizer.files())
        for number, (listed, piece) in enumerate(self._pieces()):
            input: dict[str, Plain] = {
                "raw": str(listed.path),
                "relative": listed.relative,
                "name": listed.name,
                "files_used": digest,
            }
            if piece is None:
                input["size"] = [*size_or_tag(listed.path)]
            else:
                num_bytes = piece.end - piece.offset
                input["slice"] = [piece.number, piece.offset, num_bytes]
                input["xxh3"] = piece.checksum.hexdigest()
            num_rows = None if piece is None else piece.num_rows
            yield Unit(name=f"{number:06d}", input=input, num_samples=num_rows)

    def _pieces(self) -> Iterator[tuple[Listed, TableSlice | None]]:
        """Yield each file whole, or its slices up to the limit over all files."""
        left = self.limit
        for listed in self._tables():
            if left is None and self.per_shard is None:
                yield listed, None
                continue
            if left == 0:
                return
            with open_stream(listed.path) as file:
                records = islice(line_records(file, 0, 0, self.max_row_bytes, listed.path), left)
                for piece in cut(records, self.per_shard or sys.maxsize):
                    left = None if left is None else left - piece.num_rows
                    yield listed, piece

    def _tables(self) -> list[Listed]:
        """Return the files, all of which must hold lines of JSON; no file at all is refused."""
        tables = list(list_files(self.files, table_stem, self.allow))
        if not tables:
            raise ConfigError(f"there are no tables of text in {', '.join(self.files)}")
        for listed in tables:
            suffix, _ = split_suffixes(listed.path.name)
            if SUFFIXES.get(suffix) not in (None, "jsonl", "json", "txt"):
                raise ConfigError(f"{listed.path} does not hold lines of JSON: ingest it first")
        return tables

    def try_first(self) -> Tally:
        """Look for texts in the first rows of the first table."""
        tally, path = Tally(), self._tables()[0].path
        with open_stream(path) as file:
            for record in islice(line_records(file, 0, 0, self.max_row_bytes, path), TRIED_SAMPLES):
                with tally.sample(f"row {record.number}"):
                    self._text(record)
        return tally

    @contextmanager
    def open(self) -> Iterator[Work]:
        """Load the tokenizer, once a process; the file of the last unit stays open."""
        tokenizer = load_tokenizer(self.tokenizer, self.space)
        find = control_ids(tokenizer, self.space)
        first = [find("bos")] if self.template.bos else []
        last = [find("eos")] if self.template.eos else []

        streams = Streams()

        def work(unit: Unit, draft: Draft, tally: Tally) -> None:
            table: Any = unit.input
            about = {"input": table["relative"]}

            def write(numbers: list[int], texts: list[str]) -> None:
                try:
                    ids = surround(encode_texts(tokenizer, texts), first, last)
                except SampleError as error:
                    if len(texts) == 1:
                        tally.skip(_key(table, numbers[0]), error)
                    else:  # one by one, so that only those are lost that the tokenizer refuses
                        for number, text in zip(numbers, texts):
                            write([number], [text])
                    return
                self._write(table, numbers, ids, writer, tally)

            with TokenWriter(lambda r: draft.file(unit.name, r), self.space, about) as writer:
                for numbers, texts in self._batches(table, streams, tally):
                    write(numbers, texts)
            draft.finish(unit.name, num_samples=writer.num_rows)

        try:
            yield work
        finally:
            streams.close()

    def units_name_content(self) -> bool:
        """Say that units do: they, or their receipts, hold the checksum of a table."""
        return True

    def inputs(self) -> Mapping[str, Any]:
        """Return size and time of the tables, and the content of the tokenizer's files."""
        tables = [listed.path for listed in self._tables()]
        return {**fingerprint(tables), **contents_of(self.tokenizer.files())}

    def _batches(
        self, table: Mapping[str, Any], streams: Streams, tally: Tally
    ) -> Iterator[tuple[list[int], list[str]]]:
        """Yield the numbers of rows and their texts, as many as are encoded in one call."""
        numbers: list[int] = []
        texts: list[str] = []
        num_chars = 0
        for record in self._records(table, streams):
            tally.num_in += 1
            try:
                texts.append(self._text(record))
            except SampleError as error:
                tally.skip(_key(table, record.number), error)
                continue
            numbers.append(record.number)
            num_chars += len(texts[-1])
            if len(texts) >= BATCH_TEXTS or num_chars >= BATCH_CHARS:
                yield numbers, texts
                numbers, texts, num_chars = [], [], 0
        yield numbers, texts

    def _records(self, table: Mapping[str, Any], streams: Streams) -> Iterator[TableRecord]:
        number, offset, num_bytes = table.get("slice", (0, 0, None))
        if num_bytes is None:
            streams.close()  # a whole file is read from its beginning
        path = as_path(table["raw"])
        file = streams.at(path, offset)
        if num_bytes is None:
            yield from line_records(file, number, offset, self.max_row_bytes, path)
            return
        found = TableSlice(number, offset)
        for record in line_records(Span(file, num_bytes), number, offset, self.max_row_bytes, path):
            found.add(record)
            yield record
        if found.checksum.hexdigest() != table["xxh3"]:
            raise FormatError("was changed after it was listed", path=path, offset=offset)

    def _text(self, record: TableRecord) -> str:
        if record.problem is not None:
            raise record.problem
        row = json_fields(record)
        text = row.get(self.text_field)
        if not isinstance(text, str):
            raise SampleError(
                "missing field",
                f"{self.text_field!r} holds no text, of {', '.join(row)!s:.100}: name another by "
                "--text-field, or ingest what is more than text",
            )
        return check_text(text)

    def _write(
        self,
        table: Mapping[str, Any],
        numbers: list[int],
        ids: Ragged,
        writer: TokenWriter,
        tally: Tally,
    ) -> None:
        lengths = ids.lengths
        is_empty, is_long = lengths == 0, np.zeros(len(lengths), np.bool_)
        if self.max_length is not None and self.block_size is None:
            is_long = lengths > self.max_length
        for reason, is_bad in (("no tokens", is_empty), ("too long", is_long)):
            for place in np.flatnonzero(is_bad).tolist():
                error = SampleError(reason, f"{lengths[place]} tokens")
                tally.skip(_key(table, numbers[place]), error)
        is_good = ~(is_empty | is_long)
        tokens, rows = ids.ids, np.array(numbers, np.int64)
        if not is_good.all():
            tokens, rows = tokens[np.repeat(is_good, lengths)], rows[is_good]
        sizes, rows, block = cut_blocks(lengths[is_good], rows, self.block_size)
        keys = [
            block_key(_key(table, row), number)
            for row, number in zip(rows.tolist(), block.tolist())
        ]
        origin = Origin(source=self.name, path=table["relative"], row=0)
        continues = block > 0 if block.any() else None
        writer.append_texts(tokens, sizes, keys, origin, rows.tolist(), continues)
        # Each block of a long document is a sample of its own in the counts.
        tally.num_in += len(sizes) - int(is_good.sum())
        tally.num_kept += len(sizes)
        self._count(sizes, tally)

    def _count(self, lengths: NDArray[np.int64], tally: Tally) -> None:
        total = int(lengths.sum())
        for name in ("tokens", "loss tokens", f"source tokens|{self.name}"):
            tally.count(name, total)
        tally.count(f"source|{self.name}", len(lengths))
        tally.count("row tokens|sum", total)
        for bits, count in zip(*np.unique(np.ceil(np.log2(lengths)), return_counts=True)):
            tally.count(f"row tokens|<={1 << int(bits)}", int(count))


def _key(table: Mapping[str, Any], row: int) -> str:
    return f"{table['name']}-{row:08d}"


def cut_blocks(
    lengths: NDArray[np.int64], rows: NDArray[np.int64], block_size: int | None
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the lengths of blocks, the row of each, and its number within its document.

    Documents of 5 and 2 tokens in blocks of 3 are blocks of 3, 2 and 2, numbered 0, 1 and 0.
    """
    if block_size is None or int(lengths.max(initial=0)) <= block_size:
        return lengths, rows, np.zeros(len(lengths), np.int64)
    num_blocks = -(-lengths // block_size)
    sizes = np.full(int(num_blocks.sum()), block_size, np.int64)
    last = np.cumsum(num_blocks) - 1
    sizes[last] = lengths - (num_blocks - 1) * block_size
    number = np.arange(len(sizes)) - np.repeat(last + 1 - num_blocks, num_blocks)
    return sizes, np.repeat(rows, num_blocks), number


def surround(found: Ragged, first: Sequence[int], last: Sequence[int]) -> Ragged:
    """Return lists of ids with the same ids put before and after each of them.

    [5 6] and [7] with 1 before and 2 after are [1 5 6 2] and [1 7 2]: bounds 0 2 3 become 0 4 7.
    """
    more = len(first) + len(last)
    if not more:
        return found
    bounds = found.bounds + more * np.arange(len(found.bounds))
    ids = np.empty(int(bounds[-1]), found.ids.dtype)
    is_text = np.ones(len(ids), np.bool_)
    for offset, token in enumerate(first):
        ids[bounds[:-1] + offset] = token
        is_text[bounds[:-1] + offset] = False
    for offset, token in enumerate(reversed(last), 1):
        ids[bounds[1:] - offset] = token
        is_text[bounds[1:] - offset] = False
    ids[is_text] = found.ids
    return Ragged(ids, bounds)
