"""Media are never cut; text goes from the end, and what cannot be cut is dropped with a reason."""

from __future__ import annotations

from shardmill.model.plan import PackSpec, length_table
from shardmill.packing.overlong import MEDIA_TOO_LONG, TOO_LONG, usable_lengths


def test_cut_leaves_media_whole_or_drops_them() -> None:
    table = length_table([5, 20, 20], num_fixed=[0, 3, 15])
    usable = usable_lengths(table, PackSpec(capacity=10, alignment=4, overlong="cut"))
    assert usable.units.tolist() == [2, 2, 0]
    assert usable.cut_rows.tolist() == [1]
    assert usable.cut_lengths.tolist() == [8]
    assert [usable.drop_reasons[r] for r in usable.drop_reason] == [MEDIA_TOO_LONG]


def test_drop_counts_rejected_and_overlong_rows_by_reason() -> None:
    table = length_table([50, 5, 0], reject=[0, 0, 1], reject_reasons=["not an image"])
    usable = usable_lengths(table, PackSpec(capacity=10, overlong="drop"))
    assert usable.dropped.tolist() == [0, 2]
    assert [usable.drop_reasons[r] for r in usable.drop_reason] == [TOO_LONG, "not an image"]


def test_longest_length_does_not_overflow() -> None:
    table = length_table([2**31 - 1, 1])
    usable = usable_lengths(table, PackSpec(capacity=10, alignment=2, overlong="drop"))
    assert usable.dropped.tolist() == [0]
