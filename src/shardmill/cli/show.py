"""`shardmill show FOLDER`: what a folder holds, as a person reads it.

Shows codes: their grids, or the images that they decode to beside the originals.

Prints samples: where they come from, their media, and the turns of their document.

Prints rows of tokens, decoded: what is learned in green, control tokens and media marked.

Prints records of exports and of foreign tokens: what their format has a place for, no more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import click

from shardmill import humanize as wording
from shardmill.cli import output as console
from shardmill.cli.options import folder_argument, json_lines_option
from shardmill.errors import ConfigError, ShardmillError, need
from shardmill.formats.reader import Part, Reader, Record, is_code
from shardmill.model.manifest import Manifest
from shardmill.model.sample import Document, Sample, sample_to_plain
from shardmill.model.space import TokenSpace
from shardmill.model.tokenrow import MediaSpan, TokenRow, no_spans, spans_of
from shardmill.shards.ledger import Ledger, open_manifest
from shardmill.shards.samples import SampleDataset, open_samples
from shardmill.shards.tokens.shard import TokenDataset, open_tokens
from shardmill.stages.check.specimens import tokens_behind
from shardmill.stages.codereport import find_codes, reconstruct, spread_keys
from shardmill.storage.path import UrlPath
from shardmill.tokens.text.readable import Numbers, Run, open_readable, readable_runs


@click.command()
@folder_argument("folder")
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

    FOLDER is any folder of ours, an export, or tokens of another program (Megatron's prefixes,
    tars of packed samples, UniDisc's memory maps).
    """
    if to_dir is not None:
        show_reconstructions(folder, wanted, count, to_dir, as_json)
        return
    from shardmill.formats.exported import open_reader
    from shardmill.formats.own import SamplesReader

    reader = open_reader(str(folder)) if _is_for_others(folder) else None
    if reader is not None and not isinstance(reader, SamplesReader):
        show_records(folder, reader, wanted, count, as_json)
    else:
        _show_ours(folder, wanted, count, as_json)


def _is_for_others(folder: Path) -> bool:
    """Say whether a folder is an export, or was not made by us at all."""
    manifest = Ledger(folder).read_manifest()
    is_remote = isinstance(folder, UrlPath)
    if manifest is None:
        return not is_remote and not (folder / "stage.json").exists()
    format = manifest.stage.get("format") if isinstance(manifest.stage, dict) else None
    is_export = isinstance(format, dict) or format == "tar"
    if is_export and is_remote:
        raise ConfigError(f"{folder} is an export in a store: copy it to a disk to see its records")
    return is_export


def _show_ours(folder: Path, wanted: Sequence[str], count: int, as_json: bool) -> None:
    manifest = open_manifest(folder)
    if not manifest.num_samples:
        console.say_empty(folder, as_json=as_json)
        return
    roles = {role for shard in manifest.shards for role in shard.files}
    if "codes" in roles:
        show_codes(folder, wanted, count, as_json)
    elif "spans" in roles:
        show_tokens(folder, manifest, wanted, count, as_json)
    else:
        show_samples(folder, wanted, count, as_json)


def show_codes(folder: Path, wanted: Sequence[str], count: int, as_json: bool) -> None:
    """Print the grids of codes of the samples with these keys, or of some spread evenly."""
    for key in wanted or spread_keys(folder, count):
        for image in find_codes(folder, key):
            height, width = image.codes.shape
            if as_json:
                codes = image.codes.tolist()
                console.print_json({"key": key, "medium": image.medium, "codes": codes})
                continue
            console.heading(f"{key} {image.medium}")
            first = " ".join(str(code) for code in image.codes[0, :12])
            console.facts([("grid", f"{height} x {width}"), ("first row", f"{first} …")])


