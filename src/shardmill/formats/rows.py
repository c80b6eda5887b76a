"""The rows that exports write: what they are read from, and the three forms in which they come.

What an export reads is a finished folder of tokens or packs, or of samples with their codes: an
`ExportInput`. A unit of the export is a `Piece` of it. A format takes its rows as

    token_batches    some neighbouring rows of a token shard as flat arrays, for most formats
    packed_samples   each row or pack as a dict of fields, for tars and MDS (see packed.py)
    pair_rows        samples that are a text, or an image and a text, with the image's codes

A token shard stores sequences. A row is what the reader of an export is to see: of token shards
each sequence, of pack shards each pack, whose sequences are its documents. A `TokenBatch` is some
neighbouring rows of one shard, so that a format takes few steps in Python:

    ids              7 8 9 | 5 5 | 1 2      the tokens of all rows
    sequence_bounds  0       3     5   7    where each sequence begins, and the end
    members          0             2   3    the first sequence of each row, and the end
    bounds           0             5   7    where each row begins, and the end

Here the first row is a pack of two documents. A loss span of 2 tokens at position 1 of the second
sequence would be the tokens 4 and 5 of the batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, count, groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ConfigError, FormatError, SampleError
from shardmill.formats.format import ASPECTS, Aspect
from shardmill.model.codec import Plain
from shardmill.model.manifest import ShardEntry
from shardmill.model.sample import SEGMENT_KINDS, Document, Sample
from shardmill.model.space import TokenSpace
from shardmill.model.stage import Tally, Unit
from shardmill.shards.arrays import bounds_between
from shardmill.shards.codes import CodeJoin, ImageCodes, join_codes
from shardmill.shards.ledger import open_manifest, read_rejects
from shardmill.shards.samples import (
    Members,
    SampleShard,
    entry_index,
    open_entry,
    parse_sample,
)
from shardmill.shards.tokens.ids import open_megatron_index
from shardmill.shards.tokens.shard import ROLES, TokenShard, open_token_shard

# The first shard is asked for its space again and again, the others come one after the other.
MAX_OPEN = 2
# 4 or 8 MiB of ids: large enough that steps in Python do not count, small beside a shard.
MAX_TOKENS = 1 << 21
MAX_ROWS = 1 << 62
MAX_NAMED = 8  # fields of a sample in a message


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows `start` to `stop` of one shard of the input, by its number in the manifest."""

    shard: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Piece:
    """The rows of one unit in order, and what `Format.plan` said about them."""

    name: str
    slices: tuple[Slice, ...]
    place: Mapping[str, Any]

    @property
    def num_rows(self) -> int:
        """All rows of all slices."""
        return sum(len(part) for part in self.slices)

    def to_plain(self) -> dict[str, Plain]:
        """Return the part of a unit's input that `of` reads."""
        slices: Plain = [[part.shard, part.start, part.stop] for part in self.slices]
        return {"slices": slices, "place": dict(self.place)}

    @classmethod
    def of(cls, unit: Unit) -> Piece:
        """Return the rows and the place that a unit of `Export` names."""
        slices: Any = unit.input["slices"]
        place: Any = unit.input["place"]
        return cls(unit.name, tuple(Slice(*part) for part in slices), place)


