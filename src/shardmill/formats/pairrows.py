"""Samples as rows of a text with at most one picture: its codes, or its bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shardmill.errors import SampleError
from shardmill.formats.codejoin import Picture
from shardmill.formats.inputs import ExportInput
from shardmill.io.sampleshard import Raw, SampleShard, parse_sample
from shardmill.model.stage import Tally


@dataclass(frozen=True, slots=True, eq=False)
class PairRow:
    """A text, and the codes of its picture or its name in `raw`; neither for plain text."""

    key: str
    text: str
    codes: Picture | None
    medium: str | None
    raw: Raw


def iter_pairs(
    source: ExportInput, name: str, shard: SampleShard, rows: range, tally: Tally
) -> Iterator[PairRow]:
    """Yield samples of a shard that are pairs or texts; each other one is skipped by its reason.

    All of them are counted in; whoever takes a row counts it as kept.
    """
    for key, raw in _members(shard, rows):
        tally.num_in += 1
        try:
            row = _row(source, name, key, raw)
        except SampleError as error:
            tally.skip(key, error)
        else:
            yield row


def _members(shard: SampleShard, rows: range) -> Iterator[tuple[str, Raw]]:
    if shard.blob.mapped() is None:
        yield from shard.iter_raw(rows.start, rows.stop)
    else:
        yield from ((shard.index.keys[number], shard.raw(number)) for number in rows)


def _row(source: ExportInput, shard_name: str, key: str, raw: Raw) -> PairRow:
    document = parse_sample(key, raw).document
    media = document.media()
    if not media:
        return PairRow(key, document.text, _codes_alone(source, shard_name, key), None, raw)
    if len(media) > 1 or media[0].kind != "image":
        kinds = ", ".join(segment.kind for segment in media)
        raise SampleError("not one picture and text", f"it has {kinds}")
    if source.codes is None:
        return PairRow(key, document.text, None, media[0].media, raw)
    pictures = source.codes.pictures(key, shard_name)
    if len(pictures) != 1:
        raise SampleError("no image codes", f"{key!r} has {len(pictures)} pictures in codes")
    return PairRow(key, document.text, pictures[0], media[0].media, raw)


def _codes_alone(source: ExportInput, shard_name: str, key: str) -> Picture | None:
    """Return the codes of a picture that the sample itself does not hold any more."""
    if source.codes is None:
        return None
    try:
        pictures = source.codes.pictures(key, shard_name)
    except SampleError:  # a plain text of which the codes do not know
        return None
    return pictures[0] if len(pictures) == 1 else None