def show_reconstructions(
    folder: Path, wanted: Sequence[str], count: int, to_dir: Path, as_json: bool
) -> None:
    """Write each image beside what its codes decode to, and print how near they are."""
    pillow = need("PIL.Image", extra="image")
    to_dir.mkdir(parents=True, exist_ok=True)
    for image in reconstruct(folder, list(wanted or spread_keys(folder, count))):
        name = f"{image.key}.{image.medium}".replace("/", "_")
        path = to_dir / f"{name}.png"
        pillow.fromarray(image.side_by_side()).save(path)
        if as_json:
            console.print_json(
                {"key": image.key, "medium": image.medium, "psnr": image.psnr, "path": path}
            )
        else:
            click.echo(f"  {image.psnr:5.2f} dB  {path}")


ROLE_COLOURS = {"system": "yellow", "user": "blue", "assistant": "green", "tool": "magenta"}
MAX_CHARS = 2000


def show_samples(folder: Path, wanted: Sequence[str], count: int, as_json: bool) -> None:
    """Print the samples with these numbers or keys, or the first `count`."""
    with closing(open_samples(folder)) as samples:
        numbers = [_find_sample(samples, name) for name in wanted] or range(
            min(count, len(samples))
        )
        for number in numbers:
            sample = samples[number]
            if as_json:
                console.print_json({"number": number, **sample_as_plain(sample)})
            else:
                _print_sample(number, len(samples), sample)


def sample_as_plain(sample: Sample) -> dict[str, Any]:
    """Return what `--json` prints: the stored document, and the media by name and size."""
    media = {name: len(content) for name, content in sample.media.items()}
    return {"key": sample.key, "media_bytes": media, **sample_to_plain(sample)}


def _find_sample(samples: SampleDataset, name: str) -> int:
    number = samples.find(name)
    if number is not None:
        return number
    if name.isdigit() and int(name) < len(samples):
        return int(name)
    example = f"; the first is {samples.key(0)!r}" if len(samples) else ""
    raise ConfigError(
        f"no sample has the key or number {name!r}: there are {len(samples):,}{example}"
    )


def _print_sample(number: int, total: int, sample: Sample) -> None:
    console.heading(f"{sample.key}")
    rows = [("sample", f"{number:,} of {total:,}")]
    if sample.origin is not None:
        rows.append(("from", f"{sample.origin.path}, row {sample.origin.row}"))
    rows += [(name, wording.size(len(content))) for name, content in sample.media.items()]
    rows += [(name, str(value)[:100]) for name, value in sample.extra.items()]
    console.facts(rows)
    _print_document(sample.document)


def _print_document(document: Document) -> None:
    last = None
    for segment in document.segments:
        if segment.role is not None and (segment.role, segment.turn) != last:
            click.secho(f"  {segment.role}", fg=ROLE_COLOURS.get(segment.role), bold=True)
        last = (segment.role, segment.turn)
        if segment.kind == "text":
            print_text(segment.text)
        else:
            time = "" if segment.time_s is None else " {:.2f}–{:.2f} s".format(*segment.time_s)
            click.secho(f"    [{segment.kind} {segment.media}{time}]", fg="cyan")


def print_text(text: str) -> None:
    """Print the beginning of a text, indented; nothing if there is none."""
    if not text:
        return
    shown = text[:MAX_CHARS]
    cut = len(text) - len(shown)
    more = f" … {cut:,} more characters" if cut else ""
    click.echo("".join(f"    {line}\n" for line in shown.splitlines()).rstrip() + more)


COLOURS = {"text": None, "control": "magenta", "media": "cyan"}
MAX_ROW_CHARS = 4000


def show_tokens(
    folder: Path, manifest: Manifest, wanted: Sequence[str], count: int, as_json: bool
) -> None:
    """Print the rows with these numbers or keys, or the first `count`."""
    rows = open_tokens(folder, manifest)
    readable = open_readable(tokens_behind(folder, manifest)[1])
    numbers = [_find_row(rows, name) for name in wanted] or range(min(count, len(rows)))
    for number in numbers:
        row = rows[number]
        if as_json:
            console.print_json({"number": number, **row_as_plain(row, readable(row))})
        else:
            _print_row(number, len(rows), row, readable(row))


