"""`shardmill plan LENGTHS PLAN`: packs from lengths, with the report of what they are worth.

`shardmill calibrate` measures what they cost on the GPU at hand.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import shardmill as sm
from shardmill import humanize
from shardmill.api.data import Plan, Tokens
from shardmill.cli import output
from shardmill.cli.options import PlaceType, json_option
from shardmill.cli.report import choice, defaults_of

if TYPE_CHECKING:
    from shardmill.packing.report import PlanReport

METHODS = {
    "window": "window subset-sum",
    "histogram": "best-fit decreasing",
    "neighbours": "as they come",
}


@click.command(context_settings=defaults_of(sm.plan))
@click.argument("lengths", type=PlaceType(exists=True))
@click.argument("out", type=PlaceType(dir_okay=False), metavar="PLAN")
@click.option("--capacity", type=click.IntRange(1), required=True, help="Tokens of a pack.")
@click.option(
    "--alignment",
    type=click.IntRange(1),
    help="Each document takes a multiple of this; 2 x cp_size for context parallelism.",
)
@click.option(
    "--overlong",
    type=choice(sm.plan, "overlong"),
    help="What happens to samples longer than a pack; cut takes text only, never media.",
)
@click.option("--max-documents", type=click.IntRange(1), help="Documents a pack, at most.")
@click.option("--max-packs", type=click.IntRange(1), help="Keep a fair sample of so many packs.")
@click.option(
    "--headroom",
    type=float,
    help="Share of a pack left free when lengths are estimates.",
)
@click.option(
    "--method",
    metavar="KIND[,FIELD=VALUE]",
    help="auto, window, histogram, neighbours (samples as they come), or your own "
    "package.module:Class; auto takes what needs the fewest packs, and says why.",
)
@click.option(
    "--balance",
    metavar="KIND[,FIELD=VALUE]",
    help="halving, shuffled, or your own package.module:Class.",
)
@click.option(
    "--block",
    type=click.IntRange(1),
    help="Packs of like cost that stay together: at least the packs of a step.",
)
@click.option("--seed", type=int)
@click.option("--epoch", type=int, help="Another number gives other neighbours.")
@click.option(
    "--model",
    metavar="FIELD=VALUE,...",
    show_default=False,
    help="Shape of the model for prices: layers, hidden, feed_forward, vision_layers, "
    "vision_hidden, patches_per_token.  [default: a 7B vision-language model]",
)
@click.option(
    "--prices",
    type=PlaceType(exists=True, dir_okay=False),
    metavar="FILE",
    help="Seconds a token, visual token and square cost, as `calibrate` measured them: packs are "
    "ordered by that time too, and the report is in seconds.",
)
@click.option("--allow-empty", is_flag=True, help="A plan without packs is success.")
@json_option
def plan(lengths: Path, out: Path, as_json: bool, **flags: Any) -> None:
    """Plan packs from lengths, balanced across ranks.

    LENGTHS is a file or folder that `shardmill measure` wrote, or a folder of token shards. PLAN is
    one file; it is refused for any other data than the lengths it was made from. A file that is
    there already stays: it is this plan, and there is nothing to do, or the command is refused.

    \b
        shardmill plan tokens packs.plan --capacity 8192
        shardmill plan lengths packs.plan --capacity 32768 --alignment 4 --overlong drop
    """
    print_plan(sm.plan(lengths, out, **flags), as_json)
    if not as_json and lengths.is_dir() and isinstance(sm.open(lengths), Tokens):
        output.hint(f"shardmill pack {lengths} {out} OUT")


@click.command(context_settings=defaults_of(sm.calibrate))
@click.argument("model", type=PlaceType(exists=True))
@click.argument("plan", type=PlaceType(exists=True, dir_okay=False))
@click.argument("data", type=PlaceType(exists=True))
@click.argument("out", type=PlaceType(dir_okay=False), metavar="PRICES")
@click.option(
    "--lengths", type=PlaceType(exists=True), help="What the plan of a folder of samples is of."
)
@click.option("--steps", type=click.IntRange(1), help="Packs to train on.")
@click.option(
    "--attn-implementation",
    metavar="NAME",
    show_default=False,
    help="The attention that you train with.  [default: that of sm.attention()]",
)
@click.option(
    "--checkpointing/--no-checkpointing", help="Recompute activations in the backward pass."
)
@click.option("--device", metavar="NAME", help="Where to train.")
@json_option
def calibrate(
    model: Path, plan: Path, data: Path, out: Path, as_json: bool, steps: int, **flags: Any
) -> None:
    """Measure on this GPU what packs cost to train on, for plan --prices.

    MODEL is the folder of a model of transformers; weights are random, its config.json is enough
    for tokens. PLAN and DATA are what you train on. PRICES is one small JSON file.

    \b
        shardmill calibrate Qwen2-1.5B packs.plan tokens prices.json
        shardmill plan tokens timed.plan --capacity 32768 --prices prices.json
    """
    with click.progressbar(length=steps, label="steps", file=sys.stderr, hidden=as_json) as bar:
        made = sm.calibrate(
            model, plan, data, out, steps=steps, on_step=lambda step: bar.update(1), **flags
        )
    if as_json:
        output.print_json({"out": str(out), **asdict(made)})
        return
    prices = made.prices
    output.say("✓", f"{made.model} on {made.device}, {humanize.plural(steps, 'step')}")
    output.facts(
        [
            ("a token", f"{1e6 * prices.token:.3g} us"),
            ("a visual token", f"{1e6 * prices.visual:.3g} us more"),
            ("a square", f"{1e12 * prices.attention:.3g} ps of a length"),
            ("a step", f"{1e3 * prices.pack:.3g} ms"),
            (
                "error",
                f"{humanize.percent(made.error)} of a step, correlation {made.correlation:.4f}",
            ),
        ]
    )
    output.hint(f"shardmill plan LENGTHS PLAN --capacity N --prices {out}")


def print_plan(made: Plan, as_json: bool) -> None:
    """Print what a training lead wants to know before a run: fill, balance, sources."""
    plan, report = made.plan, made.report
    assert report is not None
    if as_json:
        output.print_json({"path": str(made.path), "why": plan.why, **asdict(report)})
        return
    is_exact = made.table is None or made.table.exact
    ratio = report.num_packs / max(1, report.lower_bound)
    output.say(
        "✓",
        f"{humanize.plural(report.num_packs, 'pack')} of {plan.spec.capacity:,} tokens "
        f"from {humanize.plural(report.num_packed, 'sample')}",
    )
    output.facts(
        [
            ("fill", f"{100 * (1 - report.padding):.3f} % of all places hold a token"),
            ("padding", f"{100 * report.padding:.3f} %{_alignment(report)}"),
            ("lower bound", f"{report.lower_bound:,} packs: {ratio:.6f} x the bound"),
            ("method", f"{METHODS.get(plan.method, plan.method)}: {plan.why.partition(': ')[2]}"),
            ("tokens", f"{report.num_tokens:,}, of which visual {_share(report)}"),
            ("documents", "{} to {} a pack, {:.1f} on average".format(*_documents(report))),
            ("lengths", "exact" if is_exact else f"estimates, headroom {plan.spec.headroom:g}"),
            ("left out", _left_out(report)),
            *([] if report.seconds is None else [("time", _time(report))]),
        ]
    )
    _print_stragglers(report)
    _print_sources(report)


def _print_stragglers(report: PlanReport) -> None:
    if not report.stragglers:
        return
    output.heading("Ranks that wait (mean over steps of slowest / mean rank)")
    output.table(
        ["ranks", "cost", "shuffled", "planned", "time won back"],
        [
            (
                str(found.ranks),
                found.cost,
                f"{found.before:.3f}",
                f"{found.after:.3f}",
                humanize.percent(1 - found.after / found.before) if "step" in found.cost else "",
            )
            for found in report.stragglers
        ],
    )
    quarters = ", ".join(f"{100 * (part - 1):+.1f} %" for part in report.parts)
    shuffled, planned = report.step_spread
    output.facts(
        [
            ("quarters of an epoch", f"{quarters} of the mean cost"),
            (
                "spread of visual tokens between steps of 8",
                f"{humanize.percent(shuffled)} shuffled, {humanize.percent(planned)} planned",
            ),
        ]
    )


def _print_sources(report: PlanReport) -> None:
    output.heading("Sources")
    total = max(1, report.num_tokens)
    output.table(
        ["samples", "packed", "dropped", "cut", "tokens", "share", "visual", "source"],
        [
            (
                f"{source.num_samples:,}",
                f"{source.num_packed:,}",
                f"{source.num_dropped:,}",
                f"{source.num_cut:,}",
                f"{source.num_tokens:,}",
                humanize.percent(source.num_tokens / total),
                humanize.percent(source.num_visual / max(1, source.num_tokens)),
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
    return humanize.percent(report.num_visual / max(1, report.num_tokens))


def _documents(report: PlanReport) -> tuple[int, int, float]:
    fewest, mean, most = report.documents
    return fewest, most, mean


def _left_out(report: PlanReport) -> str:
    parts = [f"{count:,} x {reason}" for reason, count in report.dropped.items()]
    if report.num_cut:
        parts.append(f"text cut from {humanize.plural(report.num_cut, 'sample')}")
    return ", ".join(parts) or "nothing"


def _time(report: PlanReport) -> str:
    assert report.seconds is not None
    mean = report.seconds / max(1, report.num_packs)
    return f"{mean:.3g} s a pack, {humanize.duration(report.seconds)} an epoch on one GPU"
