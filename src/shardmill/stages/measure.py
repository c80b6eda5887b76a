"""Measure: sample shards become length tables for a model that takes pixels.

Reads the documents and the sizes in the index, never a medium. Text is counted by the tokenizer
and its chat template, many samples in one call, media by the model's visual rule, so the number is
the one that the model's processor arrives at. One unit a shard; `merge_lengths` joins the tables
into one file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from itertools import chain, islice
from pathlib import Path
from typing import ClassVar, Literal

from numpy.typing import ArrayLike

from shardmill.errors import ConfigError, SampleError
from shardmill.formats.sharedfiles import write_rest
from shardmill.model.plan import LengthTable, join_tables, length_table
from shardmill.model.stage import Draft, Tally, Unit, Work
from shardmill.shards.ledger import open_manifest
from shardmill.shards.plans import TABLE_NAME, open_lengths, write_lengths
from shardmill.shards.samples import SampleShard, parse_sample
from shardmill.stages.inputs import (
    OverSamples,
    check_numbers,
    media_sizes,
    num_wanted,
    open_unit,
    sample_units,
    try_work,
)
from shardmill.tokens.count import (
    ChatWriter,
    ChatWriting,
    TokenCount,
    Written,
    estimate_sample,
)
from shardmill.tokens.text.huggingface import TextCounter, load_counter, tokenizer_files
from shardmill.tokens.text.tokenizer import files_checksum
from shardmill.tokens.visual.rule import VisualRule

ROLE = "lengths"
BATCH_CHARS = 1 << 22  # what the tokenizer gets in one call
NOTHING = TokenCount(0, 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure(OverSamples):
    """The spec of a measurement.

    Without a `tokenizer` (a model folder or its tokenizer.json) all lengths are estimates.
    `template` is a file with the chat template, by default the tokenizer's own; `today` is what a
    template gets that asks for the date, as YYYY-MM-DD. `unknown` and `control` are explained at
    `ChatWriting`.
    """

    version: ClassVar[int] = 1
    content: ClassVar[str] = "lengths"

    rule: VisualRule
    tokenizer: Path | None = None
    template: Path | None = None
    unknown: Literal["reject", "estimate"] = "reject"
    control: Literal["count", "reject"] = "count"
    tools_field: str = "tools"
    today: str | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        check_numbers(self)
        self._writing()

    def units(self) -> Iterator[Unit]:
        """Yield a unit for each shard; it also names tokenizer and template by their content."""
        text = files_checksum(self.files_used())
        return sample_units(self.input_dir, self.limit, {"text": text})

    def try_first(self) -> Tally:
        """Measure the first samples of a few shards."""
        return try_work(self)

    @contextmanager
    def open(self) -> Iterator[Work]:
        """Load the tokenizer and compile the template, once a process."""
        writer = self._open_writer()

        def work(unit: Unit, draft: Draft, tally: Tally) -> None:
            with open_unit(self.input_dir, unit) as shard:
                rows = self._measure(shard, unit, writer, tally)
                path, source = draft.file(unit.name, ROLE), shard.index.column("source")
                rows.write(
                    path,
                    shard=unit.name,
                    source=source[: len(rows)],
                    source_names=shard.index.sources,
                )
                for number, error in rows.refused.items():
                    tally.num_kept -= 1
                    tally.skip(shard.index.keys[number], error)
            draft.finish(unit.name, num_samples=tally.num_kept)
            rows.count(tally)

        yield work

    def files_used(self) -> list[Path]:
        """Return the files of the tokenizer and of the template."""
        files = [] if self.tokenizer is None else tokenizer_files(self.tokenizer)
        if self.template is None:
            return files
        if not self.template.is_file():
            raise ConfigError(f"{self.template} does not exist: name a file with a chat template")
        return [*files, self.template]

    def _writing(self) -> ChatWriting:
        try:
            today = None if self.today is None else date.fromisoformat(self.today)
        except ValueError as error:
            raise ConfigError(f"today must be YYYY-MM-DD, got {self.today!r}") from error
        return ChatWriting(
            unknown=self.unknown, control=self.control, tools_field=self.tools_field, today=today
        )

    def _open_writer(self) -> ChatWriter | None:
        if self.tokenizer is None:
            return None
        counter = load_counter(self.tokenizer)
        template = counter.chat_template
        if self.template is not None:
            template = self.template.read_text("utf-8")
        if template is None:
            raise ConfigError(f"{self.tokenizer} has no chat template: name a file by --template")
        return ChatWriter(counter, self.rule, template, self._writing())

    def _measure(
        self, shard: SampleShard, unit: Unit, writer: ChatWriter | None, tally: Tally
    ) -> LengthRows:
        rows = LengthRows(None if writer is None else writer.counter)
        sizes_of = media_sizes(shard.index)
        documents = zip(shard.index.keys, _documents(shard))
        for number, (key, content) in enumerate(islice(documents, num_wanted(unit, shard))):
            with tally.sample(key):
                try:
                    sample = parse_sample(key, {} if content is None else {"json": content})
                    sizes = sizes_of(number)
                    if writer is None:
                        known = [sizes.get(s.media) for s in sample.document.media()]
                        rows.add_estimate(
                            estimate_sample(sample.document, sample.extra, known, self.rule)
                        )
                    else:
                        rows.add_written(writer.write(sample, sizes))
                except SampleError as error:
                    # It keeps its row, so that row n of the table stays sample n of the shard.
                    rows.add_reject(error.reason)
                    raise
        return rows


def merge_lengths(folder: Path) -> LengthTable:
    """Write the tables of all shards of a finished measurement as one, `lengths.bin`."""
    shards = open_manifest(folder).shards
    tables = [open_lengths(folder / shard.files[ROLE].path) for shard in shards]
    table = join_tables(tables) if tables else length_table([])
    write_lengths(folder / TABLE_NAME, table)
    write_rest(folder, shards)
    return table


@dataclass(slots=True)
class LengthRows:
    """The rows of one shard in the order of its samples; rejected samples have a row, too.

    `refused` are the rows whose text the tokenizer did not take, known after `encode` only.
    """

    counter: TextCounter | None = None
    counts: list[TokenCount] = field(default_factory=list)
    rejects: list[int] = field(default_factory=list)
    reasons: dict[str, int] = field(default_factory=dict)
    exact: bool = True
    refused: dict[int, SampleError] = field(default_factory=dict)
    _waiting: list[tuple[int, Written]] = field(default_factory=list)
    _chars: int = 0

    def __len__(self) -> int:
        return len(self.counts)

    def add_written(self, written: Written) -> None:
        """Append a sample whose text is yet to be encoded."""
        self._waiting.append((len(self.counts), written))
        self._chars += len(written.text)
        self.exact &= written.exact
        self._append(NOTHING, 0)
        if self._chars >= BATCH_CHARS:
            self.encode()

    def add_estimate(self, count: TokenCount) -> None:
        """Append a sample whose length is only an estimate."""
        self.exact = False
        self._append(count, 0)

    def add_reject(self, reason: str) -> None:
        """Append a sample that cannot be used."""
        self._append(NOTHING, self._number(reason))

    def encode(self) -> None:
        """Count the tokens of all samples that wait for it."""
        self._encode(self._waiting)
        self._waiting.clear()
        self._chars = 0

    def write(
        self, path: Path, *, shard: str, source: ArrayLike, source_names: Sequence[str]
    ) -> None:
        """Write the table of this shard; `source` numbers the source of each sample."""
        self.encode()
        table = length_table(
            [count.num_tokens for count in self.counts],
            num_visual=[count.num_visual for count in self.counts],
            num_fixed=[count.num_fixed for count in self.counts],
            source=source,
            source_names=source_names,
            reject=self.rejects,
            reject_reasons=list(self.reasons),
            shard_names=[shard],
            shard_starts=[0, len(self.counts)],
            exact=self.exact,
        )
        write_lengths(path, table)

    def count(self, tally: Tally) -> None:
        """Count the tokens of all rows, and how long the samples are that can be used."""
        tally.count("tokens", sum(count.num_tokens for count in self.counts))
        tally.count("visual tokens", sum(count.num_visual for count in self.counts))
        for count, reject in zip(self.counts, self.rejects):
            if not reject:
                tally.observe("sample tokens", count.num_tokens)

    def _encode(self, waiting: Sequence[tuple[int, Written]]) -> None:
        if not waiting:
            return
        assert self.counter is not None
        rows, written = zip(*waiting)
        try:
            counts = count_written(self.counter, written)
        except SampleError as error:
            if len(waiting) == 1:
                self.refused[rows[0]] = error
                self.rejects[rows[0]] = self._number(error.reason)
            else:  # one by one, so that only those are lost that the tokenizer refuses
                for one in waiting:
                    self._encode([one])
            return
        for row, count in zip(rows, counts):
            self.counts[row] = count

    def _number(self, reason: str) -> int:
        return self.reasons.setdefault(reason, len(self.reasons) + 1)

    def _append(self, count: TokenCount, reject: int) -> None:
        self.counts.append(count)
        self.rejects.append(reject)


def count_written(counter: TextCounter, written: Sequence[Written]) -> list[TokenCount]:
    """Return the counts of samples: their text with delimiters, and the tokens not spelled out."""
    totals = counter.rendered_lengths([w.text for w in written]).tolist()
    spelled = sorted({visual.text for visual in chain.from_iterable(w.visuals for w in written)})
    delimiters = dict(zip(spelled, counter.lengths(spelled).tolist())) if spelled else {}
    counts = []
    for total, sample in zip(totals, written):
        hidden = sum(visual.num_hidden for visual in sample.visuals)
        fixed = sum(delimiters[v.text] + v.num_hidden + v.num_outer for v in sample.visuals)
        num_visual = sum(visual.num_visual for visual in sample.visuals)
        # Delimiters that are plain text may merge with their neighbors, never below the media.
        num_fixed = min(fixed, total + hidden)
        counts.append(TokenCount(total + hidden, num_visual, num_fixed))
    return counts


def _documents(shard: SampleShard) -> list[memoryview | None]:
    """Return the json of each sample, read without the media between them."""
    places = [
        next(((m.offset, m.size) for m in shard.index.members(n) if m.ext == "json"), None)
        for n in range(len(shard))
    ]
    contents = iter(shard.blob.view_all([place for place in places if place is not None]))
    return [None if place is None else next(contents) for place in places]
