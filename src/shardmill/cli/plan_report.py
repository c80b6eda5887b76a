"""Prints what a plan is worth: its fill against the bound, the ranks that wait, the sources."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardmill import wording
from shardmill.cli import console

if TYPE_CHECKING:
    from shardmill.model.lengths import LengthTable
    from shardmill.model.plan import PackPlan
    from shardmill.pack.report import PlanReport

COSTS = {"visual": "visual tokens", "attention": "attention", "cost": "modelled step"}
METHODS = {"window": "window subset-sum", "histogram": "best-fit decreasing"}


def print_report(plan: PackPlan, table: LengthTable, report: PlanReport) -> None:
    """Print what a training lead wants to know before a run."""
    ratio = report.num_packs / max(1, report.lower_bound)
    console.say(
        "✓",
        f"{wording.plural(report.num_packs, 'pack')} of {plan.spec.capacity:,} tokens "
        f"from {wording.plural(report.num_packed, 'sample')}",
    )
    console.facts(
        [
            ("fill", f"{100 * (1 - report.padding):.3f} % of all places hold a token"),
            ("padding", f"{100 * report.padding:.3f} %{_alignment(report)}"),
            ("lower bound", f"{report.lower_bound:,} packs: {ratio:.6f} x the bound"),
            ("method", f"{METHODS[plan.method]}: {plan.why.partition(': ')[2]}"),
            ("tokens", f"{report.num_tokens:,}, of which visual {_share(report)}"),
            ("documents", "{} to {} a pack, {:.1f} on average".format(*_documents(report))),
            ("lengths", "exact" if table.exact else f"estimates, headroom {plan.spec.headroom:g}"),
            ("left out", _left_out(report)),
        ]
    )
    _print_stragglers(report)
    _print_sources(report)


def _print_stragglers(report: PlanReport) -> None:
    if not report.stragglers:
        return
    console.heading("Ranks that wait (mean over steps of dearest / mean rank)")
    console.table(
        ["ranks", "cost", "shuffled", "planned", "time won back"],
        [
            (
                str(found.ranks),
                COSTS[found.cost],
                f"{found.before:.3f}",
                f"{found.after:.3f}",
                wording.percent(1 - found.after / found.before) if found.cost == "cost" else "",
            )
            for found in report.stragglers
        ],
    )
    quarters = ", ".join(f"{100 * (part - 1):+.1f} %" for part in report.parts)
    shuffled, planned = report.step_spread
    console.facts(
        [
            ("quarters of an epoch", f"{quarters} of the mean cost"),
            (
                "spread of visual tokens between steps of 8",
                f"{wording.percent(shuffled)} shuffled, {wording.percent(planned)} planned",
            ),
        ]
    )


def _print_sources(report: PlanReport) -> None:
    console.heading("Sources")
    total = max(1, report.num_tokens)
    console.table(
        ["samples", "packed", "dropped", "cut", "tokens", "share", "visual", "source"],
        [
            (
                f"{source.num_samples:,}",
                f"{source.num_packed:,}",
                f"{source.num_dropped:,}",
                f"{source.num_cut:,}",
                f"{source.num_tokens:,}",
                wording.percent(source.num_tokens / total),
                wording.percent(source.num_visual / max(1, source.num_tokens)),
                source.name,
            )
            for source in report.sources
            if source.num_samples
        ],
    )


def _alignment(report: PlanReport) -> str:
    if not report.alignment_padding:
        return ""
    return f", of which {100 * report.alignment_padding:.3f} % to align documents"


def _share(report: PlanReport) -> str:
    return wording.percent(report.num_visual / max(1, report.num_tokens))


def _documents(report: PlanReport) -> tuple[int, int, float]:
    fewest, mean, most = report.documents
    return fewest, most, mean


def _left_out(report: PlanReport) -> str:
    parts = [f"{count:,} x {reason}" for reason, count in report.dropped.items()]
    if report.num_cut:
        parts.append(f"text cut from {wording.plural(report.num_cut, 'sample')}")
    return ", ".join(parts) or "nothing"
