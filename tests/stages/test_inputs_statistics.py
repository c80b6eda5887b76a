from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis.strategies import integers, lists
from mixed_folder import make_mixed

from shardmill.model.sample import Document, MediaSize, Origin, Sample, Segment
from shardmill.model.stage import Tally
from shardmill.shards.ledger import open_manifest
from shardmill.stages.inputs import _observe, count_sample, count_shard
from shardmill.stages.tokenize import count_row


def test_what_is_counted() -> None:
    tally = Tally()
    origin = Origin(source="web", path="p", row=0)
    both = (
        Segment(kind="image", media="0.jpg"),
        Segment(kind="image", media="1.jpg"),
        Segment(kind="video", media="2.mp4"),
    )
    media = dict.fromkeys(("0.jpg", "1.jpg", "2.mp4"), b"x")
    sizes = {
        "0.jpg": MediaSize(width=10, height=10),
        "1.jpg": MediaSize(width=10, height=10),
        "2.mp4": MediaSize(width=20, height=10, duration_s=3.4),
    }
    count_sample(tally, Sample(key="a", document=Document(both), media=media, origin=origin), sizes)
    text = Document((Segment(kind="text", text="words"),))
    count_sample(tally, Sample(key="b", document=text, origin=origin), {})
    assert dict(tally.stats) == {
        "samples|with images": 1,
        "media|images": 2,
        "samples|with videos": 1,
        "media|videos": 1,
        "missing|text": 1,
        "source|web": 2,
        "text chars|<=0": 1,
        "text chars|<=8": 1,
        "text chars|sum": 5,
        "pixels|<=128": 2,
        "pixels|<=256": 1,
        "pixels|sum": 400,
        "video seconds|<=4": 1,
        "video seconds|sum": 3,
        "samples|text only": 1,
    }


@given(lists(integers(0, 1 << 40), min_size=1, max_size=20))
def test_many_values_are_observed_as_one_by_one(values: list[int]) -> None:
    one_by_one, at_once = Tally(), Tally()
    for value in values:
        one_by_one.observe("x", value)
    _observe(at_once, "x", np.array(values))
    assert at_once.stats == one_by_one.stats


def test_tokens_and_codes_are_counted_as_their_stages_do(tmp_path: Path) -> None:
    mixed = make_mixed(tmp_path, 8)
    found, wanted = Tally(), Tally()
    for shard in open_manifest(mixed.tokens).shards:
        count_shard(found, {role: mixed.tokens / e.path for role, e in shard.files.items()})
    for row in mixed.rows:
        count_row(wanted, row)
    assert found.stats == wanted.stats
    codes = Tally()
    for shard in open_manifest(mixed.codes).shards:
        count_shard(codes, {role: mixed.codes / e.path for role, e in shard.files.items()})
    assert codes.stats == {"images": 6, "codes": 6 * 1024, "code grid|32x32": 6}
