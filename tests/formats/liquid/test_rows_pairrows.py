"""Samples as pairs: what has no image is text, and what has more is in the books."""

from __future__ import annotations

from pathlib import Path

from coded_folder import make_pair, make_text, store_coded

from shardmill.formats.format import open_input
from shardmill.formats.liquid.rows import PairRow, iter_pairs
from shardmill.model.sample import Document, Sample, Segment
from shardmill.model.stage import Tally

CHAT = Sample(
    key="chat",
    document=Document(
        (
            Segment(kind="text", text="What is it?", role="user"),
            Segment(kind="image", media="png", role="user"),
            Segment(kind="text", text="A cat.", role="assistant", turn=1),
        )
    ),
    media={"png": b"png"},
)
VIDEO = Sample(
    key="video",
    document=Document((Segment(kind="video", media="mp4"), Segment(kind="text", text="x"))),
    media={"mp4": b"moov"},
)


def read(folder: Path, codes: Path | None) -> tuple[list[PairRow], Tally]:
    source, tally = open_input(folder, codes), Tally()
    with source.sample_shard(0) as shard:
        name = source.shards[0].name
        return list(iter_pairs(source, name, shard, range(len(shard)), tally)), tally


def test_rows_with_and_without_codes(tmp_path: Path) -> None:
    samples = [make_pair("p", "caption", b"jpeg"), make_text("t", "text"), CHAT, VIDEO]
    folder, codes = store_coded(tmp_path, samples, per_shard=9)
    for codes_dir in (None, codes):
        rows, tally = read(folder, codes_dir)
        assert [(row.key, row.text, row.medium) for row in rows] == [
            ("p", "caption", "jpg"),
            ("t", "text", None),
            ("chat", "What is it?\nA cat.", "png"),
        ]
        assert bytes(rows[0].raw["jpg"]) == b"jpeg"
        assert [row.codes is not None for row in rows] == [codes_dir is not None, False] + [
            codes_dir is not None
        ]
        assert dict(tally.skipped) == {"not one image and text": 1} and tally.num_in == 4
