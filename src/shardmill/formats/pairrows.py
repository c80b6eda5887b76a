"""Samples as rows of a text with at most one picture: its codes, or its bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shardmill.errors import SampleError
from shardmill.formats.codejoin import Picture
from shardmill.formats.contract import Piece
from shardmill.formats.inputs import ExportInput
from shardmill.io.sampleshard import Raw, parse_sample
from shardmill.model.stage import Tally


@dataclass(frozen=True, slots=True, eq=False)
class PairRow:
    """A text, and the codes of its picture or its name in `raw`; neither for plain text."""

    key: str
    text: str
    codes: Picture | None
    medium: str | None
    raw: Raw


def pair_rows(source: ExportInput, piece: Piece, tally: Tally) -> Iterator[PairRow]:
    """Yield the rows of a unit; samples that are neither pair nor text are in the books.

    A row that is yielded counts as read; whoever takes it counts it as kept.
    """
    for part in piece.slices:
        name = source.shards[part.shard].name
        with source.sample_shard(part.shard) as shard:
            for number in range(part.start, part.stop):
                key = shard.index.keys[number]
                tally.num_in += 1
                try:
                    yield _row(source, name, key, shard.raw(number))
                except SampleError as error:
                    tally.skip(key, error)


def _row(source: ExportInput, shard_name: str, key: str, raw: Raw) -> PairRow:
    if source.codes is not None and "txt" in raw:
        # Only a document of one medium and one text has this member: its json tells nothing more.
        pictures = source.codes.pictures(key, shard_name)
        if len(pictures) == 1:
            return PairRow(key, str(raw["txt"], "utf-8"), pictures[0], pictures[0].medium, raw)
    document = parse_sample(key, raw).document
    media = document.media()
    if not media:
        return PairRow(key, document.text, None, None, raw)
    if len(media) > 1 or media[0].kind != "image":
        raise SampleError(
            "not one picture and text", f"it has {', '.join(segment.kind for segment in media)}"
        )
    if source.codes is None:
        return PairRow(key, document.text, None, media[0].media, raw)
    pictures = source.codes.pictures(key, shard_name)
    if len(pictures) != 1:
        raise SampleError("no image codes", f"{key!r} has {len(pictures)} pictures in codes")
    return PairRow(key, document.text, pictures[0], media[0].media, raw)
