"""`shardmill plan LENGTHS PLAN`: packs from lengths, with the report of what they are worth."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shardmill.cli import console
from shardmill.cli.options import json_option
from shardmill.cli.places import PlaceType
from shardmill.cli.plan_report import print_report
from shardmill.cli.values import parse_spec
from shardmill.errors import ConfigError, FormatError

if TYPE_CHECKING:
    from shardmill.model.lengths import LengthTable
    from shardmill.model.plan import PackPlan, PackSpec
    from shardmill.pack.cost import CostModel

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
    type=click.Choice(["auto", "window", "histogram"]),
    default="auto",
    show_default=True,
    help="auto takes what needs the fewest packs, and says why.",
)
@click.option("--window", type=click.IntRange(1), help="Samples from which a pack is chosen.")
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
    from shardmill.io.plans import write_plan
    from shardmill.io.tokenlengths import TABLE_NAME, read_lengths
    from shardmill.model.plan import PackSpec
    from shardmill.pack.plan import plan_packs
    from shardmill.pack.report import report_plan

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
    from shardmill.io.plans import open_plan
    from shardmill.model.codec import differences, to_plain

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
