"""Rows and packs as packed samples; media keep their place and their owner."""

from __future__ import annotations

import pytest
from mixed_folder import Mixed, make_mixed

from shardmill.errors import ConfigError
from shardmill.formats.contract import Piece
from shardmill.formats.inputs import open_input
from shardmill.formats.packedrows import open_pictures, packed_samples, read_pictures
from shardmill.model.tokenrow import mask_of


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Mixed:
    return make_mixed(tmp_path_factory.mktemp("mixed"), 8)


def samples_of(folder: object) -> list[object]:
    source = open_input(folder)  # type: ignore[arg-type]
    slices = tuple(part for unit in source.ranges(None) for part in unit)
    return list(packed_samples(source, Piece("00000", slices, {})))


def test_rows_are_samples_of_one_document(mixed: Mixed) -> None:
    for row, packed in zip(mixed.rows, samples_of(mixed.tokens), strict=True):
        assert packed.key == row.key
        assert packed.ids.tolist() == row.ids.tolist()
        assert packed.loss_mask.tolist() == mask_of(row.loss, len(row.ids)).tolist()
        assert [m["position"] for m in packed.media] == [s.position for s in row.media]
        assert packed.owners == [row.key] * len(row.media)


def test_media_of_packs_count_from_the_start_of_the_pack(mixed: Mixed) -> None:
    for packed in samples_of(mixed.packs):
        assert sum(packed.lengths) == len(packed.ids)
        for medium, owner in zip(packed.media, packed.owners):
            assert packed.keys[medium["document"]] == owner
            marker = 5 if medium["kind"] == "image" else 6
            assert packed.ids[medium["position"] - 1] == marker


def test_media_come_from_the_samples(mixed: Mixed) -> None:
    packed = samples_of(mixed.tokens)[3]
    ((ext, content),) = read_pictures(packed, open_pictures(mixed.samples))
    assert (ext, bytes(content[4:8])) == ("mp4", b"ftyp")
    with pytest.raises(ConfigError, match="has no medium 'mp4'"):
        read_pictures(packed, open_pictures(mixed.pairs))
    assert read_pictures(packed, None) == []
