"""Tokenize: sample shards become token shards, one unit a shard.

For each sample: its template says what is said and learned, its media are laid out as codes or
placeholders, its text is encoded (many samples in one call), and the row is fitted to the longest
length. Only the documents are read from the tars, unless codes lie in members of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields
from functools import partial
from math import isqrt
from pathlib import Path
from typing import Any, ClassVar

from shardmill.errors import ConfigError, SampleError
from shardmill.model.rng import SampleRng
from shardmill.model.sample import MediaSize, Sample
from shardmill.model.space import TokenSpace
from shardmill.model.stage import Draft, Tally, Unit, Work
from shardmill.model.tokenrow import Overlong, TokenRow
from shardmill.shards.samples import SampleShard, parse_sample
from shardmill.shards.tokens.write import TokenWriter
from shardmill.stages.inputs import (
    media_sizes,
    open_unit,
    sample_inputs,
    sample_units,
    shards_hold_bytes,
)
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
from shardmill.tokens.templates.template import Medium, Render, Template, control_ids
from shardmill.tokens.text.tokenizer import (
    TextSpec,
    TextTokenizer,
    files_checksum,
    load_once,
)
from shardmill.tokens.visual.rule import VisualRule

BATCH_SAMPLES = 256
BATCH_CHARS = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenize:
    """The spec of a tokenization.

    `layout` says how images stand among the text; `codes` is where their codes come from, or
    `rule` counts their placeholders. A row longer than `max_length` is handled as `overlong` says;
    with `block_size` it is first split into blocks. `hook` is a function that gets the last word
    on each row. Random choices depend on `seed`, `epoch` and the sample's key alone.
    """

    version: ClassVar[int] = 2
    content: ClassVar[str] = "tokens"

    input_dir: Path
    tokenizer: TextSpec
    template: Template
    space: TokenSpace
    layout: ImageLayout = LAYOUTS["codes"]
    codes: CodeSource | None = None
    rule: VisualRule | None = None
    max_length: int | None = None
    overlong: Overlong = "drop"
    block_size: int | None = None
    hook: str | None = None
    limit: int | None = None
    seed: int = 0
    epoch: int = 0

    def __post_init__(self) -> None:
        for name in ("max_length", "block_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be positive, got {value}")
        if self.limit is not None and self.limit < 0:
            raise ConfigError(f"limit must be 0 or more, got {self.limit}")
        # Text alone needs no layout, so the one that nobody chose is looked up when a medium comes.
        if self.codes is not None or self.layout != LAYOUTS["codes"]:
            self._check_layout()

    def _check_layout(self) -> None:
        find = control_ids(load_tokenizer(self.tokenizer, self.space), self.space)
        bind_layout(self.layout, self.space, find)
        if self.layout.patch is None:
            if self.codes is None:
                raise ConfigError("this layout holds codes: say where they come from, with codes")
        elif self.layout.num_patches is None and self.rule is None:
            raise ConfigError("this layout counts its placeholders: give num_patches, or a rule")

    def reads(self) -> Mapping[str, tuple[str, ...]]:
        """Return {role: places} of what is read."""
        return {
            "samples": (str(self.input_dir),),
            **({} if self.codes is None else self.codes.reads()),
        }

    def units(self) -> Iterator[Unit]:
        """Yield a unit for each shard; it also names tokenizer and template by their content."""
        return sample_units(
            self.input_dir, self.limit, {"files_used": files_checksum(self._files())}
        )

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

    def inputs(self) -> Mapping[str, Any]:
        """Return the fingerprints of the input's manifest and of the files that are used."""
        return sample_inputs(self.input_dir, self._files())

    def _files(self) -> list[Path]:
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
        about = {"input": unit.name, "engine": self.tokenizer.engine}
        with (
            open_unit(self.spec.input_dir, unit) as shard,
            TokenWriter(lambda role: draft.file(unit.name, role), self.spec.space, about) as writer,
        ):
            limit = unit.input.get("limit", len(shard))
            assert isinstance(limit, int)
            for batch in self._batches(shard, limit, tally):
                for prepared, assembled in zip(batch, assemble(batch, self.tokenizer)):
                    self._write(prepared.sample, assembled, writer, tally)
        draft.finish(unit.name, num_samples=writer.num_rows)

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
                raise ConfigError("this layout holds codes: say where they come from, with codes")
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