@dataclass(frozen=True, slots=True)
class ExportInput:
    """The shards of the input; few are open at a time, so that memory is bounded by a shard."""

    folder: Path
    shards: tuple[ShardEntry, ...]
    codes: CodeJoin | None = None
    # What of a sample must not be lost: the format has no place for it, and nobody dropped it.
    refuses: frozenset[Aspect] = frozenset()
    _open: dict[int, TokenShard] = field(default_factory=dict)
    _orders: dict[int, NDArray[np.int64]] = field(default_factory=dict)

    @property
    def has_tokens(self) -> bool:
        """Whether the shards hold tokens or packs; otherwise they hold samples."""
        return bool(self.shards) and "spans" in self.shards[0].files

    @property
    def holds_packs(self) -> bool:
        """Whether the shards hold packs, which `shardmill pack` marks."""
        return bool(self.shards) and self.token_shard(0).holds_packs

    @property
    def num_rows(self) -> int:
        """All rows of all shards."""
        return sum(shard.num_samples for shard in self.shards)

    def token_shard(self, number: int) -> TokenShard:
        """Map a shard of tokens; `ConfigError` if the folder holds something else."""
        if number in self._open:
            return self._open[number]
        entry = self.shards[number]
        if any(role not in entry.files for role in ROLES):
            raise ConfigError(
                f"{self.folder} holds no tokens (shard {entry.name} has "
                f"{', '.join(sorted(entry.files))}): make them with shardmill tokenize"
            )
        while len(self._open) >= MAX_OPEN:
            del self._open[next(iter(self._open))]
        files = {role: self.folder / entry.files[role].path for role in ROLES}
        return self._open.setdefault(number, open_token_shard(files))

    def sample_shard(self, number: int) -> SampleShard:
        """Open a shard of samples; `ConfigError` if the folder holds something else."""
        self.check_samples(number)
        return open_entry(self.folder, self.shards[number])

    def check_samples(self, number: int = 0) -> None:
        """Raise `ConfigError` unless a shard, or the first of all, holds samples."""
        for entry in self.shards[number : number + 1]:
            if "idx" not in entry.files or "spans" in entry.files:
                raise ConfigError(
                    f"{self.folder} holds no samples (shard {entry.name} has "
                    f"{', '.join(sorted(entry.files))}): give the folder that ingest or filter made"
                )

    def space(self) -> TokenSpace:
        """Return the token space of the shards; an empty folder has none."""
        if not self.shards:
            raise ConfigError(f"{self.folder} is empty: there is nothing to export")
        return self.token_shard(0).space

    def shuffled(self, seed: int) -> NDArray[np.int64]:
        """Return the number of the sample at each place of the order that a seed makes.

        Samples that were left out when codes were made have no place in it, so that it is the order
        in which `datasets` shuffles the others. They lie between them, to be counted as skipped.
        """
        if seed not in self._orders:
            lost = np.array([*self._lost()], np.int64)
            kept = np.setdiff1d(np.arange(self.num_rows), lost)
            order = kept[np.random.default_rng(seed).permutation(len(kept))]
            between = np.linspace(0, len(kept), len(lost), endpoint=False, dtype=np.int64)
            self._orders[seed] = np.insert(order, between, lost)
        return self._orders[seed]

    def _lost(self) -> Iterator[int]:
        """Yield the numbers of the samples that were skipped when codes were made."""
        lists = {} if self.codes is None else self.codes.rejects
        start = 0
        for shard in self.shards:
            if shard.name in lists:
                keys = [reject.key for reject in read_rejects(lists[shard.name])]
                rows = np.unique(entry_index(self.folder, shard).find_all(keys))
                yield from (start + rows[rows >= 0]).tolist()
            start += shard.num_samples

    def ranges(self, num_units: int | None) -> list[tuple[Slice, ...]]:
        """Return the rows of each unit: a shard each, or as many even parts as asked for.

        Parts begin where a document begins, so that no pack is torn.
        """
        if num_units is None:
            return [(Slice(n, 0, shard.num_samples),) for n, shard in enumerate(self.shards)]
        starts = list(accumulate((s.num_samples for s in self.shards), initial=0))
        cuts = [starts[-1] * part // num_units for part in range(num_units + 1)]
        places = [self._document_start(cut, starts) for cut in cuts]
        return [tuple(self._between(*pair, starts)) for pair in pairwise(places)]

    def _document_start(self, row: int, starts: list[int]) -> int:
        shard = int(np.searchsorted(starts, row, side="right")) - 1
        if row == starts[shard] or row == starts[-1] or not self.has_tokens:
            return row
        index = open_megatron_index(self.folder / self.shards[shard].files["idx"].path)
        place = int(np.searchsorted(index.documents, row - starts[shard], side="right")) - 1
        return starts[shard] + int(index.documents[max(place, 0)])

    def _between(self, first: int, last: int, starts: list[int]) -> Iterator[Slice]:
        for number, (start, end) in enumerate(pairwise(starts)):
            if first < end and last > start:
                yield Slice(number, max(first, start) - start, min(last, end) - start)


def open_input(
    folder: Path, codes_dir: Path | None = None, refuses: frozenset[Aspect] = frozenset()
) -> ExportInput:
    """Open a finished folder, and the folder of its codes; a half-written one is refused."""
    manifest = open_manifest(folder)
    codes = None if codes_dir is None else join_codes(codes_dir)
    return ExportInput(folder, manifest.shards, codes, refuses)


@dataclass(frozen=True, eq=False)
class TokenBatch:
    """Sequences `start` to `stop` of a shard; if `packed`, a row is a pack of them."""

    shard: TokenShard
    start: int
    stop: int
    packed: bool

    def __len__(self) -> int:
        return len(self.members) - 1

    @property
    def num_sequences(self) -> int:
        """How many stored sequences the rows are made of."""
        return self.stop - self.start

    @property
    def num_tokens(self) -> int:
        """The tokens of all rows."""
        return int(self.sequence_bounds[-1])

    @property
    def sequence_lengths(self) -> NDArray[np.int32]:
        """The tokens of each sequence."""
        return self.shard.lengths[self.start : self.stop]

    @cached_property
    def sequence_bounds(self) -> NDArray[np.int64]:
        """Where each sequence begins among the tokens, and the end."""
        return _ends(self.sequence_lengths)

    @cached_property
    def documents(self) -> NDArray[np.int64]:
        """The first sequence of each document of the shard, and the end."""
        bounds = self.shard.documents
        first, last = np.searchsorted(bounds, [self.start, self.stop])
        return np.append(bounds[first:last] - self.start, self.num_sequences)

    @cached_property
    def members(self) -> NDArray[np.int64]:
        """The first sequence of each row, and the end."""
        return self.documents if self.packed else np.arange(self.num_sequences + 1)

    @cached_property
    def bounds(self) -> NDArray[np.int64]:
        """Where each row begins among the tokens, and the end."""
        return self.sequence_bounds[self.members]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The tokens of each row."""
        return np.diff(self.bounds)

    @property
    def num_fixed(self) -> NDArray[np.int64]:
        """The tokens of each row that are never cut: those of media, and all of a pack."""
        if self.packed:
            return self.lengths
        return self.shard.num_fixed[self.start : self.stop].astype(np.int64)

    @cached_property
    def ids(self) -> NDArray[Any]:
        """The ids of all rows, mapped and not copied if the shard is a local file."""
        data = self.shard.data
        first = int(self.shard.offsets[self.start]) // data.itemsize if self.num_sequences else 0
        return data[first : first + self.num_tokens]

    @cached_property
    def keys(self) -> list[str]:
        """The key of each sequence; one that is not UTF-8 is a `FormatError`."""
        column, mine = self.shard.keys, slice(self.start, self.stop)
        texts, widths = list(column.prefixes), column.widths.tolist()
        keys = [
            f"{texts[prefix]}{number:0{widths[prefix]}d}" if widths[prefix] else texts[prefix]
            for prefix, number in zip(column.prefix[mine].tolist(), column.number[mine].tolist())
        ]
        try:
            "".join(keys).encode()
        except UnicodeEncodeError as error:
            raise self._broken("a key is not UTF-8, as texts must be") from error
        return keys

    def key(self, row: int) -> str:
        """Return the key of a row; of a pack that of its first document."""
        return self.sequence_key(int(self.members[row]))

    def sequence_key(self, sequence: int) -> str:
        """Return the key of one sequence, without looking at the others."""
        return self.shard.keys[self.start + sequence]

    def carries(self, aspect: Aspect) -> NDArray[np.bool_]:
        """Return which rows have something of an aspect that a format could lose.

        A row that is all learned needs no loss mask, one without media no modality, and a pack of
        one document no borders.
        """
        owners, counts = self.media_owners, np.diff(self.members)
        if aspect == "loss":
            owners, mine = self._spans("loss")
            learned = np.bincount(
                owners, self.shard.columns["loss_length"][mine], self.num_sequences
            )
            ends = np.concatenate([[0], np.cumsum(self.sequence_lengths - learned)])
            has_more: NDArray[np.bool_] = np.diff(ends[self.members]) != 0
            return has_more
        if aspect in ("modality", "spans"):
            has_media = np.zeros(len(self), np.bool_)
            has_media[np.searchsorted(self.members, owners, side="right") - 1] = True
            return has_media
        if aspect in ("documents", "packs"):
            return (counts > 1) & self.packed
        return np.full(len(self), aspect in ("keys", "tokens"))

    def loss_mask(self) -> NDArray[np.uint8]:
        """Return 1 for each token that is trained on, 0 for the others."""
        owners, mine = self._spans("loss")
        columns = self.shard.columns
        starts = self.sequence_bounds[owners] + columns["loss_start"][mine]
        return self._filled(starts, columns["loss_length"][mine])

    def modality(self) -> NDArray[np.uint8]:
        """Return 0 for each token of text, 1 of an image, 2 of a video, 3 of audio."""
        kinds = self.media("kind")
        if int(kinds.max(initial=0)) >= len(SEGMENT_KINDS):
            raise self._broken("has a medium of unknown kind")
        return self._filled(self.media_starts, self.media("length"), kinds)

    def fixed_mask(self) -> NDArray[np.uint8]:
        """Return 1 for each token of a medium or its delimiters, 0 for text."""
        begins, ends = self.media_edges()
        return self._filled(begins, ends - begins)

    def media(self, name: str) -> NDArray[Any]:
        """Return a column of all media in order: "length", "grid", "kind" ..."""
        values: NDArray[Any] = self.shard.columns[f"media_{name}"][self._spans("media")[1]]
        return values

    @cached_property
    def media_bounds(self) -> NDArray[np.int64]:
        """The first medium of each sequence, counted from those of the batch, and the end."""
        owners, _ = self._spans("media")
        return np.searchsorted(owners, np.arange(self.num_sequences + 1))

    @cached_property
    def media_owners(self) -> NDArray[np.int64]:
        """The sequence of each medium."""
        return self._spans("media")[0]

    @property
    def media_starts(self) -> NDArray[np.int64]:
        """The first token of each medium among those of the batch."""
        starts: NDArray[np.int64] = self.sequence_bounds[self.media_owners] + self.media("position")
        return starts

    def media_edges(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return where each medium begins and ends with its delimiters, among the tokens."""
        starts = self.media_starts
        before, length, after = (
            self.media(name).astype(np.int64) for name in ("before", "length", "after")
        )
        return starts - before, starts + length + after

    def _filled(
        self, starts: NDArray[Any], lengths: NDArray[Any], values: NDArray[Any] | int = 1
    ) -> NDArray[np.uint8]:
        """Return for each token the value of its span, 0 outside of spans.

        The spans come in order: (1, 2), (4, 1) of 6 tokens with the value 1 are 0 1 1 0 1 0. Gaps
        and spans take turns, which are 1, 2, 1, 1 and 1 tokens here.
        """
        ends = starts.astype(np.int64) + lengths
        gaps = np.append(starts, self.num_tokens) - np.concatenate([[0], ends])
        if (gaps < 0).any() or (ends < starts).any():
            raise self._broken("spans overlap, or lie outside their rows")
        counts = np.empty(2 * len(starts) + 1, np.int64)
        counts[0::2], counts[1::2] = gaps, ends - starts
        found = np.zeros(len(counts), np.uint8)
        found[1::2] = values
        return np.repeat(found, counts)

    def _spans(self, name: str) -> tuple[NDArray[np.int64], slice]:
        """Return the sequence of each span, and where the spans lie in the shard's columns."""
        shard, rows = self.shard, range(self.start, self.stop)
        total = len(shard.columns[f"{name}_length"])
        bounds = bounds_between(shard.spans, f"{name}_bounds", rows, len(shard), total)
        owners = np.repeat(np.arange(self.num_sequences), np.diff(bounds))
        return owners, slice(int(bounds[0]), int(bounds[-1]))

    def _broken(self, problem: str) -> FormatError:
        return FormatError(problem, path=self.shard.spans.path)


def token_batches(
    source: ExportInput,
    slices: Sequence[Slice],
    max_tokens: int = MAX_TOKENS,
    max_rows: int = MAX_ROWS,
    *,
    by_sequence: bool = False,
) -> Iterator[TokenBatch]:
    """Yield the rows in order, whole documents at a time, about as many as the limits say.

    With `by_sequence` the sequences of packs are rows of their own. A document that is longer than
    the limits is a batch by itself, so memory is bounded by the limits or the longest document.
    """
    packed = source.holds_packs and not by_sequence
    for part in slices:
        shard = source.token_shard(part.shard)
        _check_contiguous(shard, part)
        start = part.start
        while start < part.stop:
            stop = _batch_end(shard, start, part.stop, max_tokens, max_rows)
            yield TokenBatch(shard, start, stop, packed)
            start = stop


def _batch_end(shard: TokenShard, start: int, stop: int, max_tokens: int, max_rows: int) -> int:
    """Return the end of a run of whole documents: the last that fits, or one if none does.

    With documents that begin at the sequences 0, 2 and 5 and room for 4 sequences the batch ends
    at 2, since a document may be a pack, which is never torn.
    """
    limit = int(shard.offsets[start]) + max_tokens * shard.data.itemsize
    fitting = start + int(np.searchsorted(shard.offsets[start:stop], limit, side="right"))
    fitting = min(fitting, start + max_rows)
    if fitting >= stop:
        return stop
    documents = shard.documents
    last = int(np.searchsorted(documents, fitting, side="right")) - 1
    if last < 0 or int(documents[last]) <= start:
        last = int(np.searchsorted(documents, start, side="right"))
    return min(int(documents[last]), stop) if last < len(documents) else stop


def _check_contiguous(shard: TokenShard, part: Slice) -> None:
    """Raise `FormatError` unless the sequences lie one after the other: batches rely on it."""
    offsets, lengths = shard.offsets[part.start : part.stop], shard.lengths[part.start : part.stop]
    ends = offsets + lengths.astype(np.int64) * shard.data.itemsize
    inside = not len(ends) or (offsets[0] >= 0 and ends[-1] <= shard.data.nbytes)
    if (
        part.stop > len(shard)
        or not inside
        or (lengths < 0).any()
        or (ends[:-1] != offsets[1:]).any()
    ):
        raise FormatError("its rows do not lie one after the other", path=shard.path)


def _ends(lengths: NDArray[Any]) -> NDArray[np.int64]:
    bounds = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=bounds[1:])
    return bounds


