from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xxhash

from shardmill.io.codefile import PictureCodes, write_codes
from shardmill.io.receipts import Ledger
from shardmill.model.manifest import FileEntry, Manifest, ShardEntry
from shardmill.view.answers import answer
from shardmill.view.codeviews import codebook_counts, find_pictures, rank_pictures, show_codes
from shardmill.view.desk import Desk
from shardmill.view.fence import Fence
from shardmill.view.folder import Folder
from shardmill.view.library import Library
from shardmill.view.shelf import NotHere

NUM_CODES = 64


@pytest.fixture
def codes(tmp_path: Path) -> Folder:
    """Twenty pictures with codes of all kinds, one flat, and one of codes nobody else has."""
    rng = np.random.default_rng(0)
    grids = [rng.integers(0, 48, (8, 8)) for _ in range(20)]
    grids[7] = np.full((8, 8), 3)
    grids[13] = rng.integers(50, 60, (8, 8))
    rows = [(f"k{n}", [PictureCodes("jpg", grid.astype(np.uint8))]) for n, grid in enumerate(grids)]
    folder = tmp_path / "codes"
    (folder / "shards").mkdir(parents=True)
    write_codes(folder / "shards" / "0.codes", rows, num_codes=NUM_CODES, factor=16)
    content = (folder / "shards" / "0.codes").read_bytes()
    file = FileEntry("shards/0.codes", len(content), xxhash.xxh3_64_hexdigest(content))
    ledger = Ledger(folder, "test")
    ledger.draft_dir.mkdir(parents=True)
    ledger.write_manifest(
        Manifest(
            stage={"kind": "shardmill.stages.codes:EncodePictures"},
            stage_digest="0",
            units_digest="0",
            num_in=20,
            num_kept=20,
            skipped={},
            stats={},
            shards=(ShardEntry("0", 20, {"codes": file}),),
        )
    )
    return Folder(folder, Fence.around(tmp_path))


def test_the_strangest_pictures_come_first(codes: Folder) -> None:
    assert codes.content == "codes"
    ranked = rank_pictures(codes)
    assert len(ranked) == 20
    assert {p.picture for p in ranked[:2]} == {7, 13}
    assert ranked[0].score >= ranked[1].score > 4 > ranked[2].score


def test_the_use_of_the_codebook_is_counted(codes: Folder) -> None:
    counts, num_shards = codebook_counts(codes)
    assert (len(counts), int(counts.sum()), num_shards) == (NUM_CODES, 20 * 64, 1)


def test_a_grid_is_found_by_place_and_key(codes: Folder) -> None:
    assert find_pictures(codes, "k13") == [(0, 13)]
    assert find_pictures(codes, "nobody") == []
    shown = show_codes(codes, 0, 13)
    assert (shown["key"], shown["height"], shown["width"]) == ("k13", 8, 8)
    assert min(min(row) for row in shown["codes"]) >= 50
    for place in ((0, 20), (1, 0)):
        with pytest.raises(NotHere):
            show_codes(codes, *place)


def test_the_answer_says_what_is_missing(codes: Folder) -> None:
    found = answer(Desk(Library(codes.path.parent)), "codes", {"id": "codes", "count": "3"})
    assert (found["total"], len(found["pictures"]), found["decodes"]) == (20, 3, False)
    assert found["pictures"][0]["sample_at"] is None
    assert found["dead"] > 0
