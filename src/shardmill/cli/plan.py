"""`shardmill plan LENGTHS PLAN`: packs from lengths, with the report of what they are worth.

Prints what a plan is worth: its fill against the bound, the ranks that wait, the sources.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shardmill import humanize as wording
from shardmill.cli import output as console
from shardmill.cli.options import PlaceType, json_option, parse_spec
from shardmill.errors import ConfigError, FormatError

if TYPE_CHECKING:
    from shardmill.model.lengths import LengthTable
    from shardmill.model.plan import PackPlan, PackSpec
    from shardmill.pack.cost import CostModel
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
            ("method", f"{METHODS.get(plan.method, plan.method)}: {plan.why.partition(': ')[2]}"),
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


ANOTHER_FILE = "Plan into another file, or remove this one"


@click.command()
@click.argument("lengths", type=PlaceType(exists=True))
@click.argument("plan", type=PlaceType(dir_okay=False))
@click.option("--capacity", type=click.IntRange(1), required=True, help="Tokens of a pack.")
@click.option(
    "--alignment",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Each document takes a multiple of this; 2 x cp_size for context parallelism.",
)
@click.option(
    "--overlong",
    type=click.Choice(["fail", "drop", "cut"]),
    default="fail",
    show_default=True,
    help="What happens to samples longer than a pack; cut takes text only, never media.",
)
@click.option("--max-documents", type=click.IntRange(1), help="Documents a pack, at most.")
@click.option("--max-packs", type=click.IntRange(1), help="Keep a fair sample of so many packs.")
@click.option(
    "--headroom",
    type=float,
    default=0.05,
    show_default=True,
    help="Share of a pack left free when lengths are estimates.",
)
@click.option(
    "--method",
    metavar="KIND[,FIELD=VALUE]",
    default="auto",
    show_default=True,
    help="auto, window, histogram, or your own package.module:Class; auto takes what needs the "
    "fewest packs, and says why.",
)
@click.option(
    "--balance",
    metavar="KIND[,FIELD=VALUE]",
    default="halving",
    show_default=True,
    help="halving, shuffled, or your own package.module:Class.",
)
@click.option(
    "--block",
    type=click.IntRange(1),
    default=512,
    show_default=True,
    help="Packs of like cost that stay together: at least the packs of a step.",
)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--epoch", type=int, default=0, help="Another number gives other neighbours.")
@click.option(
    "--model",
    metavar="FIELD=VALUE,...",
    default="",
    help="Shape of the model for prices: layers, hidden, feed_forward, vision_layers, "
    "vision_hidden, patches_per_token.  [default: a 7B vision-language model]",
)
@json_option
def plan(lengths: Path, plan: Path, model: str, as_json: bool, **fields: Any) -> None:
    """Plan packs from lengths, balanced across ranks.

    LENGTHS is a file or folder that `shardmill measure` wrote, or a folder of token shards. PLAN is
    one file; it is refused for any other data than the lengths it was made from. A file that is
    there already stays: it is this plan, and there is nothing to do, or the command is refused.

    \b
        shardmill plan tokens packs.plan --capacity 8192
        shardmill plan lengths packs.plan --capacity 32768 --alignment 4 --overlong drop
    """
    from shardmill.model.plan import PackSpec
    from shardmill.pack.plan import plan_packs
    from shardmill.pack.report import report_plan
    from shardmill.shards.lengths import TABLE_NAME, read_lengths
    from shardmill.shards.plans import write_plan

    spec = PackSpec(**fields)
    prices = _prices(model)
    table = read_lengths(lengths)
    made = _existing_plan(plan, spec, table)
    if made is None:
        made = plan_packs(table, spec)
        write_plan(plan, made)
    report = report_plan(made, table, prices, seed=spec.seed)
    if as_json:
        console.print_json({"plan": str(plan), "why": made.why, **asdict(report)})
    else:
        print_report(made, table, report)
        if lengths.is_dir() and not (lengths / TABLE_NAME).is_file():
            console.hint(f"shardmill pack {lengths} {plan} OUT")


def _existing_plan(path: Path, spec: PackSpec, table: LengthTable) -> PackPlan | None:
    """Return the plan at `path` if it is the one asked for; any other file there is refused.

    It is left untouched, so that what was made from it stays fresh.
    """
    from shardmill.model.codec import differences, to_plain
    from shardmill.shards.plans import open_plan

    if not path.exists():
        return None
    try:
        found = open_plan(path)
    except FormatError as error:
        raise ConfigError(f"{error}\n{path} is there, and is no plan: {ANOTHER_FILE}") from error
    changes = differences(to_plain(found.spec), to_plain(spec))
    if found.lengths_digest != table.digest:
        changes.append("the lengths are others")
    if changes:
        listed = "".join(f"\n  {line}" for line in changes)
        raise ConfigError(f"{path} was planned with other parameters:{listed}\n{ANOTHER_FILE}")
    return found


def _prices(text: str) -> CostModel:
    from shardmill.pack.cost import ModelShape

    return parse_spec(text, ModelShape, where="--model").prices()
