"""Pairs a batch at a time: from the indexes at once, the same as each sample by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from coded_folder import codes_of, make_pair, make_text, store_coded

from shardmill.errors import FormatError
from shardmill.formats.format import Piece, Slice, open_input
from shardmill.formats.liquid import rows as pairbatch
from shardmill.formats.liquid.rows import PairBatch, pair_batches
from shardmill.model.sample import Sample
from shardmill.model.stage import Tally

TEXTS = ["plain", "", "über — 日本語", "🙂" * 3, "two\nlines", "x" * 100]
PAIRS = [make_pair(f"p{n}", TEXTS[n % len(TEXTS)]) for n in range(25)]


def read(
    folders: tuple[Path, Path], size: tuple[int, int] | None = None
) -> tuple[list[dict[str, Any]], Tally]:
    source, tally = open_input(*folders), Tally()
    slices = tuple(Slice(n, 0, shard.num_samples) for n, shard in enumerate(source.shards))
    rows: list[dict[str, Any]] = []
    for batch in pair_batches(source, Piece("00000", slices, {}), tally, size):
        rows += rows_of(batch)
    assert tally.num_in == tally.num_kept + len(tally.rejects) and tally.num_kept == len(rows)
    return rows, tally


def rows_of(batch: PairBatch) -> list[dict[str, Any]]:
    ends = np.cumsum(batch.num_codes)
    return [
        {
            "text": text,
            "chars": chars,
            "codes": batch.codes[end - count : end].tolist(),
            "size": size,
        }
        for text, chars, count, end, *size in zip(
            [text.decode() for text in batch.texts.contents()],
            batch.num_chars.tolist(),
            batch.num_codes.tolist(),
            ends.tolist(),
            batch.width.tolist(),
            batch.height.tolist(),
        )
    ]


def expected(sample: Sample) -> dict[str, Any]:
    text = sample.document.text
    codes = codes_of(sample.key).reshape(-1).tolist() if sample.media else []
    size = [512, 512] if sample.media else [0, 0]
    return {"text": text, "chars": len(text), "codes": codes, "size": size}


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Count how many batches were taken at once, and how many sample by sample."""
    counts = {"_bulk": 0, "_gathered": 0}

    def counted(name: str) -> Any:
        real = getattr(pairbatch, name)

        def call(*arguments: Any) -> Any:
            found = real(*arguments)
            counts[name] += found is not None
            return found

        return call

    for name in counts:
        monkeypatch.setattr(pairbatch, name, counted(name))
    monkeypatch.setattr(pairbatch, "BATCH_ROWS", 4)
    return counts


def test_pairs_are_taken_at_once(tmp_path: Path, ways: dict[str, int]) -> None:
    rows, _ = read(store_coded(tmp_path, PAIRS, per_shard=10), (512, 512))
    assert rows == [expected(sample) for sample in PAIRS]
    assert ways == {"_bulk": 8, "_gathered": 0}


def test_a_batch_with_a_text_is_taken_sample_by_sample(
    tmp_path: Path, ways: dict[str, int]
) -> None:
    samples = [*PAIRS[:6], make_text("t", "only text"), *PAIRS[6:]]
    rows, _ = read(store_coded(tmp_path, samples, per_shard=30))
    assert rows == [expected(sample) for sample in samples]
    assert ways["_bulk"] and ways["_gathered"]


def test_a_shard_whose_codes_lack_a_sample_is_taken_sample_by_sample(
    tmp_path: Path, ways: dict[str, int]
) -> None:
    folders = store_coded(tmp_path, PAIRS, per_shard=30, without=["p3"])
    rows, tally = read(folders)
    assert rows == [expected(sample) for sample in PAIRS if sample.key != "p3"]
    assert dict(tally.skipped) == {"no image codes": 1} and ways["_bulk"] == 0


def test_codes_in_another_order_are_found_by_key(tmp_path: Path, ways: dict[str, int]) -> None:
    samples, _ = store_coded(tmp_path / "a", PAIRS, per_shard=30)
    _, codes = store_coded(tmp_path / "b", PAIRS[::-1], per_shard=30)
    rows, _ = read((samples, codes))
    assert rows == [expected(sample) for sample in PAIRS]
    assert ways["_bulk"] == 0


def test_images_of_another_size_are_in_the_books(tmp_path: Path) -> None:
    folders = store_coded(tmp_path, PAIRS, per_shard=30, size=(16, 16))
    rows, tally = read(folders, (512, 512))
    assert rows == [] and dict(tally.skipped) == {"not 512 x 512 pixels": 25}


def test_a_caption_that_is_not_utf8_goes_the_slow_way(tmp_path: Path, ways: dict[str, int]) -> None:
    folders = store_coded(tmp_path, PAIRS, per_shard=30)
    (tar,) = (folders[0] / "shards").glob("*.tar")
    content = tar.read_bytes()
    assert content.count("über".encode()) > 1
    # Half a character at the end of the caption: the json, which is the truth, is still whole.
    place = content.rindex("日本語".encode())
    tar.write_bytes(content[:place] + b"\xff" + content[place + 1 :])
    rows, _ = read(folders)
    assert rows == [expected(sample) for sample in PAIRS]
    assert ways["_gathered"] == 1


def test_a_tar_that_is_cut_off_is_named(tmp_path: Path) -> None:
    folders = store_coded(tmp_path, PAIRS, per_shard=30)
    (tar,) = (folders[0] / "shards").glob("*.tar")
    tar.write_bytes(tar.read_bytes()[:20_000])
    with pytest.raises(FormatError, match=r"00000\.tar"):
        read(folders)


def test_characters_are_counted_and_not_bytes() -> None:
    nothing = np.zeros(3, np.int64)
    for texts in (["ab", "", "c"], ["aé", "", "日本"]):
        content = [text.encode() for text in texts]
        bounds = np.cumsum([0, *map(len, content)])
        batch = PairBatch(b"".join(content), bounds, nothing[:0], nothing, nothing, nothing)
        assert batch.num_chars.tolist() == [len(text) for text in texts]
