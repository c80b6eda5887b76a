"""`shardmill show FOLDER`: samples as a person reads them."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import click

from shardmill.cli import console, wording
from shardmill.cli.options import folder_argument, json_option
from shardmill.errors import ConfigError, ShardmillError
from shardmill.io.sampleset import SampleSet, open_samples
from shardmill.model.sample import Document, Sample, sample_to_plain

ROLE_COLOURS = {"system": "yellow", "user": "blue", "assistant": "green", "tool": "magenta"}
MAX_CHARS = 2000


@click.command()
@folder_argument("folder")
@click.option("--sample", "-s", "wanted", multiple=True, help="A sample's number or key.")
@click.option(
    "--count", "-n", type=click.IntRange(1), default=3, help="How many, if none is named."
)
@json_option
def show(folder: Path, wanted: tuple[str, ...], count: int, as_json: bool) -> None:
    """Print samples as a person reads them."""
    with closing(open_samples(folder)) as samples:
        numbers = [_find(samples, name) for name in wanted] or range(min(count, len(samples)))
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


def _find(samples: SampleSet, name: str) -> int:
    number = samples.find(name)
    if number is not None:
        return number
    if not name.isdigit():
        raise ConfigError(f"no sample has the key {name!r}; the first is {samples.key(0)!r}")
    if int(name) >= len(samples):
        raise ShardmillError(f"there is no sample {name}: the last one is {len(samples) - 1}")
    return int(name)


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
            text = segment.text[:MAX_CHARS]
            cut = len(segment.text) - len(text)
            more = f" … {cut:,} more characters" if cut else ""
            click.echo("".join(f"    {line}\n" for line in text.splitlines()).rstrip() + more)
        else:
            time = "" if segment.time_s is None else " {:.2f}–{:.2f} s".format(*segment.time_s)
            click.secho(f"    [{segment.kind} {segment.media}{time}]", fg="cyan")
