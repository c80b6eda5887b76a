"""The JSON of batches says what is in their rows, sample by sample."""

from __future__ import annotations

import json
from pathlib import Path

from mixed_folder import Mixed

from shardmill.formats.format import Piece, open_input
from shardmill.formats.packedrows import (
    ids_json,
    keys_json,
    lengths_json,
    mask_json,
    media_json,
    packed_batches,
)
from shardmill.model.tokenrow import mask_of
from shardmill.shards.weave import Column, weave
from shardmill.storage.background import Room


def samples_of(folder: Path) -> list[tuple[list[object], ...]]:
    """Return (ids, mask, keys, lengths, media) of each packed sample."""
    source = open_input(folder)
    slices = tuple(part for unit in source.ranges(None) for part in unit)
    found: list[tuple[list[object], ...]] = []
    for batch in packed_batches(source, Piece("00000", slices, {})):
        numbers = (ids_json(batch, Room()), mask_json(batch, Room()), lengths_json(batch))
        ids, mask, lengths = map(parsed, numbers)
        keys, media = parsed(keys_json(batch)), parsed(media_json(batch))
        found += zip(ids, mask, keys, lengths, media, strict=True)
    return found


def parsed(columns: list[Column]) -> list[list[object]]:
    woven = weave(columns)
    return [json.loads(bytes(woven[row])) for row in range(len(woven))]


def test_rows(mixed: Mixed) -> None:
    for row, sample in zip(mixed.rows, samples_of(mixed.tokens), strict=True):
        ids, mask, keys, lengths, media = sample
        assert ids == row.ids.tolist()
        assert mask == mask_of(row.loss, len(row.ids)).astype(int).tolist()
        assert (keys, lengths) == ([row.key], [len(row.ids)])
        assert media == [
            {
                "name": span.name,
                "kind": span.kind,
                "document": 0,
                "position": span.position,
                "num_tokens": span.num_tokens,
                "grid": list(span.grid),
                "before": span.before,
                "after": span.after,
            }
            for span in row.media
        ]


def test_packs_count_from_their_own_start(mixed: Mixed) -> None:
    rows = {row.key: row for row in mixed.rows}
    for ids, mask, keys, lengths, media in samples_of(mixed.packs):
        assert ids == [number for key in keys for number in rows[key].ids.tolist()]
        assert sum(lengths) == len(ids) == len(mask)
        assert [m["document"] for m in media] == [
            number for number, key in enumerate(keys) for _ in rows[key].media
        ]
        for medium in media:
            marker = 5 if medium["kind"] == "image" else 6
            assert ids[medium["position"] - 1] == marker
