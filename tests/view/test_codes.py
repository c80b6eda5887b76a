from __future__ import annotations

import io
from pathlib import Path

import pytest
from view_folders import NUM_CODES, make_codes, run_in
from vq_checkpoints import write_original

from shardmill.errors import ConfigError, NotFound
from shardmill.view.answers import Query, answer
from shardmill.view.codes import codebook_counts, decode_codes, rank_images, show_codes
from shardmill.view.context import AccessPolicy, Context, Folder
from shardmill.view.samples import find_images


@pytest.fixture
def codes(tmp_path: Path) -> Folder:
    return Folder(make_codes(tmp_path / "codes"), AccessPolicy.below(tmp_path))


def test_outliers_come_first(codes: Folder) -> None:
    assert codes.content == "codes"
    ranked = rank_images(codes, codebook_counts(codes)[0])
    assert len(ranked) == 20
    assert {image.image for image in ranked[:2]} == {7, 13}
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
        with pytest.raises(NotFound):
            show_codes(codes, *place)


def test_the_answer_says_what_is_missing(codes: Folder) -> None:
    found = answer(Context(codes.path.parent), "codes", {"id": "codes", "count": "3"})
    assert (found["total"], len(found["images"]), found["decodes"]) == (20, 3, False)
    assert found["images"][0]["sample_at"] is None
    assert found["unused"] > 0


Image = pytest.importorskip("PIL.Image")


def test_codes_are_decoded_beside_their_originals_if_asked(
    pipeline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDMILL_DEVICE", "cpu")
    monkeypatch.setenv("SHARDMILL_THREADS", "1")
    write_original(tmp_path / "weights")
    tokenizer = f"chameleon,weights={tmp_path / 'weights'}"
    options = f"--tokenizer {tokenizer} --resolution 32 --limit 2 --workers 0"
    run_in(tmp_path, f"codes {pipeline / 'pairs'} codes {options}")
    allowed = Context(tmp_path, decodes=True)

    def asked(medium: str) -> Query:
        return Query({"id": "codes", "key": "pairs-00000000", "medium": medium})

    image = Image.open(io.BytesIO(decode_codes(allowed, asked("jpg"))))
    assert image.size == (64, 32)
    with pytest.raises(NotFound):
        decode_codes(allowed, asked("png"))
    with pytest.raises(ConfigError, match="--reconstruct"):
        decode_codes(Context(tmp_path), asked("jpg"))
