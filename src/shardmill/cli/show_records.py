"""Prints records of exports and of foreign tokens: what their format has a place for, no more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import click

from shardmill import wording
from shardmill.cli import console
from shardmill.cli.show_samples import print_text
from shardmill.cli.show_tokens import print_runs, row_as_plain
from shardmill.errors import ConfigError, ShardmillError
from shardmill.formats.codespace import is_code
from shardmill.formats.reader import Part, Reader, Record
from shardmill.io.receipts import Ledger
from shardmill.model.space import TokenSpace
from shardmill.model.tokenrow import MediaSpan, TokenRow, no_spans, spans_of
from shardmill.stages.checkmakers import tokens_behind
from shardmill.tokens.paint import Numbers, Run, open_painter, paint

Paint: TypeAlias = Callable[[TokenRow], list[Run]]
NO_SPACE = TokenSpace(text_size=1)
MAX_LISTED = 8


def show_records(
    folder: Path, reader: Reader, wanted: Sequence[str], count: int, as_json: bool
) -> None:
    """Print the records with these numbers or keys, or the first `count`."""
    parts = list(reader.parts())
    total = sum(part.num_records for part in parts)
    if not total:
        console.say_empty(folder, as_json=as_json)
        return
    painter = _painter(folder, reader)
    for number, record in _chosen(reader, parts, total, wanted, count):
        known = _only_known(record, reader)
        if as_json:
            console.print_json({"number": number, **_as_plain(known, reader, painter)})
        else:
            _print_record(f"{number:,} of {total:,}", known, reader, painter)


def _chosen(
    reader: Reader, parts: Sequence[Part], total: int, wanted: Sequence[str], count: int
) -> Iterator[tuple[int, Record]]:
    if not wanted:
        yield from islice(enumerate(_from(reader, parts, 0)), count)
    for name in wanted:
        if name.isdigit() and int(name) < total:
            yield int(name), next(_from(reader, parts, int(name)))
        else:
            yield _named(reader, parts, total, name)


def _from(reader: Reader, parts: Sequence[Part], number: int) -> Iterator[Record]:
    """Yield the records from this number on; parts before it are not read."""
    for part in parts:
        if number < part.num_records:
            yield from islice(reader.read(part.input), number, None)
        number = max(0, number - part.num_records)


def _named(reader: Reader, parts: Sequence[Part], total: int, name: str) -> tuple[int, Record]:
    for number, record in enumerate(_from(reader, parts, 0)):
        if name == record.key or any(name == row.key for row in record.rows):
            return number, record
    why = "" if "keys" in reader.holds() else "; this format keeps no keys"
    raise ConfigError(f"no record has the key or number {name!r}: there are {total:,}{why}")


def _painter(folder: Path, reader: Reader) -> Paint:
    """Return how rows are painted: by the tokenizer that made them, by numbers if it is gone."""
    manifest = Ledger(folder).read_manifest()
    if manifest is not None:
        try:
            return open_painter(tokens_behind(folder, manifest)[1])
        except (ShardmillError, OSError) as error:
            click.echo(f"shown as ids: {error}", err=True)
    return lambda row: paint(row, Numbers(), reader.token_space() or NO_SPACE)


def _only_known(record: Record, reader: Reader) -> Record:
    """Return the record without the loss that a format has no place for, and its codes marked."""
    has_loss, space = "loss" in reader.holds(), reader.token_space() or NO_SPACE
    rows = (
        replace(
            row,
            loss=row.loss if has_loss else no_spans(),
            media=row.media or _code_runs(row, space),
        )
        for row in record.rows
    )
    return replace(record, rows=tuple(rows))


def _code_runs(row: TokenRow, space: TokenSpace) -> tuple[MediaSpan, ...]:
    """Return the runs of image codes: no tokenizer can decode them."""
    return tuple(
        MediaSpan(name="", kind="image", position=start, num_tokens=length)
        for start, length in spans_of(is_code(row.ids, space)).tolist()
    )


def _as_plain(record: Record, reader: Reader, painter: Paint) -> dict[str, Any]:
    if record.problem is not None:
        return {"key": record.key, "problem": str(record.problem)}
    plain: dict[str, Any] = {"key": record.key}
    if record.rows:
        plain["documents"] = [row_as_plain(row, painter(row)) for row in record.rows]
    holds = reader.holds()
    if "codes" in holds:
        plain["codes"] = [codes.tolist() for codes in record.codes]
    if "text" in holds:
        plain["text"] = record.text
    if "media" in holds:
        plain["media"] = list(record.media)
    return plain


def _print_record(number: str, record: Record, reader: Reader, painter: Paint) -> None:
    console.heading(record.rows[0].key if len(record.rows) == 1 else record.key)
    if record.problem is not None:
        console.facts([("record", number), ("broken", str(record.problem))])
        return
    console.facts([("record", number), *_facts(record, "loss" in reader.holds())])
    for at, row in enumerate(record.rows):
        if len(record.rows) > 1:  # some formats keep only the first key of a pack
            name = row.key or f"document {at}"
            click.secho(f"  {name}: {wording.plural(len(row.ids), 'token')}", dim=True)
        print_runs(painter(row))
    print_text(record.text)


def _facts(record: Record, has_loss: bool) -> Iterator[tuple[str, str]]:
    if record.rows:
        num_visual = sum(row.num_visual for row in record.rows)
        learned = f", {sum(row.num_loss for row in record.rows):,} learned" if has_loss else ""
        yield "tokens", f"{record.num_tokens:,}: {num_visual:,} visual{learned}"
    for number, codes in enumerate(record.codes[:MAX_LISTED]):
        first = " ".join(map(str, codes.reshape(-1)[:MAX_LISTED].tolist()))
        yield f"codes {number}", f"{codes.size:,}: {first} …"
    for number, checksum in enumerate(record.media[:MAX_LISTED]):
        yield f"medium {number}", f"xxh3 {checksum}"
    left = sum(max(0, len(listed) - MAX_LISTED) for listed in (record.codes, record.media))
    if left:
        yield "and", f"{left:,} more"
