"""The figures of a plan add up, and show what the order is worth."""

from __future__ import annotations

import numpy as np
import pytest
from packing_lengths import draw

from shardmill.errors import StaleError
from shardmill.model.plan import PackSpec, Prices, length_table
from shardmill.packing.balance import pack_costs
from shardmill.packing.order import EpochOrder
from shardmill.packing.plan import plan_packs
from shardmill.packing.report import report_plan, source_shares, straggler


def test_books_balance_by_source() -> None:
    table = length_table(
        [6, 7, 30, 12, 0],
        num_visual=[1, 0, 2, 0, 0],
        num_fixed=[1, 0, 2, 0, 0],
        source=[0, 0, 1, 1, 1],
        source_names=["web", "ocr"],
        reject=[0, 0, 0, 0, 1],
        reject_reasons=["not an image"],
    )
    spec = PackSpec(capacity=16, alignment=4, overlong="cut")
    report = report_plan(plan_packs(table, spec), table)
    assert report.dropped == {"not an image": 1}
    assert (report.num_samples, report.num_packed, report.num_cut) == (5, 4, 1)
    web, ocr = report.sources
    assert (web.num_samples, web.num_packed, web.num_tokens, web.num_visual) == (2, 2, 13, 1)
    assert (ocr.num_samples, ocr.num_dropped, ocr.num_cut, ocr.num_tokens) == (3, 1, 1, 28)
    assert report.num_tokens == 41
    assert report.padding == pytest.approx(1 - 41 / (16 * report.num_packs))
    assert report.alignment_padding == pytest.approx(3 / (16 * report.num_packs))


def test_samples_that_are_cut_or_dropped_count_once() -> None:
    numbers = np.arange(60)
    table = length_table(
        numbers + 1, num_visual=numbers // 2, source=numbers % 2, source_names=["even", "odd"]
    )
    plan = plan_packs(table, PackSpec(capacity=40, overlong="cut", max_packs=9))
    assert len(plan.cut_rows) > len(np.setdiff1d(plan.cut_rows, plan.dropped)) > 0
    lengths = plan.lengths_of(plan.members, table)
    for number, share in enumerate(source_shares(plan, table)):
        own = table.source[plan.members] == number
        assert share.num_packed == own.sum() == 30 - share.num_dropped
        assert share.num_tokens == lengths[own].sum()
        assert share.num_visual == table.num_visual[plan.members][own].sum()


def test_planned_order_has_fewer_stragglers_than_a_shuffled_one() -> None:
    tokens, visual = draw("vlm", 8192, 60_000)
    table = length_table(tokens, num_visual=visual)
    report = report_plan(plan_packs(table, PackSpec(capacity=8192)), table)
    assert {s.ranks for s in report.stragglers} == {8, 64, 512}
    for found in report.stragglers:
        assert 1 <= found.after < found.before
    assert all(part == pytest.approx(1, abs=0.02) for part in report.parts)


def test_measured_prices_order_packs_by_time_and_report_seconds() -> None:
    tokens, visual = draw("vlm", 8192, 60_000)
    table = length_table(tokens, num_visual=visual)
    # Long documents are dear here, so that what is alike in squares is far apart in time.
    prices = Prices(token=3e-5, visual=4e-5, attention=3e-9, pack=0.02)
    plain = plan_packs(table, PackSpec(capacity=8192))
    timed = plan_packs(table, PackSpec(capacity=8192, prices=prices))
    np.testing.assert_array_equal(plain.members, timed.members)
    report = report_plan(timed, table)
    seconds = pack_costs(timed, table).priced(prices)
    assert report.seconds == pytest.approx(seconds.sum())
    assert report_plan(plain, table).seconds is None
    at = {(s.ranks, s.cost): s.after for s in report.stragglers}
    without = straggler(seconds, EpochOrder(plain, seed=0, epoch=0).all_packs(), 64)
    assert at[64, "step time"] < min(1.02, without)
    assert at[64, "visual tokens"] < 1.05


def test_straggler_factor_of_known_steps() -> None:
    cost = np.array([1, 3, 2, 2, 0, 0])
    assert straggler(cost, np.arange(6), 2) == pytest.approx((1.5 + 1.0) / 2)
    assert straggler(np.zeros(4), np.arange(4), 2) == 1.0


def test_report_of_an_empty_plan() -> None:
    table = length_table(np.empty(0, np.int32))
    report = report_plan(plan_packs(table, PackSpec(capacity=8)), table)
    assert (report.num_packs, report.padding, report.stragglers) == (0, 0.0, ())


def test_report_refuses_other_lengths() -> None:
    plan = plan_packs(length_table([1, 2]), PackSpec(capacity=8))
    with pytest.raises(StaleError):
        report_plan(plan, length_table([2, 1]))