def packed_samples(source: ExportInput, piece: Piece) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (key, fields) of each row or pack of a unit, with arrays where there are numbers.

    A row has its own key; a pack has the unit's name and its number in the unit.
    """
    number = 0
    for batch in token_batches(source, piece.slices):
        for fields in _batch_fields(batch):
            yield f"{piece.name}-{number:06d}" if batch.packed else fields["keys"][0], fields
            number += 1


def _batch_fields(batch: TokenBatch) -> Iterator[dict[str, Any]]:
    ids, mask, lengths, keys = batch.ids, batch.loss_mask(), batch.sequence_lengths, batch.keys
    for (start, end), (first, last), media in zip(
        pairwise(batch.bounds.tolist()), pairwise(batch.members.tolist()), batch_media(batch)
    ):
        yield {
            "input_ids": ids[start:end],
            "keys": keys[first:last],
            "lengths": lengths[first:last],
            "loss_mask": mask[start:end],
            "media": media,
        }


def batch_media(batch: TokenBatch) -> Iterator[list[dict[str, Any]]]:
    """Yield for each row an object for each medium; `document` and `position` count inside it."""
    media = _media_fields(batch)
    for start, end in pairwise(batch.media_bounds[batch.members].tolist()):
        yield media[start:end]


def _media_fields(batch: TokenBatch) -> list[dict[str, Any]]:
    owners = batch.media_owners
    rows = np.searchsorted(batch.members, owners, side="right") - 1
    names = batch.shard.spans.meta["media_names"]
    columns = (
        batch.media("after"),
        batch.media("before"),
        owners - batch.members[rows],
        batch.media("grid"),
        batch.media("kind"),
        batch.media("name"),
        batch.media("length"),
        batch.media_starts - batch.bounds[rows],
    )
    return [
        {
            "after": after,
            "before": before,
            "document": document,
            "grid": grid,
            "kind": SEGMENT_KINDS[kind],
            "name": names[name],
            "num_tokens": num_tokens,
            "position": position,
        }
        for after, before, document, grid, kind, name, num_tokens, position in zip(
            *(column.tolist() for column in columns)
        )
    ]


@dataclass(frozen=True, slots=True, eq=False)
class PairRow:
    """A text with at most one image: its codes if they are given, else its name in `raw`."""

    key: str
    text: str
    codes: ImageCodes | None
    medium: str | None
    raw: Members


def pair_rows(
    source: ExportInput, piece: Piece, tally: Tally, shuffle: int | None = None
) -> Iterator[PairRow]:
    """Yield the samples of a unit that are a text, or an image and a text.

    All samples are counted as read, and every other one is skipped with its reason; whoever takes
    a row counts it as kept. With `shuffle` they are those that lie at the unit's places in the
    order of this seed. They are read as they lie, and what is on disk stays there until it is used.
    """
    if shuffle is None:
        yield from (row for _, row in _numbered_rows(source, piece.slices, tally))
        return
    starts = np.cumsum([0, *(shard.num_samples for shard in source.shards)])
    places = [np.arange(p.start, p.stop) + starts[p.shard] for p in piece.slices]
    numbers = source.shuffled(shuffle)[np.concatenate([*places, np.empty(0, np.int64)])]
    by_number = np.argsort(numbers)
    shards = np.searchsorted(starts, numbers, side="right") - 1
    at = (numbers - starts[shards])[by_number].tolist()
    slices = [Slice(shard, row, row + 1) for shard, row in zip(shards[by_number].tolist(), at)]
    found = {by_number[n]: row for n, row in _numbered_rows(source, slices, tally)}
    yield from (found[place] for place in sorted(found))


def _numbered_rows(
    source: ExportInput, slices: Sequence[Slice], tally: Tally
) -> Iterator[tuple[int, PairRow]]:
    """Yield the rows with their numbers among all of the slices."""
    number = count()
    for shard_number, parts in groupby(slices, lambda part: part.shard):
        name = source.shards[shard_number].name
        with source.sample_shard(shard_number) as shard:
            for part in parts:
                for key, raw in _raw_samples(shard, range(part.start, part.stop)):
                    tally.num_in += 1
                    place = next(number)
                    try:
                        sample = parse_sample(key, raw)
                        refuse_lost(sample, source)
                        row = _pair_row(source, name, sample.document, key, raw)
                    except SampleError as error:
                        tally.skip(key, error)
                    else:
                        yield place, row


def _raw_samples(shard: SampleShard, rows: range) -> Iterator[tuple[str, Members]]:
    # Of a mapped tar only the members that are looked at are read; images stay where they are.
    if shard.blob.mapped() is None:
        yield from shard.iter_raw(rows.start, rows.stop)
    else:
        yield from ((shard.index.keys[number], shard.raw(number)) for number in rows)


def refuse_lost(sample: Sample, source: ExportInput) -> None:
    """Raise `ConfigError` if the sample has what the format has no place for."""
    lost = sample_carries(sample) & source.refuses
    if lost:
        where = f"sample {sample.key!r}"
        fields = ", ".join(sorted(sample.extra)[:MAX_NAMED])
        raise lost_error({a: f"{where}: {fields}" if a == "extra" else where for a in lost})


def sample_carries(sample: Sample) -> frozenset[Aspect]:
    """Return what a sample has besides a text and an image, which stand in no order."""
    segments = sample.document.segments
    texts = [segment for segment in segments if segment.kind == "text"]
    found: set[Aspect] = {"extra"} if sample.extra else set()
    if len(texts) > 1 or any(s.role or s.turn or s.time_s is not None for s in segments):
        found.add("segments")
    return frozenset(found)


def lost_error(lost: Mapping[Aspect, str]) -> ConfigError:
    """Return the refusal to lose these aspects, each with the first that has it."""
    names = [aspect for aspect in ASPECTS if aspect in lost]
    lines = "".join(f"\n  {name}: {ASPECTS[name]} (first in {lost[name]})" for name in names)
    return ConfigError(
        f"this format has no place for what the data has:{lines}\n"
        f"--drop {','.join(names)} writes it without"
    )


def _pair_row(
    source: ExportInput, shard_name: str, document: Document, key: str, raw: Members
) -> PairRow:
    media = document.media()
    if not media:
        return PairRow(key, document.text, _codes_alone(source, shard_name, key), None, raw)
    if len(media) > 1 or media[0].kind != "image":
        kinds = ", ".join(segment.kind for segment in media)
        raise SampleError("not one image and text", f"it has {kinds}")
    if source.codes is None:
        return PairRow(key, document.text, None, media[0].media, raw)
    images = source.codes.images(key, shard_name)
    if len(images) != 1:
        raise SampleError("no image codes", f"{key!r} has {len(images)} images in codes")
    height, width = images[0].codes.shape
    if "spans" in source.refuses and height != width:
        raise lost_error({"spans": f"sample {key!r}, {height} x {width} codes"})
    return PairRow(key, document.text, images[0], media[0].media, raw)


def _codes_alone(source: ExportInput, shard_name: str, key: str) -> ImageCodes | None:
    """Return the codes of an image that the sample itself does not hold any more."""
    if source.codes is None:
        return None
    try:
        images = source.codes.images(key, shard_name)
    except SampleError:  # a plain text of which the codes do not know
        return None
    return images[0] if len(images) == 1 else None
