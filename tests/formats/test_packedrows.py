"""Rows and packs as packed samples; media keep their place and their owner."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from mixed_folder import Mixed

from shardmill.errors import ConfigError
from shardmill.formats.format import Piece, open_input
from shardmill.formats.packedrows import PackedBatch, open_images, packed_batches, read_images


def batches_of(folder: Path) -> Iterator[PackedBatch]:
    source = open_input(folder)
    slices = tuple(part for unit in source.ranges(None) for part in unit)
    return packed_batches(source, Piece("00000", slices, {}))


def test_rows_are_samples_of_one_document(mixed: Mixed) -> None:
    rows = iter(mixed.rows)
    for batch in batches_of(mixed.tokens):
        for number, key in enumerate(batch.keys):
            row = next(rows)
            assert key == bytes(batch.document_names[number]).decode() == row.key
            start, end = batch.rows.bounds[number : number + 2].tolist()
            assert batch.rows.ids[start:end].tolist() == row.ids.tolist()
            first, last = batch.sample_media[number : number + 2].tolist()
            places = batch.media_starts[first:last] - start
            assert places.tolist() == [span.position for span in row.media]
            assert batch.media("length")[first:last].tolist() == [s.num_tokens for s in row.media]
    assert next(rows, None) is None


def test_packs_are_numbered_and_have_the_documents_of_their_rows(mixed: Mixed) -> None:
    keys, documents = [], []
    for batch in batches_of(mixed.packs):
        keys += batch.keys
        documents += [name.decode() for name in batch.document_names.contents()]
        assert np.diff(batch.documents).sum() == len(batch.document_names)
        owners = (
            np.searchsorted(batch.media_bounds, np.arange(len(batch.media_starts)), "right") - 1
        )
        assert batch.media_documents.tolist() == owners.tolist()
    assert keys == [f"00000-{number:06d}" for number in range(len(keys))]
    assert sorted(documents) == sorted(row.key for row in mixed.rows)


def test_media_come_from_the_samples(mixed: Mixed) -> None:
    batch, row = next(
        (b, b.keys.index(mixed.rows[3].key))
        for b in batches_of(mixed.tokens)
        if mixed.rows[3].key in b.keys
    )
    ((ext, content),) = read_images(batch, row, open_images(mixed.samples))
    assert (ext, bytes(content[4:8])) == ("mp4", b"ftyp")
    with pytest.raises(ConfigError, match="has no medium 'mp4'"):
        read_images(batch, row, open_images(mixed.pairs))