def row_as_plain(row: TokenRow, runs: Sequence[Run]) -> dict[str, Any]:
    """Return what `--json` prints of a row: its ids, the spans that are learned, and its runs."""
    return {
        "key": row.key,
        "ids": row.ids.tolist(),
        "loss": row.loss.tolist(),
        "runs": [{"text": r.text, "kind": r.kind, "learned": r.learned} for r in runs],
    }


def _find_row(rows: TokenDataset, name: str) -> int:
    number = rows.find(name)
    if number is not None:
        return number
    if name.isdigit() and int(name) < len(rows):
        return int(name)
    raise ConfigError(f"no row has the key or number {name!r}: there are {len(rows):,}")


def _print_row(number: int, total: int, row: TokenRow, runs: Sequence[Run]) -> None:
    console.heading(row.key)
    console.facts(
        [
            ("row", f"{number:,} of {total:,}"),
            ("tokens", f"{len(row.ids):,}: {row.num_visual:,} visual, {row.num_loss:,} learned"),
        ]
    )
    print_runs(runs)


def print_runs(runs: Sequence[Run]) -> None:
    """Print the runs of a row in their colours, indented."""
    painted = "".join(
        click.style(
            run.text[:MAX_ROW_CHARS],
            fg="green" if run.learned and run.kind != "media" else COLOURS[run.kind],
            bold=run.learned,
            dim=run.kind == "control" and not run.learned,
        )
        for run in runs
    )
    click.echo("\n".join(f"    {line}" for line in painted.splitlines()))


ReadableRow: TypeAlias = Callable[[TokenRow], list[Run]]
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
    readable = _readable(folder, reader)
    for number, record in _chosen(reader, parts, total, wanted, count):
        known = _only_known(record, reader)
        if as_json:
            console.print_json({"number": number, **_as_plain(known, reader, readable)})
        else:
            _print_record(f"{number:,} of {total:,}", known, reader, readable)


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


def _readable(folder: Path, reader: Reader) -> ReadableRow:
    """Return how rows are painted: by the tokenizer that made them, by numbers if it is gone."""
    manifest = Ledger(folder).read_manifest()
    if manifest is not None:
        try:
            return open_readable(tokens_behind(folder, manifest)[1])
        except (ShardmillError, OSError) as error:
            click.echo(f"shown as ids: {error}", err=True)
    return lambda row: readable_runs(row, Numbers(), reader.token_space() or NO_SPACE)


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


def _as_plain(record: Record, reader: Reader, readable: ReadableRow) -> dict[str, Any]:
    if record.problem is not None:
        return {"key": record.key, "problem": str(record.problem)}
    plain: dict[str, Any] = {"key": record.key}
    if record.rows:
        plain["documents"] = [row_as_plain(row, readable(row)) for row in record.rows]
    holds = reader.holds()
    if "codes" in holds:
        plain["codes"] = [codes.tolist() for codes in record.codes]
    if "text" in holds:
        plain["text"] = record.text
    if "media" in holds:
        plain["media"] = list(record.media)
    return plain


def _print_record(number: str, record: Record, reader: Reader, readable: ReadableRow) -> None:
    console.heading(record.rows[0].key if len(record.rows) == 1 else record.key)
    if record.problem is not None:
        console.facts([("record", number), ("broken", str(record.problem))])
        return
    console.facts([("record", number), *_facts(record, "loss" in reader.holds())])
    for at, row in enumerate(record.rows):
        if len(record.rows) > 1:  # some formats keep only the first key of a pack
            name = row.key or f"document {at}"
            click.secho(f"  {name}: {wording.plural(len(row.ids), 'token')}", dim=True)
        print_runs(readable(row))
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
