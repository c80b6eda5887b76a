"""Receipts and manifests survive their plain form; hostile ones are refused with a reason."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import integers, lists

from shardmill.errors import FormatError, ShardmillError
from shardmill.model.manifest import (
    FileEntry,
    Manifest,
    Receipt,
    ShardEntry,
    StageRecord,
    build_manifest,
    group_stats,
    manifest_from_plain,
    manifest_to_plain,
    power_bars,
    receipt_digest,
    receipt_from_plain,
    receipt_to_plain,
    record_from_plain,
    record_to_plain,
)
from shardmill.model.stage import Tally, Unit

NAMES = st.from_regex(r"[a-z0-9]{1,5}", fullmatch=True)
COUNTS = st.integers(0, 1 << 50)
RECORD = StageRecord(
    stage={"kind": "x"}, version=1, digest="digest", content="samples", reads={"raw": ("a", "b")}
)


@st.composite
def receipts(draw: st.DrawFn) -> Receipt:
    unit = draw(NAMES)
    shards = []
    for number in range(draw(st.integers(0, 3))):
        name = f"{unit}-{number}"
        files = {
            role: FileEntry(f"shards/{name}.{role}", draw(COUNTS), "0" * 16)
            for role in draw(st.sets(NAMES, max_size=3))
        }
        shards.append(ShardEntry(name, draw(COUNTS), files))
    skipped = draw(st.dictionaries(st.text(max_size=5), COUNTS, max_size=3))
    num_kept = sum(shard.num_samples for shard in shards)
    return Receipt(
        unit=unit,
        digest="d",
        num_in=num_kept + sum(skipped.values()),
        num_kept=num_kept,
        skipped=skipped,
        shards=tuple(shards),
        rejects=FileEntry(f"rejects/{unit}.jsonl", 1, "0") if skipped else None,
        stats=draw(st.dictionaries(st.text(max_size=5), COUNTS, max_size=3)),
    )


def test_stage_records_survive_their_plain_form() -> None:
    assert record_from_plain(json.loads(json.dumps(record_to_plain(RECORD))), "r") == RECORD
    with pytest.raises(FormatError, match="content"):
        record_from_plain({**record_to_plain(RECORD), "content": 3, "reads": {}}, "content")
    with pytest.raises(FormatError, match="not a table of places"):
        record_from_plain({**record_to_plain(RECORD), "reads": ["a"]}, "r")


@given(receipts())
def test_receipts_survive_their_plain_form(receipt: Receipt) -> None:
    assert receipt_from_plain(receipt_to_plain(receipt), "r") == receipt


@given(st.lists(receipts(), unique_by=lambda receipt: receipt.unit, max_size=4))
def test_a_manifest_adds_up_its_receipts(found: list[Receipt]) -> None:
    units = [Unit(name=receipt.unit, input={}) for receipt in found]
    manifest = build_manifest(RECORD, units, found)
    assert manifest.num_in == sum(receipt.num_in for receipt in found)
    assert manifest.num_in == manifest.num_kept + sum(manifest.skipped.values())
    assert manifest.num_samples == manifest.num_kept
    assert manifest.num_bytes == sum(receipt.num_bytes for receipt in found)
    assert [s for r in found for s in r.shards] == list(manifest.shards)
    assert manifest_from_plain(manifest_to_plain(manifest), "m") == manifest


GOOD: dict[str, Any] = {
    "unit": "a",
    "digest": "d",
    "num_in": 5,
    "num_kept": 3,
    "skipped": {"bad": 2},
    "stats": {},
    "broken": {},
    "read": "",
    "shards": [
        {
            "name": "a",
            "num_samples": 3,
            "files": {"tar": {"path": "shards/a.tar", "num_bytes": 9, "checksum": "c"}},
        }
    ],
    "rejects": {"path": "rejects/a.jsonl", "num_bytes": 9, "checksum": "c"},
}


def paths_in(plain: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the place of every value inside of a plain value."""
    places = [at] if at else []
    items = plain.items() if isinstance(plain, dict) else ()
    items = enumerate(plain) if isinstance(plain, list) else items
    for key, value in items:
        places += paths_in(value, (*at, key))
    return places


