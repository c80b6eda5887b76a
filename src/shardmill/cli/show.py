"""`shardmill show PLACE`: what a folder, a plan or an export holds, as a person reads it.

Samples are shown with their origin, media and turns; tokens decoded, with what is learned in green;
codes as grids, or as the images that they decode to; records of other formats as far as the format
has a place for something, and no further.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import click

import shardmill as sm
from shardmill import humanize
from shardmill.api.data import (
    Codes,
    Data,
    Export,
    Length,
    Lengths,
    Packs,
    Plan,
    Project,
    Samples,
    Tokens,
)
from shardmill.cli import output
from shardmill.cli.options import json_lines_option, place_argument
from shardmill.errors import ConfigError, ShardmillError, need
from shardmill.formats.format import Reader, Record, is_code
from shardmill.model.sample import Document, Sample, sample_to_plain
from shardmill.model.space import TokenSpace
from shardmill.model.tokenrow import MediaSpan, TokenRow, no_spans, spans_of
from shardmill.shards.ledger import Ledger
from shardmill.stages.codes import describe_pixels, reconstruct, spread_keys
from shardmill.stages.inputs import tokens_behind
from shardmill.tokens.text.readable import Numbers, Run, open_readable, readable_runs

ReadableRow: TypeAlias = Callable[[TokenRow], list[Run]]
ROLE_COLOURS = {"system": "yellow", "user": "blue", "assistant": "green", "tool": "magenta"}
RUN_COLOURS = {"text": None, "control": "magenta", "media": "cyan"}
NO_SPACE = TokenSpace(text_size=1)
MAX_CHARS = 2000
MAX_ROW_CHARS = 4000
MAX_LISTED = 8
MAX_ROWS = 32


@click.command()
@place_argument("folder")
@click.option("--sample", "-s", "wanted", multiple=True, help="A sample's number or key.")
@click.option(
    "--count",
    "-n",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="How many, if none is named.",
)
@click.option(
    "--reconstruct",
    "to_dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Of codes: write images beside what their codes decode to into this folder.",
)
@json_lines_option
def show(
    folder: Path, wanted: tuple[str, ...], count: int, to_dir: Path | None, as_json: bool
) -> None:
    """Print samples, codes or tokens as a person reads them.

    PLACE is any folder of ours, one that holds several, which are listed, a plan, an export, or
    tokens of another program (Megatron's prefixes, tars of packed samples, UniDisc's memory maps).
    """
    if to_dir is not None:
        _show_reconstructions(folder, wanted, count, to_dir, as_json)
        return
    data = sm.open(folder)
    if isinstance(data, Project):
        _show_project(data, wanted, as_json)
        return
    if isinstance(data, Packs) and data.spec.format == "megatron":
        data = Tokens(folder)  # a document of a pack is found by its own key
    if not len(data):
        text = f"{folder} is empty: shardmill status {folder} tells what became of its input"
        output.echo(text, err=as_json)  # machines see it by the lack of lines
        return
    if isinstance(data, Codes) and not wanted:
        wanted = tuple(spread_keys(folder, count))
    pixels = describe_pixels(folder) if isinstance(data, Codes) and not as_json else None
    if pixels is not None:
        output.facts([("pixels", pixels)])
    if isinstance(data, Plan | Lengths) and not as_json:
        output.echo(repr(data))
    show_item = _printer(data, as_json)
    for number, item in _chosen(data, wanted, count):
        show_item(number, item)


def _show_project(project: Project, wanted: Sequence[str], as_json: bool) -> None:
    """Print what each of several holds, in a line."""
    if wanted:
        raise ConfigError(
            f"{project.path} holds several: name the one of {', '.join(project.places)}"
        )
    for name, path in project.places.items():
        try:
            told = repr(sm.open(path))
        except ShardmillError as error:
            told = str(error)
        if as_json:
            output.print_json({"name": name, "path": path, "what": told})
        else:
            output.echo(told)
    if not as_json:
        output.hint(f"shardmill show {humanize.place(next(iter(project.places.values())))}")


def _chosen(data: Data[Any], wanted: Sequence[str], count: int) -> Iterable[tuple[int, Any]]:
    if not wanted:
        return zip(range(count), data)
    numbers = [_find(data, name) for name in wanted]
    return ((number, data[number]) for number in numbers)


def _find(data: Data[Any], name: str) -> int:
    """Return the number of an item by its key or number, whichever is found sooner."""
    number = int(name) if name.isdigit() and int(name) < len(data) else None
    if number is not None and isinstance(data, Export):  # a key would need reading all before it
        return number
    found = data.find(name)
    if found is None:
        found = number
    if found is None:
        why = ""
        if isinstance(data, Export) and "keys" not in data.reader.holds():
            why = "; this format keeps no keys"
        elif isinstance(data, Samples):
            why = f"; the first is {data[0].key!r}"
        raise ConfigError(
            f"no {data.item} has the key or number {name!r}: there are {len(data):,}{why}"
        )
    return found


def _printer(data: Data[Any], as_json: bool) -> Callable[[int, Any], None]:
    """Return what prints an item, by its number and what it is."""
    if isinstance(data, Export):
        return _record_printer(data, as_json)
    if isinstance(data, Tokens):
        readable = open_readable(tokens_behind(data.path, data.manifest)[1])
        return lambda number, row: _show_row(number, len(data), row, readable(row), as_json)
    if isinstance(data, Codes):
        keys = list(data.keys())
        return lambda number, images: _show_codes(keys[number], images, as_json)
    if isinstance(data, Samples):
        return lambda number, sample: _show_sample(number, len(data), sample, as_json)
    if isinstance(data, Plan):
        return lambda number, rows: _show_pack(number, len(data), rows.tolist(), as_json)
    if isinstance(data, Lengths):
        return lambda number, length: _show_length(number, len(data), length, as_json)
    raise ConfigError(f"{data!r} has nothing to show: see shardmill status")


def _show_pack(number: int, total: int, rows: Sequence[int], as_json: bool) -> None:
    """Print which rows of the tokens stand together; a plan knows them by their numbers."""
    if as_json:
        output.print_json({"number": number, "rows": rows})
        return
    listed = ", ".join(map(str, rows[:MAX_ROWS])) + (" …" if len(rows) > MAX_ROWS else "")
    output.facts([(f"pack {number:,} of {total:,}", f"rows {listed}")])


def _show_length(number: int, total: int, length: Length, as_json: bool) -> None:
    if as_json:
        output.print_json({"number": number, **length._asdict()})
        return
    told = f"{length.num_tokens:,} tokens, {length.num_visual:,} visual, from {length.source}"
    told += f", left out: {length.reject}" if length.reject else ""
    output.facts([(f"sample {number:,} of {total:,}", told)])


def _show_sample(number: int, total: int, sample: Sample, as_json: bool) -> None:
    if as_json:
        media = {name: len(content) for name, content in sample.media.items()}
        stored = {"key": sample.key, "media_bytes": media, **sample_to_plain(sample)}
        output.print_json({"number": number, **stored})
        return
    output.heading(sample.key)
    rows = [("sample", f"{number:,} of {total:,}")]
    if sample.origin is not None:
        rows.append(("from", f"{sample.origin.path}, row {sample.origin.row}"))
    rows += [(name, humanize.size(len(content))) for name, content in sample.media.items()]
    rows += [(name, str(value)[:100]) for name, value in sample.extra.items()]
    output.facts(rows)
    _print_document(sample.document)


def _print_document(document: Document) -> None:
    last = None
    for segment in document.segments:
        if segment.role is not None and (segment.role, segment.turn) != last:
            output.echo(
                click.style(f"  {segment.role}", fg=ROLE_COLOURS.get(segment.role), bold=True)
            )
        last = (segment.role, segment.turn)
        if segment.kind == "text":
            _print_text(segment.text)
        else:
            time = "" if segment.time_s is None else " {:.2f}–{:.2f} s".format(*segment.time_s)
            output.echo(click.style(f"    [{segment.kind} {segment.media}{time}]", fg="cyan"))


def _print_text(text: str) -> None:
    """Print the beginning of a text, indented; nothing if there is none."""
    if not text:
        return
    shown = text[:MAX_CHARS]
    cut = len(text) - len(shown)
    more = f" … {cut:,} more characters" if cut else ""
    output.echo("".join(f"    {line}\n" for line in shown.splitlines()).rstrip() + more)


def _show_codes(key: str, images: Sequence[Any], as_json: bool) -> None:
    for image in images:
        if as_json:
            codes = image.codes.tolist()
            output.print_json({"key": key, "medium": image.medium, "codes": codes})
            continue
        height, width = image.codes.shape
        output.heading(f"{key} {image.medium}")
        first = " ".join(str(code) for code in image.codes[0, :12])
        output.facts([("grid", f"{height} x {width}"), ("first row", f"{first} …")])


def _show_reconstructions(
    folder: Path, wanted: Sequence[str], count: int, to_dir: Path, as_json: bool
) -> None:
    """Write each image beside what its codes decode to, and print how near they are."""
    image = need("PIL.Image", extra="image")
    to_dir.mkdir(parents=True, exist_ok=True)
    for found in reconstruct(folder, list(wanted or spread_keys(folder, count))):
        name = f"{found.key}.{found.medium}".replace("/", "_")
        path = to_dir / f"{name}.png"
        image.fromarray(found.side_by_side()).save(path)
        if as_json:
            output.print_json(
                {"key": found.key, "medium": found.medium, "psnr": found.psnr, "path": path}
            )
        else:
            output.echo(f"  {found.psnr:5.2f} dB  {path}")


def _show_row(number: int, total: int, row: TokenRow, runs: Sequence[Run], as_json: bool) -> None:
    if as_json:
        output.print_json({"number": number, **_row_to_plain(row, runs)})
        return
    output.heading(row.key)
    output.facts(
        [
            ("row", f"{number:,} of {total:,}"),
            ("tokens", f"{len(row.ids):,}: {row.num_visual:,} visual, {row.num_loss:,} learned"),
        ]
    )
    _print_runs(runs)


def _row_to_plain(row: TokenRow, runs: Sequence[Run]) -> dict[str, Any]:
    return {
        "key": row.key,
        "ids": row.ids.tolist(),
        "loss": row.loss.tolist(),
        "runs": [{"text": r.text, "kind": r.kind, "learned": r.learned} for r in runs],
    }


def _print_runs(runs: Sequence[Run]) -> None:
    """Print the runs of a row in their colours, indented."""
    text = "".join(
        click.style(
            run.text[:MAX_ROW_CHARS],
            fg="green" if run.learned and run.kind != "media" else RUN_COLOURS[run.kind],
            bold=run.learned,
            dim=run.kind == "control" and not run.learned,
        )
        for run in runs
    )
    output.echo("\n".join(f"    {line}" for line in text.splitlines()))


def _record_printer(data: Export, as_json: bool) -> Callable[[int, Record], None]:
    reader, total = data.reader, len(data)
    readable = _readable(data.path, reader)

    def show_record(number: int, record: Record) -> None:
        known = _only_known(record, reader)
        if as_json:
            output.print_json({"number": number, **_record_to_plain(known, reader, readable)})
        else:
            _print_record(f"{number:,} of {total:,}", known, reader, readable)

    return show_record


def _readable(folder: Path, reader: Reader) -> ReadableRow:
    """Return how rows are shown: by the tokenizer that made them, by numbers if it is gone."""
    manifest = Ledger(folder).read_manifest()
    if manifest is not None:
        try:
            return open_readable(tokens_behind(folder, manifest)[1])
        except (ShardmillError, OSError) as error:
            output.echo(f"shown as ids: {error}", err=True)
    return lambda row: readable_runs(row, Numbers(), reader.token_space() or NO_SPACE)


def _only_known(record: Record, reader: Reader) -> Record:
    """Return the record without the loss that a format has no place for, and its codes marked."""
    has_loss, space = "loss" in reader.holds(), reader.token_space() or NO_SPACE

    def known(row: TokenRow) -> TokenRow:
        # No tokenizer can decode image codes, so that runs of them are shown as media.
        runs = spans_of(is_code(row.ids, space)).tolist()
        codes = tuple(
            MediaSpan(name="", kind="image", position=start, num_tokens=length)
            for start, length in runs
        )
        return replace(row, loss=row.loss if has_loss else no_spans(), media=row.media or codes)

    return replace(record, rows=tuple(map(known, record.rows)))


def _record_to_plain(record: Record, reader: Reader, readable: ReadableRow) -> dict[str, Any]:
    if record.problem is not None:
        return {"key": record.key, "problem": str(record.problem)}
    plain: dict[str, Any] = {"key": record.key}
    if record.rows:
        plain["documents"] = [_row_to_plain(row, readable(row)) for row in record.rows]
    holds = reader.holds()
    if "codes" in holds:
        plain["codes"] = [codes.tolist() for codes in record.codes]
    if "text" in holds:
        plain["text"] = record.text
    if "media" in holds:
        plain["media"] = list(record.media)
    return plain


def _print_record(number: str, record: Record, reader: Reader, readable: ReadableRow) -> None:
    output.heading(record.rows[0].key if len(record.rows) == 1 else record.key)
    if record.problem is not None:
        output.facts([("record", number), ("broken", str(record.problem))])
        return
    output.facts([("record", number), *_record_facts(record, "loss" in reader.holds())])
    for at, row in enumerate(record.rows):
        if len(record.rows) > 1:  # some formats keep only the first key of a pack
            name = row.key or f"document {at}"
            output.echo(
                click.style(f"  {name}: {humanize.plural(len(row.ids), 'token')}", dim=True)
            )
        _print_runs(readable(row))
    _print_text(record.text)


def _record_facts(record: Record, has_loss: bool) -> Iterator[tuple[str, str]]:
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
