"""Prints samples: where they come from, their media, and the turns of their document."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from shardmill import wording
from shardmill.cli import console
from shardmill.errors import ConfigError
from shardmill.io.sampleset import SampleSet, open_samples
from shardmill.model.sample import Document, Sample, sample_to_plain

ROLE_COLOURS = {"system": "yellow", "user": "blue", "assistant": "green", "tool": "magenta"}
MAX_CHARS = 2000


def show_samples(folder: Path, wanted: Sequence[str], count: int, as_json: bool) -> None:
    """Print the samples with these numbers or keys, or the first `count`."""
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
