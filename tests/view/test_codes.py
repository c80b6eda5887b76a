from __future__ import annotations

from pathlib import Path

import pytest
from view_folders import NUM_CODES, make_codes

from shardmill.view.access import Fence
from shardmill.view.codes import codebook_counts, find_images, rank_images, show_codes
from shardmill.view.context import Desk
from shardmill.view.folder import Folder
from shardmill.view.items import NotHere
from shardmill.view.library import Library
from shardmill.view.queries import answer


@pytest.fixture
def codes(tmp_path: Path) -> Folder:
    return Folder(make_codes(tmp_path / "codes"), Fence.around(tmp_path))


def test_the_strangest_images_come_first(codes: Folder) -> None:
    assert codes.content == "codes"
    ranked = rank_images(codes)
    assert len(ranked) == 20
    assert {p.image for p in ranked[:2]} == {7, 13}
    assert ranked[0].score >= ranked[1].score > 4 > ranked[2].score


def test_the_use_of_the_codebook_is_counted(codes: Folder) -> None:
    counts, num_shards = codebook_counts(codes)
    assert (len(counts), int(counts.sum()), num_shards) == (NUM_CODES, 20 * 64, 1)


def test_a_grid_is_found_by_place_and_key(codes: Folder) -> None:
    assert find_images(codes, "k13") == [(0, 13)]
    assert find_images(codes, "nobody") == []
    shown = show_codes(codes, 0, 13)
    assert (shown["key"], shown["height"], shown["width"]) == ("k13", 8, 8)
    assert min(min(row) for row in shown["codes"]) >= 50
    for place in ((0, 20), (1, 0)):
        with pytest.raises(NotHere):
            show_codes(codes, *place)


def test_the_answer_says_what_is_missing(codes: Folder) -> None:
    found = answer(Desk(Library(codes.path.parent)), "codes", {"id": "codes", "count": "3"})
    assert (found["total"], len(found["images"]), found["decodes"]) == (20, 3, False)
    assert found["images"][0]["sample_at"] is None
    assert found["dead"] > 0