@given(
    st.sampled_from(paths_in(GOOD)),
    st.sampled_from([None, "delete", -1, 10**30, 1.5, True, "x", [], {}, [[]], {"a": None}]),
)
def test_anything_hostile_is_a_receipt_or_a_format_error(place: tuple[Any, ...], bad: Any) -> None:
    plain = copy.deepcopy(GOOD)
    target = plain
    for key in place[:-1]:
        target = target[key]
    if bad == "delete":
        del target[place[-1]]
    else:
        target[place[-1]] = bad
    try:
        receipt = receipt_from_plain(plain, "r")
    except FormatError as error:
        assert "is not a receipt" in str(error)
    else:
        assert receipt.num_in == receipt.num_kept + sum(receipt.skipped.values())


@pytest.mark.parametrize("value", [None, 3, "text", [], [1], {}])
def test_other_json_is_refused(value: Any) -> None:
    with pytest.raises(FormatError, match="is not a receipt"):
        receipt_from_plain(value, "r")
    with pytest.raises(FormatError, match="is not a manifest"):
        manifest_from_plain(value, "m")


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "../x", "shards/../../x", "shards/a/b", "shards/", "shards", "rejects/a", "a",
     "shards/.hidden", "shards/a\0b"],
)  # fmt: skip
def test_paths_that_leave_the_folder_are_refused(path: str) -> None:
    plain = copy.deepcopy(GOOD)
    plain["shards"][0]["files"]["tar"]["path"] = path
    with pytest.raises(FormatError, match="is not a file in shards/"):
        receipt_from_plain(plain, "r")


def test_two_units_with_one_shard_are_refused() -> None:
    receipt = receipt_from_plain(GOOD, "r")
    other = receipt_from_plain(GOOD | {"unit": "b"}, "r")
    units = [Unit(name=name, input={}) for name in "ab"]
    with pytest.raises(ShardmillError, match="units a and b both wrote a shard named a"):
        build_manifest(RECORD, units, [receipt, other])


def test_a_receipt_is_for_one_stage_and_one_input() -> None:
    unit = Unit(name="a", input={"x": 1})
    digests = {
        receipt_digest("s", unit),
        receipt_digest("t", unit),
        receipt_digest("s", Unit(name="a", input={"x": 2})),
    }
    assert len(digests) == 3


def test_the_size_of_a_receipt_counts_all_files() -> None:
    receipt = receipt_from_plain(GOOD, "r")
    assert receipt.num_bytes == 9 and len(receipt.entries) == 2
    assert isinstance(
        manifest_from_plain(
            manifest_to_plain(build_manifest(RECORD, [Unit(name="a", input={})], [receipt])), "m"
        ),
        Manifest,
    )


@given(lists(integers(0, 1 << 40), min_size=1))
def test_bars_hold_every_observed_value_once(values: list[int]) -> None:
    tally = Tally()
    for value in values:
        tally.observe("text chars", value)
    groups = group_stats(tally.stats)
    assert list(groups) == ["text chars"]
    bars = power_bars(groups["text chars"])
    assert sum(n for _, n in bars) == len(values)
    limits = [limit for limit, _ in bars]
    assert limits == sorted(set(limits))
    assert limits[0] <= max(values) * 2 + 1 and limits[-1] >= max(values)


def test_counts_stand_in_their_groups() -> None:
    groups = group_stats({"tokens": 5, "source|a": 2, "source|b|c": 3})
    assert groups == {"": {"tokens": 5}, "source": {"a": 2, "b|c": 3}}


def test_strange_limits_are_left_out() -> None:
    assert power_bars({"<=" + "9" * 5000: 1, "<=x": 1, "<=": 1, "<=४": 1, "sum": 3}) == []
    assert power_bars({"<=0": 2, "<=4": 1}) == [(0, 2), (1, 0), (2, 0), (4, 1)]
